"""Tests that parsing an engine's stream takes linear work and buffers a bounded number of bytes."""

from collections.abc import Callable

import pytest

from headgate.model.ticket import Api
from headgate.wire.event_splitter import EventSplitter
from headgate.wire.kserve.generate_stream import ChunkTranslator, GeneratedText, TranslationContext
from headgate.wire.messages_scanner import MessagesScanner
from headgate.wire.responses_scanner import ResponsesScanner
from headgate.wire.sse import COMMENTS_MAX, EVENT_LINES_MAX, StreamScanner
from headgate.wire.stream_joiner import (
    CHOICES_MAX,
    EVENT_BYTES_MAX,
    FIELDS_MAX,
    PIECES_MAX,
    TOOL_CALLS_MAX,
    BrokenStream,
    StreamJoiner,
)
from testing.builds import IS_COMPILED
from testing.executed_lines import count_executed_lines, split_into

SETTING = TranslationContext(
    api=Api.CHAT, answer_id="a", created=1, model="m", text_output="text_output", prompt_bytes=4, output_tokens_max=9
)
MODULES = tuple(
    f"headgate.wire.{name}"
    for name in (
        "event_splitter",
        "holding_scanner",
        "kserve.generate_stream",
        "messages_scanner",
        "responses_scanner",
        "sse",
        "stream_joiner",
        "usage",
    )
)
FEEDS: dict[str, Callable[[], Callable[[bytes], object]]] = {
    "chat": lambda: StreamScanner(keep_usage_chunk=False, comments_max=10**9).feed,
    "responses": lambda: ResponsesScanner().feed,
    "messages": lambda: MessagesScanner().feed,
    "joined": lambda: StreamJoiner(Api.CHAT).feed,
    "triton": lambda: GeneratedText(SETTING).feed,
    "triton chunks": lambda: ChunkTranslator(SETTING).feed,
}
UNITS = {
    "comments": b":\n\n",
    "pings": b": ping\n\n",
    "endless line": b"a",
    "event without end": b"data: a\n",
    "carriage returns": b"\r",
    "line feeds and carriage returns": b"\n\r\n",
    "empty data": b"data:\n\n",
    "small events": b'data: {"text_output":"a","choices":[{"delta":{"content":"a"}}]}\n\n',
    "deltas": b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"a"}}\n\n',
    "errors in texts": b'data: {"text_output":"a","x":["error"]}\n\n',
    "usage in texts": b'data: {"usage":[],"usage":{}}\n\n',
}


