"""Parsing an engine's stream takes linear work, however the stream is split, and buffers a bounded number of bytes."""

from collections.abc import Callable

import pytest

from headgate.model.ticket import Api
from headgate.wire.joining import (
    CHOICES_MAX,
    EVENT_BYTES_MAX,
    FIELDS_MAX,
    PIECES_MAX,
    TOOL_CALLS_MAX,
    BrokenStream,
    Joiner,
)
from headgate.wire.kserve.events import ChunkTranslator, Generated, Setting
from headgate.wire.responses import ResponsesScanner
from headgate.wire.sse import COMMENTS_MAX, EVENT_LINES_MAX, EventCutter, StreamScanner
from testing.work import cut_into, lines_run

SETTING = Setting(
    api=Api.CHAT, answer_id="a", created=1, model="m", text_output="text_output", prompt_bytes=4, output_tokens_max=9
)
MODULES = tuple(f"headgate.wire.{name}" for name in ("sse", "responses", "joining", "kserve.events", "usage"))
FEEDS: dict[str, Callable[[], Callable[[bytes], object]]] = {
    "chat": lambda: StreamScanner(keep_usage_chunk=False, comments_max=10**9).feed,
    "responses": lambda: ResponsesScanner().feed,
    "joined": lambda: Joiner(Api.CHAT).take,
    "triton": lambda: Generated(SETTING).feed,
    "triton chunks": lambda: ChunkTranslator(SETTING).feed,
}
UNITS = {
    "comments": b":\n\n",
    "pings": b": ping\n\n",
    "one endless line": b"a",
    "lines without an end": b"data: a\n",
    "carriage returns": b"\r",
    "line feeds and carriage returns": b"\n\r\n",
    "empty data": b"data:\n\n",
    "small events": b'data: {"text_output":"a","choices":[{"delta":{"content":"a"}}]}\n\n',
    "errors in texts": b'data: {"text_output":"a","x":["error"]}\n\n',
    "usage in texts": b'data: {"usage":[],"usage":{}}\n\n',
}


