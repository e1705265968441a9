"""Tests for scanning server-sent event streams."""

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate.model.ticket import Api
from headgate.model.usage import Usage, UsageSource
from headgate.wire import sse
from headgate.wire.responses_scanner import scanner_for
from headgate.wire.sse import EVENT_BYTES_MAX, StreamScanner, error_event
from tests.wire.recorded import (
    DONE,
    LLAMACPP_CHAT,
    LLAMACPP_CHAT_USAGE,
    LLAMACPP_COMPLETION,
    VLLM_CHAT,
    VLLM_CHAT_USAGE,
    VLLM_CONTINUOUS,
)

LLAMACPP_USAGE = Usage(36, 8, 35, UsageSource.ENGINE)
VLLM_USAGE = Usage(36, 8, 0, UsageSource.ENGINE)


def a_scanner(*, keep_usage_chunk: bool = False, event_bytes_max: int = EVENT_BYTES_MAX) -> StreamScanner:
    return StreamScanner(keep_usage_chunk=keep_usage_chunk, event_bytes_max=event_bytes_max)


def a_chunk(content: str = "hi", **more: object) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": None}
    return b"data: " + json.dumps({"id": "c", "choices": [choice], **more}).encode() + b"\n\n"


def test_plain_read_is_returned_as_the_same_object() -> None:
    scanner = a_scanner()
    read = a_chunk() + a_chunk()

    assert scanner.feed(read) is read
    assert scanner.events == 2


def test_null_usage_in_a_chunk_does_not_cause_parsing() -> None:
    scanner = a_scanner()
    read = a_chunk(usage=None)

    assert scanner.feed(read) is read


@pytest.mark.parametrize(
    ("stream", "usage_chunk", "usage"),
    [(LLAMACPP_CHAT, LLAMACPP_CHAT_USAGE, LLAMACPP_USAGE), (VLLM_CHAT, VLLM_CHAT_USAGE, VLLM_USAGE)],
)
def test_usage_chunk_is_read_and_dropped_unless_requested(stream: bytes, usage_chunk: bytes, usage: Usage) -> None:
    whole = stream + usage_chunk + DONE
    dropping, keeping = a_scanner(), a_scanner(keep_usage_chunk=True)

    assert dropping.feed(whole) == stream + DONE
    assert keeping.feed(whole) == whole
    for scanner in (dropping, keeping):
        assert scanner.usage == usage
        assert scanner.done
    assert keeping.events == dropping.events + 1 == stream.count(b"\n\n") + 1


@pytest.mark.parametrize(
    ("stream", "usage"),
    [
        (LLAMACPP_COMPLETION, Usage(2, 8, 1, UsageSource.ENGINE)),
        (VLLM_CONTINUOUS, Usage(36, 2, 0, UsageSource.ENGINE)),
    ],
)
def test_usage_in_a_chunk_with_choices_is_read_and_the_chunk_is_unchanged(stream: bytes, usage: Usage) -> None:
    scanner = a_scanner()

    assert scanner.feed(stream + DONE) == stream + DONE
    assert scanner.usage == usage
    assert scanner.events == 2


def test_unreadable_usage_chunk_is_dropped() -> None:
    scanner = a_scanner()

    assert scanner.feed(b'data: {"choices":[],"usage":{"prompt_tokens":"many"}}\n\n' + DONE) == DONE
    assert scanner.usage is None


def test_chunk_with_empty_choices_and_no_usage_is_passed_through() -> None:
    scanner = a_scanner()
    read = b'data: {"choices":[],"prompt_filter_results":[{"usage":1}]}\n\n'

    assert scanner.feed(read) == read


def test_event_is_held_until_it_is_complete() -> None:
    scanner = a_scanner()
    chunk = a_chunk()

    assert scanner.feed(chunk[:-1]) == b""
    assert scanner.feed(b"\n") == chunk
    assert scanner.events == 1


@pytest.mark.parametrize(
    ("event", "message"),
    [
        (b'{"error":{"message":"out of memory","type":"server_error","code":500}}', "out of memory"),
        (b'{"error":"out of memory"}', "out of memory"),
        (b'{"error":{"code":500}}', "the engine sent no error message"),
        (b'{"object":"error","message":"out of memory","code":500}', "out of memory"),
        (b'{"choices":[{"delta":{}}],"error":{"message":"out of memory"}}', "out of memory"),
    ],
)
def test_error_event_is_dropped_and_ends_the_stream(event: bytes, message: str) -> None:
    scanner = a_scanner()

    assert scanner.feed(a_chunk() + b"data: " + event + b"\n\n" + a_chunk() + DONE) == a_chunk()
    assert scanner.feed(a_chunk() + DONE) == b""
    assert scanner.error == message
    assert scanner.events == 1
    assert not scanner.done


