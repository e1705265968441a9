"""Client framing cannot block the event loop.

Endless trailers, one-byte chunks and bytes after a rejection all have a bounded cost. Work is counted in lines of
Python, in inputs of the parser and in its callbacks, so these tests do not depend on the speed of the machine. Only the
pure build can count lines.
"""

import asyncio
import re
import sys
from dataclasses import dataclass, field

import httptools
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuzz.pipes import Pipe
from headgate.edge.body_framing import CHUNKS_MIN, DISCARDED_CHUNKS_MAX, FRAMING_RUN_BYTES_MAX
from headgate.edge.client import BodyTooLarge, Client, ClientDisconnected
from headgate.edge.connection import Connection
from headgate.edge.connections import Connections
from headgate.edge.options import MIB, EdgeLimits
from headgate.edge.request_head import HeadBytes
from headgate.wire.turn_budget import READ_BYTES, REQUEST_NS, SLICE_BYTES, UNTIMED_BYTES_TOTAL, TurnBudget
from testing.builds import COUNTS_LINES, IS_COMPILED
from testing.executed_lines import count_executed_lines, split_into
from tests.security.raw import CHUNKED, LAST_CHUNK, chunk, head_of, request_of

HEAD = head_of(CHUNKED)
LIMITS = EdgeLimits(body_bytes_max=MIB)
PARTS = tuple(f"headgate.edge.{name}" for name in ("request_reader", "request_head", "body_framing", "client"))


@dataclass
class App:
    """Reads the body before responding, or responds immediately."""

    answers_at_once: bool = False
    bodies: list[bytes] = field(default_factory=list)

    async def __call__(self, client: Client) -> None:
        if self.answers_at_once:
            client.reply(401, [], b"no")
            return
        try:
            self.bodies.append(bytes(await client.body(MIB)))
        except (ClientDisconnected, BodyTooLarge):
            return
        client.reply(200, [], b"ok")


@dataclass
class Line:
    """One connection to an application, without a socket."""

    app: App
    limits: EdgeLimits = LIMITS
    turn_ns_max: int = 10**12

    def __post_init__(self) -> None:
        self.connections = Connections(self.app, self.limits, lambda _id, _refused: None)
        soon = asyncio.get_running_loop().call_soon
        self.connections.budget = TurnBudget(soon, lambda: 0, ns_max=self.turn_ns_max)
        self.pipe = Pipe()
        self.connection: Connection = self.connections()
        self.connection.connection_made(self.pipe)  # pyright: ignore[reportArgumentType]
        self.fed = 0

    async def send(self, *pieces: bytes) -> None:
        """Deliver each piece as one read, then run one iteration of the loop."""
        for piece in pieces:
            if self.pipe.closed:
                return
            self.connection.data_received(piece)
            self.fed += len(piece)
            await self.turns(2)

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    @property
    def status(self) -> int:
        return int(self.pipe.written[9:12]) if self.pipe.written else 0


@dataclass
class ParserWork:
    """Work of the HTTP parsers created since `parser_work` was called."""

    sizes: list[int] = field(default_factory=list)
    """Sizes of the inputs."""
    callbacks: list[str] = field(default_factory=list)
    """Methods of the connection that were called, except the one that appends a body piece to a list."""

    def clear(self) -> None:
        self.sizes.clear()
        self.callbacks.clear()


class WatchedCallbacks:
    """Connection as a parser sees it."""

    def __init__(self, connection: object, work: ParserWork) -> None:
        self._connection, self._work = connection, work

    def __getattr__(self, name: str) -> object:
        callback = getattr(self._connection, name)
        if isinstance(getattr(callback, "__self__", None), list):
            return callback  # `list.append` does not execute Python code.

        def counted(*values: bytes) -> None:
            self._work.callbacks.append(name)
            callback(*values)

        return counted


def parser_work(monkeypatch: pytest.MonkeyPatch) -> ParserWork:
    """Record the work of the parsers that are created from now on, in both builds."""
    work = ParserWork()

    class WatchedParser(httptools.HttpRequestParser):
        def __init__(self, protocol: object) -> None:
            super().__init__(WatchedCallbacks(protocol, work))

        def feed_data(self, data: bytes) -> None:
            work.sizes.append(len(data))
            super().feed_data(data)

    monkeypatch.setattr(httptools, "HttpRequestParser", WatchedParser)
    return work