@pytest.mark.parametrize("size", [1, 11, 1000, 10**6])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("feed", FEEDS)
def test_work_is_linear_however_the_stream_is_split(feed: str, unit: str, size: int) -> None:
    def work(length: int) -> int:
        take, data = FEEDS[feed](), UNITS[unit] * (length // len(UNITS[unit]))
        reads = cut_into(data, size)
        return lines_run(lambda: [take(read) for read in reads], *MODULES)

    once, twice = work(1500), work(3000)
    assert twice <= 2.2 * once + 100
    assert twice <= 60 * 3000


@pytest.mark.parametrize("size", [1, 100])
def test_bytes_of_an_unfinished_event_are_not_searched_again(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    searched = 0

    class Boundary:
        def search(self, buffer: bytearray, start: int) -> None:
            nonlocal searched
            searched += len(buffer) - start

    monkeypatch.setattr("headgate.wire.sse._BOUNDARY", Boundary())
    scanner, cutter = StreamScanner(keep_usage_chunk=False), EventCutter()
    for read in cut_into(b"a" * 20_000, size):
        scanner.feed(read)
        list(cutter.cut(read))

    assert searched <= 2 * 3 * 20_000


@pytest.mark.parametrize("size", [1, 7, 10**6])
def test_too_many_comments_close_the_stream(size: int) -> None:
    strict, patient = StreamScanner(keep_usage_chunk=False, comments_max=99), StreamScanner(keep_usage_chunk=False)
    for read in cut_into(b":\n\n" * 200, size):
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
    generated, joiner = Generated(SETTING), Joiner(Api.CHAT)
    assert [scanner.feed(event) for scanner in scanners] == [b"", b""]
    generated.feed(event)

    assert all(scanner.overlong for scanner in scanners)
    assert generated.error == "the engine sent an event without end"
    assert joiner.take(event)
    with pytest.raises(BrokenStream, match="without end"):
        joiner.conclude()


def test_too_many_comments_in_a_triton_stream_are_an_error() -> None:
    generated = Generated(SETTING)
    generated.feed(b":\n\n" * (COMMENTS_MAX + 1))

    assert generated.error == "the engine sent an event without end"


def test_buffered_triton_response_is_bounded() -> None:
    generated = Generated(SETTING, bytes_max=1000)
    for _ in range(100):
        generated.feed(b'data: {"text_output":"aaaaaaaaaa"}\n\n')

    assert generated.error == "the engine sent an answer that is too long to assemble"
    assert generated.texts == []


def test_relayed_triton_stream_is_not_bounded() -> None:
    generated = Generated(SETTING)
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
def test_assembled_answer_has_bounded_size(what: str) -> None:
    joiner = Joiner(Api.CHAT, assembled_bytes_max=30_000 if what == "too long" else 10**6)
    enough = [joiner.take(event) for event in BEYOND[what]]

    assert enough[-1]
    with pytest.raises(BrokenStream, match=what):
        joiner.conclude()


def test_fields_that_every_chunk_repeats_count_once() -> None:
    joiner = Joiner(Api.CHAT, assembled_bytes_max=2000)
    for _ in range(100):
        assert not joiner.take(chunk('{"delta":{"content":"a"}}'))
    joiner.take(b"data: [DONE]\n\n")

    assert b'"' + b"a" * 100 + b'"' in joiner.conclude().body


def repeated(unit: bytes, count: int) -> bytes:
    return b",".join([unit] * count)


CROWDED = {
    "choices": b'{"choices":[%b]}' % repeated(b"{}", CHOICES_MAX + 1),
    "tool calls": b'{"choices":[{"delta":{"tool_calls":[%b]}}]}' % repeated(b"{}", TOOL_CALLS_MAX + 1),
}


@pytest.mark.parametrize("what", CROWDED)
def test_overlong_list_is_rejected_before_its_elements_are_read(what: str) -> None:
    joiner = Joiner(Api.CHAT)
    lines = lines_run(lambda: joiner.take(b"data: " + CROWDED[what] + b"\n\n"), "headgate.wire.joining")

    assert lines < 100
    with pytest.raises(BrokenStream, match=f"more than .* {what}"):
        joiner.conclude()


@pytest.mark.parametrize("count", [CHOICES_MAX, 1])
def test_list_within_the_choice_limit_is_joined(count: int) -> None:
    joiner = Joiner(Api.CHAT)
    choices = b",".join(b'{"index":%d,"delta":{"content":"a"}}' % index for index in range(count))

    assert not joiner.take(b'data: {"choices":[%b]}\n\n' % choices)
    joiner.take(b"data: [DONE]\n\n")
    assert joiner.conclude().body.count(b'"content":"a"') == count


@pytest.mark.parametrize("unit", [b"[", b'{"a":', b'{"choices":[', b'"a":1,'])
def test_oversized_event_is_not_parsed(unit: bytes) -> None:
    joiner = Joiner(Api.CHAT)
    event = b"data: {" + unit * (EVENT_BYTES_MAX // len(unit) + 1) + b"\n\n"
    lines = lines_run(lambda: joiner.take(event), "headgate.wire.joining")

    assert lines < 20
    with pytest.raises(BrokenStream, match="without end"):
        joiner.conclude()


@pytest.mark.parametrize(
    "choice",
    [
        '{{"index":{0},"delta":{{"tool_calls":[{1}]}}}}',
        '{{"index":{0},"delta":{{{2}}}}}',
    ],
    ids=["tool calls", "fields without a value"],
)
def test_response_of_many_small_parts_is_bounded_in_total(choice: str) -> None:
    joiner = Joiner(Api.CHAT)
    calls = ",".join(f'{{"index":{index}}}' for index in range(TOOL_CALLS_MAX))
    fields = ",".join(f'"x{index}":null' for index in range(FIELDS_MAX - 4))
    events = 0
    while not joiner.take(chunk(choice.format(events, calls, fields))):
        events += 1

    assert events <= PIECES_MAX // (FIELDS_MAX - 4)
    with pytest.raises(BrokenStream, match="fields"):
        joiner.conclude()
