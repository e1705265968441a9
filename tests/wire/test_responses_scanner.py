"""Tests for scanning Responses API streams."""

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.model.ticket import FORM_APIS, Api
from headgate.model.usage import Usage, UsageSource
from headgate.wire.messages_scanner import MessagesScanner
from headgate.wire.responses_scanner import RESPONSES_EVENT_BYTES_MAX, ResponsesScanner, scanner_for
from headgate.wire.sse import StreamScanner, error_event
from headgate.wire.transcript_scanner import TranscriptScanner
from tests.wire.recorded import (
    DONE,
    LLAMACPP_RESPONSE,
    VLLM_RESPONSE_ANNOUNCED,
    VLLM_RESPONSE_END,
    VLLM_RESPONSE_OUTPUT,
)

VLLM_RESPONSE = VLLM_RESPONSE_ANNOUNCED + VLLM_RESPONSE_OUTPUT + VLLM_RESPONSE_END


def an_event(kind: str | None, *, name: str | None = None, **fields: object) -> bytes:
    said = fields if kind is None else {"type": kind, **fields}
    line = b"" if name is None else f"event: {name}\n".encode()
    return line + b"data: " + json.dumps(said).encode() + b"\n\n"


def a_delta(text: str = "hi") -> bytes:
    return an_event("response.output_text.delta", name="response.output_text.delta", delta=text)


def facts(scanner: StreamScanner) -> tuple[object, ...]:
    return scanner.events, scanner.done, scanner.error, scanner.usage, scanner.overlong, scanner.closed


def test_each_api_has_its_own_scanner() -> None:
    assert type(scanner_for(Api.RESPONSES, keep_usage_chunk=False)) is ResponsesScanner
    assert type(scanner_for(Api.MESSAGES, keep_usage_chunk=False)) is MessagesScanner
    assert {type(scanner_for(api, keep_usage_chunk=False)) for api in FORM_APIS} == {TranscriptScanner}
    others = set(Api) - {Api.RESPONSES, Api.MESSAGES, *FORM_APIS}
    assert {type(scanner_for(api, keep_usage_chunk=False)) for api in others} == {StreamScanner}
    assert scanner_for(Api.CHAT, keep_usage_chunk=True).feed(DONE) == DONE


@pytest.mark.parametrize(
    ("stream", "events", "usage"),
    [
        (VLLM_RESPONSE, 6, Usage(32, 4, 16, UsageSource.ENGINE)),
        (LLAMACPP_RESPONSE, 4, Usage(32, 4, 0, UsageSource.ENGINE)),
    ],
)
def test_complete_stream_is_passed_through_and_its_usage_is_read(stream: bytes, events: int, usage: Usage) -> None:
    scanner = ResponsesScanner()

    assert scanner.feed(stream) == stream
    assert facts(scanner) == (events, True, None, usage, False, True)


def test_announcements_are_held_until_the_first_output_event() -> None:
    scanner = ResponsesScanner()

    assert scanner.feed(VLLM_RESPONSE_ANNOUNCED) == b""
    assert facts(scanner) == (0, False, None, None, False, False)
    assert scanner.feed(a_delta()) == VLLM_RESPONSE_ANNOUNCED + a_delta()
    assert scanner.events == 3


def test_later_announcement_is_passed_through_in_place() -> None:
    scanner = ResponsesScanner()
    scanner.feed(a_delta())

    assert scanner.feed(VLLM_RESPONSE_ANNOUNCED) == VLLM_RESPONSE_ANNOUNCED


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (an_event("response.failed", response={"error": {"code": "x", "message": "out of memory"}}), "out of memory"),
        (an_event("response.failed", response={"error": None}), "the engine sent no error message"),
        (an_event("error", name="error", code="x", message="out of memory", param=None), "out of memory"),
        (an_event("error", error={"message": "out of memory"}), "out of memory"),
        (an_event(None, name="error", message="out of memory"), "out of memory"),
        (an_event(None, error={"message": "out of memory"}), "out of memory"),
        (an_event(None, object="error", message="out of memory"), "out of memory"),
        (an_event(None, name="response.failed", response={"error": {"message": "no"}}), "no"),
    ],
)
def test_failure_event_is_dropped_and_ends_the_stream(failure: bytes, message: str) -> None:
    first, later = ResponsesScanner(), ResponsesScanner()

    assert first.feed(VLLM_RESPONSE_ANNOUNCED + failure + a_delta()) == b""
    assert facts(first) == (0, False, message, None, False, True)
    assert later.feed(a_delta() + failure + VLLM_RESPONSE_END) == a_delta()
    assert later.feed(VLLM_RESPONSE_END) == b""
    assert facts(later) == (1, False, message, None, False, True)


@pytest.mark.parametrize("end", ["response.completed", "response.incomplete"])
def test_final_event_ends_the_stream(end: str) -> None:
    scanner = ResponsesScanner()
    ending = an_event(end, response={"usage": {"input_tokens": 1, "output_tokens": 2}})

    assert scanner.feed(a_delta() + ending + DONE + a_delta()) == a_delta() + ending
    assert facts(scanner) == (2, True, None, Usage(1, 2, 0, UsageSource.ENGINE), False, True)


@pytest.mark.parametrize("response", [{}, {"usage": None}, {"usage": {}}, None, "x", {"usage": {"input_tokens": -1}}])
def test_final_event_without_usage_ends_the_stream(response: object) -> None:
    scanner = ResponsesScanner()
    ending = an_event("response.completed", response=response)

    assert scanner.feed(ending) == ending
    assert facts(scanner) == (1, True, None, None, False, True)