@pytest.mark.parametrize("size", [1, 11, 1000, 10**6])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("feed", FEEDS)
def test_work_is_linear_no_matter_how_the_stream_is_split(feed: str, unit: str, size: int) -> None:
    def work(length: int) -> int:
        take, data = FEEDS[feed](), UNITS[unit] * (length // len(UNITS[unit]))
        reads = split_into(data, size)
        return count_executed_lines(lambda: [take(read) for read in reads], *MODULES)

    once, twice = work(1500), work(3000)
    assert twice <= 2.2 * once + 100
    assert twice <= 60 * 3000


@pytest.mark.parametrize("unit", [b"\n\n", b"\n\r\n", b":\n\n", b":\r\n\r\n", b"a\n\n"])
@pytest.mark.parametrize("feed", ["chat", "messages", "joined", "triton", "triton chunks"])
def test_tiny_events_without_data_are_not_handled_one_by_one(feed: str, unit: bytes) -> None:
    take, read = FEEDS[feed](), unit * (16_384 // len(unit))

    assert count_executed_lines(lambda: take(read), *MODULES) < 200


def test_comments_above_the_limit_are_not_searched_again() -> None:
    scanner, read = StreamScanner(keep_usage_chunk=False, comments_max=4_000), b"\n\n" * 8_192

    assert count_executed_lines(lambda: scanner.feed(read), *MODULES) < 9_000
    assert scanner.overlong


@pytest.mark.parametrize("size", [1, 5, 10**6])
def test_comments_up_to_the_limit_are_forwarded(size: int) -> None:
    scanner = StreamScanner(keep_usage_chunk=False, comments_max=9)

    assert b"".join(scanner.feed(read) for read in split_into(b":\n\n" * 20, size)) == b":\n\n" * 9
    assert scanner.overlong


@pytest.mark.skipif(IS_COMPILED, reason="replaces a constant of a compiled module")
@pytest.mark.parametrize("size", [1, 100])
def test_bytes_in_an_unfinished_event_are_not_searched_again(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = 0

    class Boundary:
        def search(self, buffer: bytearray, start: int) -> None:
            nonlocal searched
            searched += len(buffer) - start

    for module in ("sse", "event_splitter"):
        monkeypatch.setattr(f"headgate.wire.{module}.BOUNDARY", Boundary())
    scanner, cutter = StreamScanner(keep_usage_chunk=False), EventSplitter()
    for read in split_into(b"a" * 20_000, size):
        scanner.feed(read)
        list(cutter.split(read))

    assert searched <= 2 * 3 * 20_000


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_too_many_comments_close_the_stream(size: int) -> None:
    strict, patient = StreamScanner(keep_usage_chunk=False, comments_max=99), StreamScanner(keep_usage_chunk=False)
    for read in split_into(b":\n\n" * 200, size):
        strict.feed(read)
        patient.feed(read)

    assert (strict.overlong, strict.closed) == (True, True)
    assert (patient.overlong, patient.closed) == (False, False)


def test_comment_count_restarts_after_each_event() -> None:
    scanner = StreamScanner(keep_usage_chunk=False, comments_max=3)
    for _ in range(5):
        scanner.feed(b": ping\n\n" * 3 + b'data: {"choices":[]}\n\n')

    assert (scanner.events, scanner.closed) == (5, False)


def test_event_with_too_many_lines_is_not_split() -> None:
    event = b"data:\n" * (EVENT_LINES_MAX + 2) + b"\n"
    scanners = StreamScanner(keep_usage_chunk=False), ResponsesScanner()
    generated, joiner = GeneratedText(SETTING), StreamJoiner(Api.CHAT)
    assert [scanner.feed(event) for scanner in scanners] == [b"", b""]
    generated.feed(event)

    assert all(scanner.overlong for scanner in scanners)
    assert generated.error == "the engine sent an event that is too long"
    assert joiner.feed(event)
    with pytest.raises(BrokenStream, match="too long"):
        joiner.finish()


def test_too_many_comments_in_a_triton_stream_cause_an_error() -> None:
    generated = GeneratedText(SETTING)
    generated.feed(b":\n\n" * (COMMENTS_MAX + 1))

    assert generated.error == "the engine sent an event that is too long"


def test_buffered_triton_response_is_bounded() -> None:
    generated = GeneratedText(SETTING, bytes_max=1000)
    for _ in range(100):
        generated.feed(b'data: {"text_output":"aaaaaaaaaa"}\n\n')

    assert generated.error == "the engine's response is too long to assemble"
    assert generated.texts == []


def test_relayed_triton_stream_is_not_bounded() -> None:
    generated = GeneratedText(SETTING)
    for _ in range(100):
        generated.feed(b'data: {"text_output":"aaaaaaaaaa"}\n\n')

    assert (generated.error, len(generated.texts)) == (None, 100)


def chunk(choice: str) -> bytes:
    return b'data: {"id":"%b","choices":[%b]}\n\n' % (b"i" * 100, choice.encode())


BEYOND = {
    "choices": [chunk(f'{{"index":{index}}}') for index in range(CHOICES_MAX + 1)],
    "tool calls": [chunk(f'{{"delta":{{"tool_calls":[{{"index":{index}}}]}}}}') for index in range(TOOL_CALLS_MAX + 1)],
    "fields": [chunk(f'{{"delta":{{"x{index}":"a"}}}}') for index in range(FIELDS_MAX + 1)],
    "too long": [chunk('{"delta":{"content":"' + "a" * 1000 + '"}}')] * 40,
}


@pytest.mark.parametrize("what", BEYOND)
def test_assembled_response_is_bounded(what: str) -> None:
    joiner = StreamJoiner(Api.CHAT, assembled_bytes_max=30_000 if what == "too long" else 10**6)
    enough = [joiner.feed(event) for event in BEYOND[what]]

    assert enough[-1]
    with pytest.raises(BrokenStream, match=what):
        joiner.finish()


def test_fields_repeated_in_every_chunk_are_counted_once() -> None:
    joiner = StreamJoiner(Api.CHAT, assembled_bytes_max=2000)
    for _ in range(100):
        assert not joiner.feed(chunk('{"delta":{"content":"a"}}'))
    joiner.feed(b"data: [DONE]\n\n")

    assert b'"' + b"a" * 100 + b'"' in joiner.finish().body


def repeated(unit: bytes, count: int) -> bytes:
    return b",".join([unit] * count)


CROWDED = {
    "choices": b'{"choices":[%b]}' % repeated(b"{}", CHOICES_MAX + 1),
    "tool calls": b'{"choices":[{"delta":{"tool_calls":[%b]}}]}' % repeated(b"{}", TOOL_CALLS_MAX + 1),
}


@pytest.mark.parametrize("what", CROWDED)
def test_overlong_list_is_rejected_before_its_elements_are_read(what: str) -> None:
    joiner = StreamJoiner(Api.CHAT)
    lines = count_executed_lines(
        lambda: joiner.feed(b"data: " + CROWDED[what] + b"\n\n"), "headgate.wire.stream_joiner"
    )

    assert lines < 100
    with pytest.raises(BrokenStream, match=f"more than .* {what}"):
        joiner.finish()


@pytest.mark.parametrize("count", [CHOICES_MAX, 1])
def test_list_within_the_choice_limit_is_joined(count: int) -> None:
    joiner = StreamJoiner(Api.CHAT)
    choices = b",".join(b'{"index":%d,"delta":{"content":"a"}}' % index for index in range(count))

    assert not joiner.feed(b'data: {"choices":[%b]}\n\n' % choices)
    joiner.feed(b"data: [DONE]\n\n")
    assert joiner.finish().body.count(b'"content":"a"') == count


@pytest.mark.parametrize("unit", [b"[", b'{"a":', b'{"choices":[', b'"a":1,'])
def test_oversized_event_is_not_parsed(unit: bytes) -> None:
    joiner = StreamJoiner(Api.CHAT)
    event = b"data: {" + unit * (EVENT_BYTES_MAX // len(unit) + 1) + b"\n\n"
    lines = count_executed_lines(lambda: joiner.feed(event), "headgate.wire.stream_joiner")

    assert lines < 20
    with pytest.raises(BrokenStream, match="too long"):
        joiner.finish()


@pytest.mark.parametrize(
    "choice",
    [
        '{{"index":{0},"delta":{{"tool_calls":[{1}]}}}}',
        '{{"index":{0},"delta":{{{2}}}}}',
    ],
    ids=["tool calls", "null fields"],
)
def test_response_with_many_small_parts_is_bounded_in_total(choice: str) -> None:
    joiner = StreamJoiner(Api.CHAT)
    calls = ",".join(f'{{"index":{index}}}' for index in range(TOOL_CALLS_MAX))
    fields = ",".join(f'"x{index}":null' for index in range(FIELDS_MAX - 4))
    events = 0
    while not joiner.feed(chunk(choice.format(events, calls, fields))):
        events += 1

    assert events <= PIECES_MAX // (FIELDS_MAX - 4)
    with pytest.raises(BrokenStream, match="fields"):
        joiner.finish()
