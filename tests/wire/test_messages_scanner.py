"""Tests for scanning streams of Anthropic's Messages API."""

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.model.ticket import Api
from headgate.model.usage import Usage, UsageSource
from headgate.wire.chunk_sizes import END_OF_CHUNK
from headgate.wire.holding_scanner import HELD_EVENTS_MAX
from headgate.wire.messages_scanner import MessagesScanner
from headgate.wire.sse import error_event
from tests.wire.recorded import (
    DONE,
    LLAMACPP_MESSAGE,
    LLAMACPP_MESSAGE_DELTAS,
    LLAMACPP_MESSAGE_END,
    LLAMACPP_MESSAGE_START,
)


def an_event(kind: str | None, *, name: str | None = "", **fields: object) -> bytes:
    """An event with the same name and type, unless `name` is another one or None."""
    said = fields if kind is None else {"type": kind, **fields}
    name = kind if name == "" else name
    line = b"" if name is None else f"event: {name}\n".encode()
    return line + b"data: " + json.dumps(said, separators=(",", ":")).encode() + b"\n\n"


def a_delta(text: str = "hi", kind: str = "text") -> bytes:
    return an_event("content_block_delta", index=0, delta={"type": f"{kind}_delta", kind: text})


def a_message_delta(**usage: int | None) -> bytes:
    return an_event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage)


PING = an_event("ping")
STOP = an_event("message_stop")


def facts(scanner: MessagesScanner) -> tuple[object, ...]:
    return scanner.events, scanner.done, scanner.error, scanner.usage, scanner.overlong, scanner.closed


def test_complete_stream_is_passed_through_and_its_usage_is_read() -> None:
    scanner = MessagesScanner()

    assert scanner.feed(LLAMACPP_MESSAGE) == LLAMACPP_MESSAGE
    assert facts(scanner) == (2, True, None, Usage(19, 2, 18, UsageSource.ENGINE), False, True)


def test_events_before_the_first_delta_are_held() -> None:
    scanner = MessagesScanner()

    assert scanner.feed(PING + LLAMACPP_MESSAGE_START + b": comment\n\n" + PING) == b""
    assert facts(scanner) == (0, False, None, None, False, False)
    assert scanner.feed(a_delta()) == PING + LLAMACPP_MESSAGE_START + PING + a_delta()
    assert scanner.events == 1


def test_message_without_content_is_delivered_at_its_end() -> None:
    scanner = MessagesScanner()

    assert scanner.feed(LLAMACPP_MESSAGE_START + a_message_delta(output_tokens=0)) == b""
    assert scanner.feed(STOP) == LLAMACPP_MESSAGE_START + a_message_delta(output_tokens=0) + STOP
    assert facts(scanner) == (0, True, None, Usage(19, 0, 18, UsageSource.ENGINE), False, True)


def test_only_deltas_count_as_progress() -> None:
    scanner = MessagesScanner()
    rest = PING + b": comment\n\n" + an_event("content_block_stop") + an_event("content_block_start") + PING

    assert scanner.feed(a_delta() + rest + a_delta(kind="thinking") + rest) == (
        a_delta() + rest + a_delta(kind="thinking") + rest
    )
    assert scanner.events == 2


def test_nothing_is_forwarded_after_the_end() -> None:
    scanner = MessagesScanner()

    assert scanner.feed(a_delta() + STOP + DONE + a_delta()) == a_delta() + STOP
    assert scanner.feed(a_delta()) == b""
    assert facts(scanner) == (1, True, None, None, False, True)


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (an_event("error", error={"type": "overloaded_error", "message": "no room"}), "no room"),
        (an_event("error", name=None, error={"message": "no room"}), "no room"),
        (an_event(None, name="error", message="no room"), "no room"),
        (an_event(None, name=None, error={"message": "no room"}), "no room"),
        (an_event("error"), "error"),
    ],
)
def test_failure_event_is_dropped_and_ends_the_stream(failure: bytes, message: str) -> None:
    first, later = MessagesScanner(), MessagesScanner()

    assert first.feed(LLAMACPP_MESSAGE_START + failure + a_delta()) == b""
    assert first.events == 0
    assert later.feed(a_delta() + failure + LLAMACPP_MESSAGE_END) == a_delta()
    assert later.feed(LLAMACPP_MESSAGE_END) == b""
    assert (later.events, later.done, later.closed) == (1, False, True)
    if message != "error":
        assert first.error == later.error == message
    else:
        assert first.error