def test_null_error_is_not_treated_as_an_error() -> None:
    scanner = a_scanner()

    assert scanner.feed(a_chunk(error=None)) == a_chunk(error=None)
    assert scanner.error is None


@pytest.mark.parametrize(
    "content",
    [
        "[DONE]",
        "data: [DONE]",
        'data: {"error":{"message":"no"}}',
        '"error"',
        '{"usage":{"prompt_tokens":1}}',
        "\n\n",
        "\r\n\r\ndata: [DONE]\r\n\r\n",
        'a backslash \\"error\\": {"usage": {',
    ],
)
def test_response_text_is_not_interpreted(content: str) -> None:
    scanner = a_scanner()
    read = a_chunk(content)

    assert scanner.feed(read) == read
    assert (scanner.events, scanner.done, scanner.error, scanner.usage) == (1, False, None, None)


def test_nested_keys_are_not_interpreted() -> None:
    scanner = a_scanner()
    inner = {"error": {"message": "no"}, "usage": {"prompt_tokens": 1}, "object": "error"}
    read = a_chunk(logprobs=inner)

    assert scanner.feed(read) == read
    assert (scanner.error, scanner.usage) == (None, None)


@pytest.mark.parametrize("broken", [b'data: {"error":\n\n', b'data: "error"\n\n', b'data: {"usage":{"a":\xff}}\n\n'])
def test_unparsable_event_is_passed_through(broken: bytes) -> None:
    scanner = a_scanner()

    assert scanner.feed(broken) == broken
    assert scanner.events == 1


def test_deeply_nested_event_is_passed_through() -> None:
    scanner = a_scanner()
    bomb = b'data: {"error":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n"

    assert scanner.feed(bomb) == bomb


@pytest.mark.parametrize("split", [True, False])
def test_tokens_between_comments_reset_their_count(split: bool) -> None:
    events = [a_chunk(), *([b": ping\n\n"] * 6_000 + [a_chunk("x")]) * 2]
    scanner = a_scanner()
    for read in events if split else [b"".join(events)]:
        scanner.feed(read)
    assert (scanner.events, scanner.overlong) == (3, False)

    scanner.feed(b": ping\n\n" * 10_000)
    assert not scanner.overlong
    scanner.feed(b": ping\n\n")
    assert scanner.overlong


@pytest.mark.parametrize("comment", [b": ping\n\n", b":\n\n", b": ping\r\n\r\n", b"retry: 5\n\n"])
def test_comment_is_passed_through_and_not_counted_as_an_event(comment: bytes) -> None:
    scanner = a_scanner()

    assert scanner.feed(comment + a_chunk() + comment) == comment + a_chunk() + comment
    assert scanner.events == 1


@pytest.mark.parametrize(
    "event",
    [
        b'data:{"error":{"message":"no"}}\n\n',
        b'data: {"error":\r\ndata: {"message":"no"}}\r\n\r\n',
        b'event: error\nid: 7\ndata: {"error"\ndata: :{"message":"no"}}\n\n',
        b': first a comment\ndata: {"error":{"message":"no"}}\n\n',
    ],
)
def test_data_field_may_omit_its_space_and_span_lines(event: bytes) -> None:
    scanner = a_scanner()

    assert scanner.feed(event) == b""
    assert scanner.error == "no"


@pytest.mark.parametrize("done", [b"data:[DONE]\n\n", b"data: [DONE]\r\n\r\n", b"data: [DONE] \n\n"])
def test_done_is_passed_through_but_nothing_after_it(done: bytes) -> None:
    scanner = a_scanner()

    assert scanner.feed(a_chunk() + done + a_chunk() + b'data: {"error":"late"}\n\n') == a_chunk() + done
    assert scanner.feed(a_chunk()) == b""
    assert scanner.done
    assert (scanner.events, scanner.error) == (1, None)


def test_overlong_event_closes_the_stream() -> None:
    for reads in ([b"data: " + b"x" * 93 + b"\n\n"], [b"data: " + b"x" * 93, b"\n\n"]):
        scanner = a_scanner(event_bytes_max=100)

        assert scanner.feed(a_chunk()) == a_chunk()
        assert [scanner.feed(read) for read in (*reads, a_chunk())] == [b""] * (len(reads) + 1)
        assert scanner.overlong
        assert not scanner._tail


def test_event_with_the_maximum_length_is_passed_through() -> None:
    scanner = a_scanner(event_bytes_max=100)
    longest = b"data: " + b"x" * 92 + b"\n\n"

    assert scanner.feed(longest[:99]) + scanner.feed(longest[99:]) == longest
    assert scanner.feed(longest) == longest
    assert not scanner.overlong


