"""Engine framing cannot block the event loop, and leftover bytes are not used as a response to another request."""

import asyncio
from collections.abc import Iterator

import pytest

from fuzz.pipes import Pipe
from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_connection import FRAMING_BYTES_MAX, UNTIMED_BYTES, EngineConnection
from headgate.engines.http_response import READ_BUFFER_BYTES, HttpResponse
from headgate.ports.engine import EngineFault
from headgate.wire.turn_budget import READ_BYTES, SLICE_BYTES, UNTIMED_BYTES_TOTAL, TurnBudget
from testing.executed_lines import count_executed_lines, split_into
from tests.security.raw import LAST_CHUNK, chunk

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Line:
    """One engine connection without a socket. The clock does not advance, so reads wait only if `ns_max` is 0."""

    def __init__(self, *, ns_max: int = 1, waiting_bytes_max: int = 10**9, budget: TurnBudget | None = None) -> None:
        soon = asyncio.get_running_loop().call_soon
        self.budget = budget or TurnBudget(soon, lambda: 0, ns_max=ns_max, waiting_bytes_max=waiting_bytes_max)
        self.freed: list[EngineConnection] = []
        self.connection = EngineConnection(self.freed.append, lambda _: None, self.budget)
        self.pipe = Pipe()
        self.connection.connection_made(self.pipe)  # pyright: ignore[reportArgumentType]

    async def ask(self) -> HttpResponse:
        asking = asyncio.ensure_future(self.connection.ask([b"question"], DIALECTS["vllm"]))
        await asyncio.sleep(0)
        self.connection.data_received(HEAD)
        return await asking

    def feed(self, reads: Iterator[bytes]) -> int:
        """Feed reads until the connection is closed. Return the number of bytes it accepted."""
        taken = 0
        for read in reads:
            if self.pipe.closed:
                break
            self.connection.data_received(read)
            taken += len(read)
        return taken


class CountedLine(Line):
    """Connection that counts the executed lines."""

    lines = 0

    def feed(self, reads: Iterator[bytes]) -> int:
        taken: list[int] = []
        feed = super().feed
        self.lines += count_executed_lines(
            lambda: taken.append(feed(reads)),
            "headgate.engines.engine_connection",
            "headgate.engines.http_response",
            "headgate.wire.turn_budget",
        )
        return taken[0]


async def read_all(answer: HttpResponse) -> bytes:
    body = b""
    while data := await answer.read():
        body += data
    return body


@pytest.mark.parametrize("size", [1000, 4096, 262_144])
@pytest.mark.parametrize(
    ("beginning", "piece"),
    [(b"0\r\nx: ", b"a"), (b"0\r\n", b"a: b\r\n"), (b"5;", b"a")],
    ids=["one trailer", "many trailers", "a chunk extension"],
)
async def test_endless_framing_aborts_the_response(beginning: bytes, piece: bytes, size: int) -> None:
    line = Line()
    answer = await line.ask()
    line.connection.data_received(chunk(b"{}") + beginning)
    taken = line.feed(iter([(piece * size)[:size]] * 500))

    assert line.pipe.closed
    assert taken <= FRAMING_BYTES_MAX + SLICE_BYTES + 2 * size
    with pytest.raises(EngineFault, match="trailers exceed"):
        await read_all(answer)
    assert line.freed == []


