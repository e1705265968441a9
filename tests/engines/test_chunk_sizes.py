"""Reads that consist of one complete chunk bypass the parser, with the same result."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.pipes import Pipe
from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_connection import EngineConnection
from headgate.engines.http_engine import turn_budget
from headgate.engines.http_response import HttpResponse
from headgate.ports.engine import EngineFault
from headgate.wire.chunk_sizes import CHUNKS, READ_BYTES_MAX
from headgate.wire.turn_budget import UNTIMED_BYTES_TOTAL

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def a_chunk(body: bytes, size: bytes = b"") -> bytes:
    return (size or b"%x" % len(body)) + b"\r\n" + body + b"\r\n"


class CountingParser:
    """Parser that counts the reads it received."""

    def __init__(self, parser: httptools.HttpResponseParser) -> None:
        self._parser = parser
        self.reads = 0

    def feed_data(self, data: bytes) -> None:
        self.reads += 1
        self._parser.feed_data(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


def body_of(read: bytes) -> bytes | None:
    """Returns the body of a chunk. None if the read is anything else."""
    line, _, rest = read.partition(b"\r\n")
    body = rest[:-2]
    return body if body and line == b"%x" % len(body) and rest.endswith(b"\r\n") else None


async def received(reads: Iterable[bytes], *, in_chunks: bool = False) -> tuple[bytes | None, int, int]:
    """Returns the body, or None if it was truncated, how often the connection was freed, and the parsed reads.

    With `in_chunks`, the reader also accepts chunks with an odd size.
    """
    freed = list[EngineConnection]()
    connection, pipe, body = EngineConnection(freed.append, lambda _: None, turn_budget()), Pipe(), bytearray()
    connection.connection_made(pipe)  # type: ignore[arg-type]
    asking = asyncio.ensure_future(connection.ask([b"question"], DIALECTS["vllm"]))
    await asyncio.sleep(0)
    connection._parser = parser = CountingParser(connection._parser)  # type: ignore[assignment]
    connection.data_received(HEAD)
    answer = await asking

    def take_chunk(read: bytes) -> bool:
        part = body_of(read)
        accepted = part is not None and len(part) % 2 == 1
        if part is not None and accepted:
            body.extend(part)
        return accepted

    sink = take_chunk if in_chunks else None
    reading = asyncio.ensure_future(answer.stream_to(lambda data: bool(body.extend(data)), sink))
    await asyncio.sleep(0)
    for read in reads:
        if not pipe.closed:
            connection.data_received(read)
        await asyncio.sleep(0)
    if not pipe.closed:
        connection.connection_lost(None)
    try:
        await reading
    except EngineFault:
        return None, len(freed), parser.reads
    return bytes(body), len(freed), parser.reads


def test_table_has_the_size_line_of_each_chunk_by_its_length() -> None:
    lengths = set[int]()
    for size in range(1, READ_BYTES_MAX):
        read = a_chunk(b"x" * size)
        if len(read) <= READ_BYTES_MAX:
            lengths.add(len(read))
            assert CHUNKS[len(read)] == (b"%x\r\n" % size, size)
    assert {length for length, (_, size) in enumerate(CHUNKS) if size >= 0} == lengths


async def test_complete_chunks_bypass_the_parser_after_the_first_one() -> None:
    bodies = [b"x" * size for size in (1, 15, 16, 17, 255, 256, 700)]
    body, freed, parsed = await received([*(a_chunk(each) for each in bodies), LAST])

    assert (body, freed) == (b"".join(bodies), 1)
    assert parsed == 3  # The head, the first chunk and the last one.


async def test_complete_chunks_bypass_the_parser_even_if_the_turn_is_timed() -> None:
    chunks = [a_chunk(b"x" * 700)] * (2 * UNTIMED_BYTES_TOTAL // 700)
    body, freed, parsed = await received([*chunks, LAST])

    assert (body, freed) == (b"x" * 700 * len(chunks), 1)
    assert parsed == 3


_SIZES = st.sampled_from([b"", b"", b"", b"3", b"03", b"A", b"0", b"3;x=y", b" 3", b"+3", b"0x3", b"3\r\nabc\r\n3"])
_FRAMES = st.builds(
    a_chunk, st.sampled_from([b"abc", b"x" * 10, b"\r\n", b"3\r\nabc\r\n", b"3\r\n", b"3", b"y" * 300]), _SIZES
)


@given(frames=st.lists(_FRAMES | st.sampled_from([b"\r\n", b"3\r\n", b"a", LAST]), max_size=8))
@example(frames=[a_chunk(b"abc"), a_chunk(b"abc") + b"3\r\n", a_chunk(b"\r\n3", b"abc\r\n3")])
@example(frames=[a_chunk(b"abc"), b"3", a_chunk(b"abc"), LAST])
@example(frames=[a_chunk(b"abc"), b"c\r\n", a_chunk(b"abc"), a_chunk(b"abc"), LAST])
def test_result_is_that_of_the_parser(frames: list[bytes]) -> None:
    stream = b"".join(frames)

    by_frame = asyncio.run(received(frames))
    by_chunk = asyncio.run(received(frames, in_chunks=True))
    by_byte = asyncio.run(received(stream[at : at + 1] for at in range(len(stream))))

    assert by_frame[:2] == by_chunk[:2] == by_byte[:2]


async def an_answer() -> tuple[EngineConnection, HttpResponse]:
    connection = EngineConnection(lambda _: None, lambda _: None, turn_budget())
    connection.connection_made(Pipe())  # type: ignore[arg-type]
    asking = asyncio.ensure_future(connection.ask([b"question"], DIALECTS["vllm"]))
    await asyncio.sleep(0)
    connection.data_received(HEAD)
    return connection, await asking


class Sinks:
    """Receivers of a response that accept each complete chunk and any body."""

    def __init__(self) -> None:
        self.received = list[bytes]()

    def take(self, data: bytes) -> bool:
        self.received.append(data)
        return data == b"end"

    def take_chunk(self, read: bytes) -> bool:
        if body_of(read) is None:
            return False
        self.received.append(read)
        return True


async def test_chunk_sink_receives_complete_reads_unless_the_response_is_paused() -> None:
    sinks = Sinks()
    connection, answer = await an_answer()
    reading = asyncio.ensure_future(answer.stream_to(sinks.take, sinks.take_chunk))
    await asyncio.sleep(0)
    connection.data_received(a_chunk(b"first"))
    connection.data_received(a_chunk(b"second"))
    answer.pause()
    connection.data_received(a_chunk(b"third"))
    assert sinks.received == [b"first", a_chunk(b"second")]
    answer.resume()
    connection.data_received(a_chunk(b"fourth"))
    connection.data_received(a_chunk(b"fifth") + a_chunk(b"sixth"))
    connection.data_received(LAST)
    async with asyncio.timeout(10):
        await reading

    assert sinks.received[2:] == [b"third", a_chunk(b"fourth"), b"fifth", b"sixth"]


@pytest.mark.parametrize("release", [HttpResponse.drain, HttpResponse.close])
async def test_chunk_sink_receives_nothing_after_the_response_is_released(
    release: Callable[[HttpResponse], None],
) -> None:
    sinks = Sinks()
    connection, answer = await an_answer()
    reading = asyncio.ensure_future(answer.stream_to(sinks.take, sinks.take_chunk))
    await asyncio.sleep(0)
    for body in (b"first", b"second"):
        connection.data_received(a_chunk(body))
    connection.data_received(a_chunk(b"third") + a_chunk(b"end"))
    async with asyncio.timeout(10):
        await reading
    release(answer)
    connection.data_received(a_chunk(b"late"))

    assert sinks.received == [b"first", a_chunk(b"second"), b"third", b"end"]