def test_done_without_message_stop_causes_an_error() -> None:
    scanner = MessagesScanner()

    assert scanner.feed(a_delta() + DONE) == a_delta()
    assert facts(scanner) == (1, False, "the stream ended without message_stop", None, False, True)


@pytest.mark.parametrize(
    ("start", "end", "usage"),
    [
        ({"input_tokens": 5, "output_tokens": 1}, {"output_tokens": 9}, Usage(5, 9, 0, UsageSource.ENGINE)),
        # Counts in the last event are totals, and null is no count.
        (
            {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 0},
            {"input_tokens": None, "cache_read_input_tokens": 3, "output_tokens": 9},
            Usage(8, 9, 3, UsageSource.ENGINE),
        ),
        (
            {"input_tokens": 0, "output_tokens": 0},
            {"input_tokens": 4, "cache_creation_input_tokens": 10, "cache_read_input_tokens": 6, "output_tokens": 9},
            Usage(20, 9, 6, UsageSource.ENGINE),
        ),
        (None, {"input_tokens": 4, "output_tokens": 9}, Usage(4, 9, 0, UsageSource.ENGINE)),
        (None, {"output_tokens": 9}, None),
        ({"input_tokens": 5}, {"output_tokens": -1}, None),
        ({"input_tokens": 5}, {"output_tokens": "x"}, None),
        ({"input_tokens": 5, "cache_creation_input_tokens": -5}, {"output_tokens": 1}, None),
    ],
)
def test_usage_of_both_ends_is_combined(start: object, end: object, usage: Usage | None) -> None:
    scanner = MessagesScanner()
    message = {} if start is None else {"usage": start}
    ending = an_event("message_delta", delta={}, usage=end)

    scanner.feed(an_event("message_start", message=message) + a_delta() + ending + STOP)

    assert (scanner.done, scanner.usage) == (True, usage)


def test_usage_is_unknown_until_the_last_event() -> None:
    scanner = MessagesScanner()
    scanner.feed(LLAMACPP_MESSAGE_START + LLAMACPP_MESSAGE_DELTAS)

    assert scanner.usage is None


@pytest.mark.parametrize(
    "text",
    ["message_stop", '"error"', "[DONE]", "event: error", 'data: {"type":"error"}', "\n\nevent: error\n", "error"],
)
@pytest.mark.parametrize("kind", ["text", "thinking", "partial_json"])
def test_response_text_is_not_interpreted(kind: str, text: str) -> None:
    scanner = MessagesScanner()

    for _ in range(3):
        assert scanner.feed(a_delta()) == a_delta()
        assert scanner.feed(a_delta(text, kind)) == a_delta(text, kind)
    assert facts(scanner) == (6, False, None, None, False, False)


def test_plain_read_is_returned_as_the_same_object() -> None:
    scanner = MessagesScanner()
    scanner.feed(a_delta())
    read = a_delta() + a_delta("one") + a_delta("two", "partial_json")

    assert scanner.feed(read) is read
    assert scanner.events == 4


def test_delta_that_differs_only_in_its_text_passes_in_its_chunk() -> None:
    scanner = MessagesScanner()

    def in_a_chunk(event: bytes) -> bytes:
        return b"%x\r\n" % len(event) + event + END_OF_CHUNK

    assert not scanner.passes_chunk(in_a_chunk(a_delta("first")))
    scanner.feed(a_delta("first"))
    scanner.feed(a_delta("again"))
    assert scanner.passes_chunk(in_a_chunk(a_delta("third")))
    assert not scanner.passes_chunk(in_a_chunk(PING))
    assert scanner.events == 3