@pytest.mark.parametrize("size", [1000, 65_536, 262_144])
async def test_endless_trailer_is_rejected_after_a_bounded_number_of_bytes(size: int) -> None:
    line = Line(App())
    await line.send(HEAD, chunk(b"a" * 500_000), b"0\r\nx: ")
    before = line.fed
    await line.send(*[b"b" * size] * (2 * MIB // size))

    assert (line.status, line.pipe.closed) == (400, True)
    assert line.fed - before <= max(FRAMING_RUN_BYTES_MAX, size) + size


async def test_number_of_trailers_is_bounded() -> None:
    line = Line(App())
    await line.send(HEAD + chunk(b"{}") + b"0\r\n" + b"a: b\r\n" * (line.limits.header_count_max + 2))

    assert (line.status, line.pipe.closed) == (400, True)


async def test_a_few_trailers_are_ignored() -> None:
    line = Line(App())
    await line.send(HEAD + chunk(b"{}") + b"0\r\n" + b"a: b\r\n" * 5 + b"\r\n")

    assert (line.status, line.app.bodies) == (200, [b"{}"])


@pytest.mark.parametrize("size", [3, 4096, 262_144])
async def test_body_in_one_byte_chunks_is_read_completely(size: int) -> None:
    body = bytes(range(256)) * 64
    line = Line(App())
    await line.send(
        *split_into(HEAD + b"".join(chunk(body[at : at + 1]) for at in range(len(body))) + LAST_CHUNK, size)
    )

    assert line.app.bodies == [body]


async def test_body_with_too_many_tiny_chunks_is_rejected() -> None:
    line = Line(App())
    await line.send(HEAD, *split_into(chunk(b"ab") * (CHUNKS_MIN * 2), 262_144))

    assert (line.status, line.pipe.closed) == (400, True)
    assert b"chunks of 16 bytes or more" in line.pipe.written


TINY_CHUNKS = (chunk(b"a"), chunk(b"ab"), b"1;x=y\r\na\r\n", b"1;" + b"e" * 50 + b"\r\na\r\n")


@pytest.mark.parametrize("unit", TINY_CHUNKS)
@pytest.mark.parametrize("size", [16, 1000, 262_144])
async def test_tiny_chunks_reach_the_parser_once_and_without_callbacks(
    unit: bytes, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = parser_work(monkeypatch)
    line = Line(App())
    await line.send(HEAD)
    assert work.callbacks[-1] == "on_headers_complete"
    work.clear()
    reads = split_into(unit * (60_000 // len(unit)), size)
    for read in reads:
        line.connection.data_received(read)

    assert work.callbacks == []
    assert sum(work.sizes) == sum(map(len, reads))
    assert len(work.sizes) <= sum(-(-len(read) // SLICE_BYTES) for read in reads)


@pytest.mark.parametrize("unit", TINY_CHUNKS)
@pytest.mark.parametrize("size", [16, 1000, 262_144])
async def test_work_for_tiny_chunks_is_linear_no_matter_how_reads_are_split(unit: bytes, size: int) -> None:
    async def work(length: int) -> int:
        line = Line(App())
        await line.send(HEAD)
        reads = split_into(unit * (length // len(unit)), size)
        return count_executed_lines(lambda: [line.connection.data_received(read) for read in reads], *PARTS)

    once, twice = await work(40_000), await work(80_000)
    assert twice <= 2.2 * once + 100
    assert twice <= 60 * (80_000 // min(size, SLICE_BYTES) + 2)  # Proportional to the number of reads, not chunks.


async def test_reads_are_deferred_when_the_turn_budget_is_used_up() -> None:
    line = Line(App(), turn_ns_max=0)
    body = b"a" * 20_000
    await line.send(HEAD)
    line.connection.data_received(b"".join(chunk(body[at : at + 1]) for at in range(len(body))) + LAST_CHUNK)
    assert not line.pipe.reading
    assert line.connections.budget.waiting_bytes > SLICE_BYTES
    await line.turns(4)
    assert not line.pipe.reading
    await line.turns(20)

    assert line.pipe.reading
    assert line.app.bodies == [body]


async def test_disconnect_releases_deferred_bytes() -> None:
    line = Line(App(), turn_ns_max=0)
    await line.send(HEAD)
    line.connection.data_received(chunk(b"a") * 20_000)
    line.connection.connection_lost(None)
    await line.turns(10)

    assert (line.connections.budget.waiting_bytes, line.app.bodies, len(line.connections)) == (0, [], 0)


async def test_chunks_after_a_rejection_are_discarded_without_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    work = parser_work(monkeypatch)
    line = Line(App(answers_at_once=True))
    await line.send(HEAD)
    assert line.status == 401
    work.clear()
    await line.send(*[chunk(b"a") * 10_000] * 60)

    assert 0 < sum(work.sizes) <= (DISCARDED_CHUNKS_MAX + 2) * len(chunk(b"a")) + SLICE_BYTES
    assert line.pipe.written_eof, "the client sees the end of the response"
    assert not line.pipe.closed
    await line.send(*[b"b" * MIB] * 5)
    assert line.pipe.closed


async def test_small_body_after_a_rejection_leaves_the_connection_usable() -> None:
    line = Line(App(answers_at_once=True))
    await line.send(HEAD, chunk(b"abc") * 100 + LAST_CHUNK, request_of(b"{}"))

    assert line.pipe.written.count(b"HTTP/1.1 401 ") == 2
    assert not line.pipe.closed


async def test_pipelined_requests_are_not_parsed_before_the_current_response(monkeypatch: pytest.MonkeyPatch) -> None:
    work = parser_work(monkeypatch)
    line = Line(App())
    await line.send(head_of(b"content-length: 10") + b"123")
    work.clear()
    line.connection.data_received(b"4567890" + request_of(b"") * 10)
    line.connection.data_received(request_of(b"") * 100)

    assert len(work.sizes) == 1
    line.connection.data_received(b"a" * line.limits.header_bytes_max)
    assert line.pipe.closed


async def test_pipelined_requests_are_discarded_with_little_work() -> None:
    line = Line(App())
    await line.send(head_of(b"content-length: 10") + b"1234567890" + request_of(b"") * 10)
    work = count_executed_lines(lambda: line.connection.data_received(request_of(b"") * 100), *PARTS)

    assert work < 20


# Many connections in one loop iteration


class Lines:
    """Many connections on one listener, with a stopped clock that counts its reads."""

    def __init__(self, count: int, *, turn_ns_max: int) -> None:
        self.looks = 0
        self.connections = Connections(App(), LIMITS, lambda _id, _refused: None)
        soon = asyncio.get_running_loop().call_soon
        self.connections.budget = TurnBudget(soon, self._clock, ns_max=turn_ns_max)
        self.pipes = [Pipe() for _ in range(count)]
        self.all = [self.connections() for _ in range(count)]
        for connection, pipe in zip(self.all, self.pipes, strict=True):
            connection.connection_made(pipe)  # pyright: ignore[reportArgumentType]

    def _clock(self) -> int:
        self.looks += 1
        return 0

    @property
    def begun(self) -> int:
        return len(self.connections.tasks)

    @property
    def answered(self) -> int:
        return sum(pipe.written.startswith(b"HTTP/1.1 200 ") for pipe in self.pipes)


@pytest.mark.parametrize("padding", [0, 5, 90])
async def test_short_reads_from_many_connections_are_deferred_beyond_their_shared_limit(padding: int) -> None:
    lines = Lines(300, turn_ns_max=0)
    request = head_of(b"content-length: 2", *[b"x: " + b"y" * 150] * padding) + b"{}"
    for connection in lines.all:
        connection.data_received(request)
    at_once = UNTIMED_BYTES_TOTAL // (len(request) + READ_BYTES)
    assert lines.begun == at_once
    assert [pipe.reading for pipe in lines.pipes] == [True] * at_once + [False] * (300 - at_once)
    await asyncio.sleep(0)
    assert lines.begun <= at_once + 1
    for _ in range(310):
        await asyncio.sleep(0)

    assert lines.answered == 300
    assert all(pipe.reading for pipe in lines.pipes)
    assert lines.connections.budget.waiting_bytes == 0


async def test_timed_turn_is_charged_for_the_work_of_each_request_it_starts() -> None:
    lines = Lines(300, turn_ns_max=5 * REQUEST_NS)
    request = request_of(b"{}")
    for connection in lines.all:
        connection.data_received(request)

    assert lines.begun == UNTIMED_BYTES_TOTAL // (len(request) + READ_BYTES) + 5
    for _ in range(100):
        await asyncio.sleep(0)
    assert lines.answered == 300


async def test_a_few_short_reads_are_parsed_without_reading_the_clock() -> None:
    lines = Lines(20, turn_ns_max=0)
    for connection in lines.all:
        connection.data_received(request_of(b"{}"))

    assert (lines.begun, lines.looks) == (20, 0)
    await asyncio.sleep(0)
    assert lines.answered == 20


async def test_reads_after_a_timed_turn_are_parsed_immediately() -> None:
    lines = Lines(100, turn_ns_max=10**12)
    for connection in lines.all:
        connection.data_received(request_of(b"{}"))
    for _ in range(4):
        await asyncio.sleep(0)
    assert lines.answered == 100
    looks = lines.looks
    assert looks
    lines.all[0].data_received(request_of(b"{}"))

    assert (lines.begun, lines.looks) == (1, looks)
    await asyncio.sleep(0)


# Request heads


UPGRADE = re.compile(rb"(?<=\n)upgrade:", re.IGNORECASE)
WORDS = (b"\n", b"\r\n", b"u", b"P", b"upgrade", b"UpGrade:", b"\nupgrade:", b"\nUPGRADE", b":", b"x", b" ")


@given(
    blank=st.text("\r\n", max_size=6).map(str.encode),
    words=st.lists(st.sampled_from(WORDS), max_size=30),
    cuts=st.lists(st.integers(1, 12), min_size=1, max_size=30),
)
@example(blank=b"\r\n\r\n", words=[b"x\r\n", b"UpGrade:"], cuts=[30])
@example(blank=b"\r\n\r\n", words=[b"x\r\n", b"UpGrade:"], cuts=[1])
@example(blank=b"", words=[b"\nUPGRADE", b":", b"\nupgrade:", b"\nupgrade:"], cuts=[1])
@example(blank=b"", words=[b"\r\n", b"\r\n", b"\r\n", b"UpGrade:"], cuts=[1])
def test_only_upgrade_headers_are_renamed_no_matter_how_reads_are_split(
    blank: bytes, words: list[bytes], cuts: list[int]
) -> None:
    head = blank + re.sub(rb"(\r\n)+", b"\r\n", b"".join(words)) + b"x\r\n\r\n"  # A blank line would end the head.
    taking, taken, at = HeadBytes(), b"", 0
    for size in (*cuts, len(head)):
        piece, at = head[at : at + size], at + size
        taken += taking.feed(piece, LIMITS) if piece else b""

    assert taken == UPGRADE.sub(b"x-upgrade-passed-over:", head)


@pytest.mark.skipif(IS_COMPILED, reason=COUNTS_LINES)
@pytest.mark.parametrize("line", [b"x-a: " + b"y" * 150, b"x:", b"Upgrade:", b"u", b"upgrad:"])
def test_long_head_is_searched_using_only_bytes_methods(line: bytes) -> None:
    head = head_of(*[line] * (14_000 // (len(line) + 2)))
    calls: list[object] = []

    def on_call(_frame: object, event: str, called: object) -> None:
        if event == "c_call":
            calls.append(getattr(called, "__self__", None))

    before = sys.getprofile()
    sys.setprofile(on_call)
    try:
        HeadBytes().feed(head, LIMITS)
    finally:
        sys.setprofile(before)
    searches = [each for each in calls if isinstance(each, bytes) or type(each).__module__ == "re"]
    assert searches
    assert all(isinstance(each, bytes) for each in searches)
    assert len(searches) <= 11 + head.count(b"Upgrade:")