def test_done_without_final_event_causes_an_error() -> None:
    scanner = ResponsesScanner()

    assert scanner.feed(a_delta() + DONE) == a_delta()
    assert facts(scanner) == (1, False, "the stream ended without response.completed", None, False, True)


@pytest.mark.parametrize(
    "text", ["response.completed", '"error"', "[DONE]", "event: error", 'data: {"type":"error"}', "\n\nevent: error\n"]
)
def test_response_text_is_not_interpreted(text: str) -> None:
    scanner = ResponsesScanner()

    assert scanner.feed(a_delta() + a_delta(text)) == a_delta() + a_delta(text)
    assert facts(scanner) == (2, False, None, None, False, False)


def test_plain_read_is_returned_as_the_same_object() -> None:
    scanner = ResponsesScanner()
    scanner.feed(a_delta())
    read = a_delta() + an_event("response.output_text.delta", delta="no name") + a_delta()

    assert scanner.feed(read) is read
    assert scanner.events == 4


def test_comments_do_not_start_a_response() -> None:
    scanner = ResponsesScanner()

    assert scanner.feed(b": ping\n\n" + VLLM_RESPONSE_ANNOUNCED + b": ping\n\n") == b""
    assert scanner.events == 0
    assert scanner.feed(a_delta() + b": ping\n\n") == VLLM_RESPONSE_ANNOUNCED + a_delta() + b": ping\n\n"


@pytest.mark.parametrize("broken", [b"data: {\n\n", b"data: 17\n\n", b'data: {"type":7}\n\n', b"data\n\n"])
def test_unparsable_event_is_passed_through(broken: bytes) -> None:
    scanner = ResponsesScanner()

    assert scanner.feed(broken) == broken
    assert scanner.events == 1


def test_held_announcements_are_limited() -> None:
    scanner = ResponsesScanner(event_bytes_max=len(VLLM_RESPONSE_ANNOUNCED))

    assert scanner.feed(VLLM_RESPONSE_ANNOUNCED * 2) == b""
    assert facts(scanner) == (0, False, None, None, True, True)
    assert scanner._held_events == []


def test_final_event_may_be_as_long_as_a_response() -> None:
    ending = an_event("response.completed", response={"instructions": "x" * (RESPONSES_EVENT_BYTES_MAX - 1000)})

    assert ResponsesScanner().feed(ending) == ending


def test_gateway_error_event_is_recognized() -> None:
    body = b'{"error":{"message":"cut off","type":"server_error","param":null,"code":"stream_interrupted"}}'
    event = error_event(body, Api.RESPONSES, sequence_number=9)
    scanner = ResponsesScanner()

    assert event.startswith(b"event: error\ndata: {")
    assert json.loads(event.removeprefix(b"event: error\ndata: ")) == {
        "type": "error",
        "sequence_number": 9,
        "message": "cut off",
        "param": None,
        "code": "stream_interrupted",
        "error": {"message": "cut off", "type": "server_error", "param": None, "code": "stream_interrupted"},
    }
    assert scanner.feed(event) == b""
    assert scanner.error == "cut off"
    assert error_event(body) == error_event(body, Api.CHAT) == b"data: " + body + b"\n\n"


_KINDS = st.sampled_from(
    [
        "response.created",
        "response.in_progress",
        "response.output_text.delta",
        "response.output_item.added",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    ]
)
_EVENTS = st.builds(
    lambda kind, name, fields: an_event(kind, name=name, **fields),
    st.none() | _KINDS,
    st.none() | _KINDS,
    st.fixed_dictionaries(
        {},
        optional={
            "delta": st.text(max_size=9) | st.sampled_from(["[DONE]", '"error"', "\n\n", "response.completed"]),
            "response": st.sampled_from([None, {"usage": {"input_tokens": 3}}, {"error": {"message": "no"}}]),
            "error": st.sampled_from([None, {"message": "no"}]),
        },
    ),
)
_BLOCKS = (
    _EVENTS
    | _EVENTS.map(lambda event: event.replace(b"\n", b"\r\n"))
    | st.sampled_from([DONE, b": ping\n\n", b"\n", b"data: {\n\n", b"event: x\n\n", b"event: x\ndata: 1\ndata: 2\n\n"])
)


@given(
    stream=st.lists(_BLOCKS, max_size=8).map(b"".join),
    cuts=st.lists(st.integers(0, 600), max_size=12),
    bound=st.sampled_from([150, 10**6]),
)
@example(stream=VLLM_RESPONSE, cuts=list(range(600)), bound=10**6)
@example(stream=a_delta() + b"event: x\n\nevent: y\ndata: 1\ndata: 2\n\n", cuts=[len(a_delta())], bound=10**6)
def test_result_does_not_depend_on_how_the_stream_is_split(stream: bytes, cuts: list[int], bound: int) -> None:
    whole, cut, by_byte = (ResponsesScanner(event_bytes_max=bound) for _ in range(3))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})

    expected = whole.feed(stream)
    assert b"".join(cut.feed(stream[start:end]) for start, end in itertools.pairwise(edges)) == expected
    assert b"".join(by_byte.feed(bytes([byte])) for byte in stream) == expected
    assert facts(cut) == facts(by_byte) == facts(whole)