@pytest.mark.parametrize("length", [2000, 4000])
@pytest.mark.parametrize("size", [5, 1000, 262_144])
async def test_one_byte_chunks_are_forwarded_once_per_slice(size: int, length: int) -> None:
    """Only the chunks in a turn's first short reads, which are not parsed in slices, are forwarded separately."""
    forwarded, reads = await forward_one_byte_chunks(Line(), length, size)

    slices = sum(-(-len(read) // SLICE_BYTES) for read in reads)
    separate = UNTIMED_BYTES_TOTAL // len(chunk(b"a")) if size <= UNTIMED_BYTES else 0
    assert b"".join(forwarded) == b"ab" * (length // 2)
    assert len(forwarded) <= slices + separate + 1


@pytest.mark.parametrize("size", [5, 1000, 262_144])
async def test_work_for_one_byte_chunks_is_linear(size: int) -> None:
    async def work(length: int) -> int:
        line = CountedLine()
        await forward_one_byte_chunks(line, length, size)
        return line.lines

    once, twice = await work(2000), await work(4000)
    assert twice <= 2.2 * once + 100


async def forward_one_byte_chunks(line: Line, length: int, size: int) -> tuple[list[bytes], list[bytes]]:
    """Feed a response in reads of `size` bytes. Return what was forwarded, and the reads."""
    answer = await line.ask()
    forwarded: list[bytes] = []
    pouring = asyncio.ensure_future(answer.stream_to(lambda data: forwarded.append(data) or False))
    await asyncio.sleep(0)
    body = b"ab" * (length // 2)
    reads = split_into(b"".join(chunk(bytes([each])) for each in body) + LAST_CHUNK, size)
    line.feed(iter(reads))
    await pouring
    assert line.freed == [line.connection]
    return forwarded, reads


async def test_reads_are_deferred_when_the_turn_budget_is_used_up() -> None:
    line = Line(ns_max=0)
    answer = await line.ask()
    line.connection.data_received(b"".join([chunk(b"a")] * 10_000) + LAST_CHUNK)
    assert not line.pipe.reading
    assert line.budget.waiting_bytes > SLICE_BYTES

    assert await read_all(answer) == b"a" * 10_000
    assert line.pipe.reading
    assert line.freed == [line.connection]


async def test_paused_response_is_not_read_until_it_is_resumed() -> None:
    line = Line(ns_max=0)
    answer = await line.ask()
    line.connection.data_received(b"".join([chunk(b"a")] * 4000))
    answer.pause()
    for _ in range(8):
        await asyncio.sleep(0)
    assert (line.budget.waiting_bytes, line.pipe.reading) == (0, False)
    answer.resume()

    assert line.pipe.reading


@pytest.mark.parametrize("behind", [b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx", b"x"])
@pytest.mark.parametrize("padding", [0, SLICE_BYTES])
@pytest.mark.parametrize("ns_max", [0, 1])
async def test_connection_with_bytes_after_its_response_is_not_reused(behind: bytes, padding: int, ns_max: int) -> None:
    line = Line(ns_max=ns_max)
    answer = await line.ask()
    body = chunk(b"a" * (SLICE_BYTES - 20 + padding % 7)) + chunk(b"b" * padding if padding else b"b")
    data = body + LAST_CHUNK
    # The response ends at the end of a slice, so the bytes after it are in the next slice.
    filler = -(len(data) + len(chunk(b"c" * 100))) % SLICE_BYTES
    data = chunk(b"c" * 100) + chunk(b"d" * max(1, filler - 8)) + data + behind * 3000
    line.connection.data_received(data)
    for _ in range(20):
        await asyncio.sleep(0)

    assert line.pipe.closed
    assert not line.connection.is_open
    with pytest.raises(EngineFault):
        await line.connection.ask([b"question"], DIALECTS["vllm"])
    await read_all(answer)


async def test_connection_is_closed_when_its_deferred_bytes_exceed_the_limit() -> None:
    line = Line(ns_max=0, waiting_bytes_max=1000)
    answer = await line.ask()
    line.connection.data_received(b"".join([chunk(b"a")] * 10_000))

    assert line.pipe.closed
    with pytest.raises(EngineFault, match="truncated: the gateway has too many unparsed bytes"):
        await read_all(answer)


async def test_long_head_within_its_limit_is_not_counted_as_framing() -> None:
    line = Line()
    asking = asyncio.ensure_future(line.connection.ask([b"question"], DIALECTS["vllm"]))
    await asyncio.sleep(0)
    padding = b"".join(b"x-%d: %b\r\n" % (number, b"a" * 1000) for number in range(50))
    line.connection.data_received(HEAD[:-2] + padding + b"\r\n" + chunk(b"a"))
    line.connection.data_received(chunk(b"b") + LAST_CHUNK)

    assert await read_all(await asking) == b"ab"


async def test_buffered_bytes_are_forwarded_over_several_turns() -> None:
    line = Line()
    answer = await line.ask()
    body = bytes(range(256)) * 1000
    line.connection.data_received(chunk(body) + LAST_CHUNK)
    taken = bytearray()

    def take(data: bytes) -> bool:
        taken.extend(data)
        return False

    pouring = asyncio.ensure_future(answer.stream_to(take))
    await asyncio.sleep(0)
    assert 0 < len(taken) <= READ_BUFFER_BYTES + SLICE_BYTES
    await pouring

    assert bytes(taken) == body


async def test_short_reads_from_many_engines_are_deferred_beyond_their_shared_limit() -> None:
    first = Line(ns_max=0)
    lines = [first, *(Line(budget=first.budget) for _ in range(59))]
    answers: list[HttpResponse] = []
    for line in lines:
        answers.append(await line.ask())
        for _ in range(3):
            await asyncio.sleep(0)
    first.budget.untimed_bytes = 0
    read = chunk(b":\n\n" * 1350)
    assert len(read) <= UNTIMED_BYTES
    for line in lines:
        line.connection.data_received(read)
    at_once = UNTIMED_BYTES_TOTAL // (len(read) + READ_BYTES)
    assert [line.pipe.reading for line in lines] == [True] * at_once + [False] * (60 - at_once)
    for _ in range(70):
        await asyncio.sleep(0)
    assert all(line.pipe.reading for line in lines)
    for line in lines:
        line.connection.data_received(LAST_CHUNK)

    assert [await read_all(answer) for answer in answers] == [b":\n\n" * 1350] * 60
    assert all(line.freed == [line.connection] for line in lines)


async def test_unsolicited_bytes_are_not_kept_for_the_next_request() -> None:
    line = Line(ns_max=0)
    line.budget.untimed_bytes = UNTIMED_BYTES_TOTAL
    line.connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx")

    assert (line.pipe.closed, line.budget.waiting_bytes) == (True, 0)
    with pytest.raises(EngineFault):
        await line.connection.ask([b"question"], DIALECTS["vllm"])


async def test_reading_resumes_after_being_paused_in_the_last_slice_of_a_response() -> None:
    line = Line()
    answer = await line.ask()
    for _ in range(5):
        line.connection.data_received(chunk(b"a" * (SLICE_BYTES - 100)))
    assert not line.pipe.reading, "reading pauses while the response is not consumed"
    line.connection.data_received(chunk(b"a" * UNTIMED_BYTES) + LAST_CHUNK)  # Some transports deliver one more read.

    assert line.freed == [line.connection]
    assert line.pipe.reading
    assert len(await read_all(answer)) > READ_BUFFER_BYTES