def test_gateway_error_event_is_recognized() -> None:
    scanner = a_scanner()

    assert scanner.feed(error_event(b'{"error":{"message":"stopped"}}')) == b""
    assert scanner.error == "stopped"


_ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\n\r\n", b"\n\n\n", b"\r\n\n"])
_TEXTS = st.text(max_size=20) | st.sampled_from(["[DONE]", '"error"', '{"usage":{}}', "\n\ndata: [DONE]\n\n", "\\"])
_USAGES = st.sampled_from([None, {}, {"prompt_tokens": 1, "completion_tokens": 2}, {"prompt_tokens": -1}])
_OBJECTS = st.builds(
    lambda text, choices, more: json.dumps({"choices": [{"delta": {"content": text}}] * choices} | more).encode(),
    _TEXTS,
    st.integers(0, 2),
    st.fixed_dictionaries(
        {},
        optional={
            "usage": _USAGES,
            "error": st.sampled_from([None, "no", {"message": "no"}]),
            "object": st.just("error"),
        },
    ),
)
_BLOCKS = st.builds(
    lambda prefix, payload, end: prefix + payload + end,
    st.sampled_from([b"data: ", b"data:", b": ", b"event: x\ndata: ", b"data: [\ndata:", b"\n", b"", b"data"]),
    _OBJECTS | st.sampled_from([b"[DONE]", b"", b"ping"]) | st.binary(max_size=8),
    _ENDS,
)
_STREAMS = st.lists(_BLOCKS, max_size=8).map(b"".join)


@given(
    stream=_STREAMS,
    cuts=st.lists(st.integers(0, 400), max_size=12),
    keep=st.booleans(),
    bound=st.sampled_from([60, 10**6]),
)
@example(stream=a_chunk() + VLLM_CHAT_USAGE + DONE, cuts=list(range(400)), keep=False, bound=10**6)
@example(stream=a_chunk().replace(b"\n", b"\r\n") + DONE, cuts=list(range(400)), keep=False, bound=10**6)
def test_result_does_not_depend_on_how_the_stream_is_split(
    stream: bytes, cuts: list[int], keep: bool, bound: int
) -> None:
    whole, cut, by_byte = (a_scanner(keep_usage_chunk=keep, event_bytes_max=bound) for _ in range(3))
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})

    expected = whole.feed(stream)
    assert b"".join(cut.feed(stream[start:end]) for start, end in itertools.pairwise(edges)) == expected
    assert b"".join(by_byte.feed(bytes([byte])) for byte in stream) == expected
    assert facts(cut) == facts(by_byte) == facts(whole)


def facts(scanner: StreamScanner) -> tuple[object, ...]:
    return scanner.events, scanner.done, scanner.error, scanner.usage, scanner.overlong, bytes(scanner._tail)


@given(stream=_STREAMS)
def test_output_consists_of_complete_events_in_order(stream: bytes) -> None:
    passed = a_scanner().feed(stream)

    remaining = iter(sse.BOUNDARY.split(stream))
    for event in sse.BOUNDARY.split(passed)[:-1]:
        assert event in remaining


PROGRESS = (
    b'data: {"choices":[{"delta":{"role":"assistant","content":null},"index":0}],"prompt_progress":{"total":9}}\n\n'
)
TOKEN = b'data: {"choices":[{"delta":{"content":"\\"prompt_progress\\""},"index":0}]}\n\n'


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_prompt_progress_events_are_dropped_and_not_counted(size: int) -> None:
    stream = PROGRESS * 3 + TOKEN + PROGRESS + b"data: [DONE]\n\n"
    scanner = StreamScanner(keep_usage_chunk=False, drop_progress=True)
    passed = [scanner.feed(stream[at : at + size]) for at in range(0, len(stream), size)]

    assert b"".join(passed) == TOKEN + b"data: [DONE]\n\n"
    assert (scanner.events, scanner.done) == (1, True)


def test_prompt_progress_is_passed_through_if_the_client_requested_it() -> None:
    scanner = StreamScanner(keep_usage_chunk=False)

    assert scanner.feed(PROGRESS + TOKEN) == PROGRESS + TOKEN
    assert scanner.events == 2


_PIECES = st.sampled_from(
    [b"error", b"usage", b"prompt_progress", b"[DONE]", b'"', b"\\", b":", b"{", b"}", b"\n", b"\r", b",", b" hi", b""]
)


