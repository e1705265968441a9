"""Reads that consist of one complete chunk bypass the parser, with the same result."""

import asyncio
from collections.abc import Iterable
from typing import Any

import httptools
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.pipes import Pipe
from headgate.engines.chunk_sizes import CHUNKS, READ_BYTES_MAX
from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_connection import EngineConnection
from headgate.engines.http_engine import turn_budget
from headgate.ports.engine import EngineFault
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


async def received(reads: Iterable[bytes]) -> tuple[bytes | None, int, int]:
    """Returns the body, or None if it was truncated, how often the connection was freed, and the parsed reads."""
    freed = list[EngineConnection]()
    connection, pipe, body = EngineConnection(freed.append, lambda _: None, turn_budget()), Pipe(), bytearray()
    connection.connection_made(pipe)  # type: ignore[arg-type]
    asking = asyncio.ensure_future(connection.ask([b"question"], DIALECTS["vllm"]))
    await asyncio.sleep(0)
    connection._parser = parser = CountingParser(connection._parser)  # type: ignore[assignment]
    connection.data_received(HEAD)
    answer = await asking
    reading = asyncio.ensure_future(answer.stream_to(lambda data: bool(body.extend(data))))
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
    by_byte = asyncio.run(received(stream[at : at + 1] for at in range(len(stream))))

    assert by_frame[:2] == by_byte[:2]