@pytest.mark.parametrize("event", [PING, b": comment\n\n"])
def test_endless_keep_alives_end_the_stream(event: bytes) -> None:
    scanner = MessagesScanner()
    scanner.feed(a_delta())

    scanner.feed(event * 10_000)
    assert not scanner.closed
    scanner.feed(event)
    assert (scanner.overlong, scanner.closed) == (True, True)


def test_held_events_are_limited() -> None:
    scanner = MessagesScanner(event_bytes_max=len(LLAMACPP_MESSAGE_START))

    assert scanner.feed(LLAMACPP_MESSAGE_START * 2) == b""
    assert facts(scanner) == (0, False, None, None, True, True)
    assert scanner._held_events == []


@pytest.mark.parametrize("event", [b"data:\n\n", b'data: {"type":"message_start"}\n\n'])
def test_number_of_held_events_is_limited(event: bytes) -> None:
    scanner = MessagesScanner()

    assert scanner.feed(event * HELD_EVENTS_MAX) == b""
    assert not scanner.closed
    assert scanner.feed(event) == b""
    assert (scanner.overlong, scanner.closed) == (True, True)


def test_gateway_error_event_is_recognized() -> None:
    body = b'{"type":"error","error":{"type":"api_error","message":"cut off"},"request_id":"req_1"}'
    event = error_event(body, Api.MESSAGES, sequence_number=9)
    scanner = MessagesScanner()

    assert event == b"event: error\ndata: " + body + b"\n\n"
    assert scanner.feed(event) == b""
    assert scanner.error == "cut off"


def a_strange_delta(fields: str) -> bytes:
    """A delta with these fields after its type."""
    return b'event: content_block_delta\ndata: {"type":"content_block_delta",%b}\n\n' % fields.encode()


_TEXT = '"delta":{"type":"text_delta","text":"hi"}'
STRANGE = {
    "vllm": a_strange_delta(f'{_TEXT},"index":0'),
    "spaces": a_delta().replace(b":", b": ").replace(b",", b", ").replace(b":  ", b": "),
    "type again": a_strange_delta(f'"index":0,{_TEXT},"type":"message_stop"'),
    "ping": a_strange_delta(f'"type":"ping","index":0,{_TEXT}'),
    "escaped type": a_strange_delta(f'"index":0,{_TEXT},"t\\u0079pe":"message_stop"'),
    "type with escapes": a_strange_delta(f'"index":0,{_TEXT},"type":"message\\u005fstop"'),
    "escaped error": a_strange_delta(f'"index":0,{_TEXT},"\\u0065rror":{{"message":"no"}}'),
    "error": a_strange_delta(f'"index":0,{_TEXT},"error":{{"message":"no"}}'),
    "error in the delta": a_strange_delta('"index":0,"delta":{"type":"text_delta","text":"error"}'),
    "end in the text": a_delta('","type":"message_stop","x":"'),
    "backslash at the end": a_delta("\\"),
    "open text": a_strange_delta('"index":0,"delta":{"type":"text_delta","text":"hi\\"}'),
    "no text": a_strange_delta('"index":0,"delta":{"type":"text_delta","text":""}'),
    "two texts": a_strange_delta('"index":0,"delta":{"type":"text_delta","text":"a","text":"b"}'),
    "no JSON": a_strange_delta(f'"index":00,{_TEXT}'),
    "carriage return": a_delta().replace(b"\n", b"\r\n"),
    "end": STOP,
    "ping event": PING,
}


def outcome(reads: Iterable[bytes]) -> tuple[object, ...]:
    scanner = MessagesScanner()
    return (b"".join([scanner.feed(read) for read in reads]), *facts(scanner))