@given(
    texts=st.lists(st.lists(_PIECES, max_size=6).map(b"".join), min_size=1, max_size=12),
    tail=st.sampled_from([b'"}}]}\n\n', b'"},"usage":null}]}\n\n', b'"}],"usage" : {}}\n\n', b'":{}}]}\n\n', b'"']),
    drop_progress=st.booleans(),
)
@example(texts=[b"hi", b"usage"], tail=b'":{}}]}\n\n', drop_progress=False)
@example(texts=[b"hi", b'","error":"no'], tail=b'"}}]}\n\n', drop_progress=False)
@example(texts=[b"hi", b'\n\ndata:[DONE]\n\ndata:"'], tail=b'"}}]}\n\n', drop_progress=False)
@example(texts=[b"hi", b"prompt_progress"], tail=b'":1}\n\n', drop_progress=True)
def test_events_that_differ_only_in_their_text_are_scanned_like_any_other(
    texts: list[bytes], tail: bytes, drop_progress: bool
) -> None:
    learning, plain, in_chunks = (StreamScanner(keep_usage_chunk=False, drop_progress=drop_progress) for _ in range(3))

    for text in texts:
        read = b'data: {"choices":[{"delta":{"content":"' + text + tail
        plain._shape_bytes = sse._NO_SHAPE
        passed = plain.feed(read)
        assert learning.feed(read) == passed
        if in_chunks.passes_chunk(in_chunk(read)):
            assert passed == read
        else:
            assert in_chunks.feed(read) == passed
        assert facts(learning) == facts(in_chunks) == facts(plain)


def in_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def test_chunks_of_events_that_differ_only_in_their_text_pass() -> None:
    scanner = a_scanner()
    scanner.feed(a_chunk("hi"))
    texts = ["one", "two", "a longer text", "errors", "x" * 300, "é", "one"]

    assert all(scanner.passes_chunk(in_chunk(a_chunk(text))) for text in texts)
    assert scanner.events == 1 + len(texts)


@pytest.mark.parametrize(
    "chunk",
    [
        in_chunk(a_chunk("one"))[:-1] + b" ",
        b"0" + in_chunk(a_chunk("one")),
        in_chunk(a_chunk("one")).replace(b"\r\n", b";x\r\n", 1),
        in_chunk(a_chunk("one") + b" "),
        in_chunk(a_chunk("one")) + b"\r\n",
        b"1" + in_chunk(a_chunk("one"))[1:],
        in_chunk(a_chunk("one", created=1)),
        in_chunk(a_chunk("[DONE]")),
        in_chunk(a_chunk('x","y":"z')),
        in_chunk(a_chunk("x" * 1024)),
        in_chunk(DONE),
        b"",
        b"\r\n",
    ],
)
def test_other_chunks_do_not_pass_and_are_not_counted(chunk: bytes) -> None:
    scanner = a_scanner()
    scanner.feed(a_chunk("hi"))

    assert scanner.passes_chunk(in_chunk(a_chunk("one")))
    assert not scanner.passes_chunk(chunk)
    assert scanner.events == 2


def test_chunk_does_not_pass_before_an_event_or_while_one_is_incomplete() -> None:
    scanner, chunk = a_scanner(), in_chunk(a_chunk("one"))

    assert not scanner.passes_chunk(chunk)
    scanner.feed(a_chunk("hi"))
    assert scanner.passes_chunk(chunk)
    scanner.feed(b"data: {")
    assert not scanner.passes_chunk(chunk)
    assert scanner.feed(b"}\n\n") == b"data: {}\n\n"
    assert scanner.passes_chunk(chunk)
    scanner.feed(DONE)
    assert not scanner.passes_chunk(chunk)
    assert scanner.events == 4


def test_chunk_longer_than_the_maximum_event_does_not_pass() -> None:
    longest = a_chunk("x" * 20)
    scanner = a_scanner(event_bytes_max=len(longest))
    scanner.feed(a_chunk("hi"))

    assert scanner.passes_chunk(in_chunk(a_chunk("one")))
    assert not scanner.passes_chunk(in_chunk(longest + b" "))
    assert not scanner.passes_chunk(in_chunk(a_chunk("x" * 21)))
    scanner.feed(a_chunk("x" * 21))
    assert scanner.overlong


def test_chunk_of_a_responses_stream_does_not_pass() -> None:
    scanner, event = scanner_for(Api.RESPONSES, keep_usage_chunk=True), b'data: {"type":"x","text":"hi"}\n\n'

    assert scanner.feed(event) == event
    assert not scanner.passes_chunk(in_chunk(event))


def test_scanner_learns_the_shape_of_tokens_once() -> None:
    scanner = a_scanner()
    reads = [a_chunk(f"word {number}") for number in range(100)]

    assert all(scanner.feed(read) is read for read in reads)
    assert (scanner.events, scanner._shapes_learned) == (100, 1)


def test_scanner_learns_at_most_one_shape_per_four_events() -> None:
    scanner = a_scanner()
    for number in range(100):
        scanner.feed(a_chunk(created=number))

    assert scanner._shapes_learned <= 25