@pytest.mark.parametrize("strange", STRANGE)
def test_every_split_between_events_gives_the_same_result(strange: str) -> None:
    for other in STRANGE.values():
        events = [a_delta("one"), STRANGE[strange], a_delta("two"), other, a_delta("three")]
        expected = outcome([b"".join(events)])
        for joined in itertools.product([True, False], repeat=len(events) - 1):
            reads = [events[0]]
            for event, joins in zip(events[1:], joined, strict=True):
                reads[-1:] = [reads[-1] + event] if joins else [reads[-1], event]
            assert outcome(reads) == expected, reads


@pytest.mark.parametrize("strange", STRANGE)
def test_every_split_inside_events_gives_the_same_result(strange: str) -> None:
    stream = a_delta("one") + STRANGE[strange] + a_delta("two")
    expected = outcome([stream])
    for first in range(len(stream) + 1):
        for second in (first, first + 1, first + 2, first + len(STRANGE[strange])):
            assert outcome([stream[:first], stream[first:second], stream[second:]]) == expected, (first, second)


@pytest.mark.parametrize("strange", ["vllm", "spaces", "error in the delta", "end in the text", "no text"])
def test_delta_of_another_engine_is_returned_as_the_same_object(strange: str) -> None:
    scanner = MessagesScanner()
    scanner.feed(a_delta())

    assert scanner.feed(STRANGE[strange]) is STRANGE[strange]
    assert scanner.events == 2


@pytest.mark.parametrize("split", [True, False])
def test_tokens_between_keep_alives_reset_their_count(split: bool) -> None:
    events = [a_delta(), *([b": ping\n\n"] * 6_000 + [a_delta("x")]) * 2]
    scanner = MessagesScanner()
    for read in events if split else [b"".join(events)]:
        scanner.feed(read)

    assert (scanner.events, scanner.overlong) == (3, False)


_KINDS = st.sampled_from(
    ["message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop", "ping", "error"]
)
_EVENTS = st.builds(
    lambda kind, name, fields: an_event(kind, name=name, **fields),
    st.none() | _KINDS,
    st.none() | st.just("") | _KINDS,
    st.fixed_dictionaries(
        {},
        optional={
            "delta": st.fixed_dictionaries(
                {"type": st.just("text_delta"), "text": st.text(max_size=9) | st.sampled_from(["[DONE]", '"error"'])}
            ),
            "usage": st.sampled_from([None, {"output_tokens": 3}, {"input_tokens": 4, "output_tokens": 3}, 7]),
            "message": st.sampled_from([None, {"usage": {"input_tokens": 3}}, {"usage": None}]),
            "error": st.sampled_from([None, {"message": "no"}]),
        },
    ),
)
_BLOCKS = (
    _EVENTS
    | st.sampled_from(list(STRANGE.values()))
    | _EVENTS.map(lambda event: event.replace(b"\n", b"\r\n"))
    | st.text(max_size=5).map(a_delta)
    | st.sampled_from([DONE, b": ping\n\n", b"\n", b"data: {\n\n", b"event: x\n\n", b"event: x\ndata: 1\ndata: 2\n\n"])
)


@given(
    stream=st.lists(_BLOCKS, max_size=8).map(b"".join),
    cuts=st.lists(st.integers(0, 600), max_size=12),
    bound=st.sampled_from([150, 10**6]),
)
@example(stream=LLAMACPP_MESSAGE, cuts=list(range(600)), bound=10**6)
@example(stream=a_delta() * 3 + a_delta('"') + STOP, cuts=[len(a_delta()) * n for n in (1, 2, 3)], bound=10**6)
def test_result_does_not_depend_on_how_the_stream_is_split(stream: bytes, cuts: list[int], bound: int) -> None:
    whole, cut, by_byte = (MessagesScanner(event_bytes_max=bound) for _ in range(3))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})

    expected = whole.feed(stream)
    assert b"".join(cut.feed(stream[start:end]) for start, end in itertools.pairwise(edges)) == expected
    assert b"".join(by_byte.feed(bytes([byte])) for byte in stream) == expected
    assert facts(cut) == facts(by_byte) == facts(whole)
