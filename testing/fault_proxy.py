"""What if the network between gateway and engine fails? A TCP proxy in the test's own loop, with faults to switch on.

    async with FaultProxy(engine.port) as proxy:
        proxy.fault = Fault(only=b"POST", reset_after=200)    # for every question from here on
        ...                                                   # ask the engine at proxy.url
        await proxy.refuse()                                  # nobody listens any more; `listen` mends it

It knows one thing of what it carries: what a client sends after something has come back is the next question, so that
bytes are counted anew for each answer of a connection that is kept. It passes on how either side ends: an end of one
direction as such, a reset as a reset. It corrupts nothing: what arrives is a beginning of what was sent.
"""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Literal, Self

from testing.ports import keep_port

PIECE_BYTES = 64 * 1024
PACE_S = 0.02
"""How often a limited bandwidth gives its share."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls one question and its answer. The defaults let both pass."""

    only: bytes = b""
    """It befalls questions that begin with these bytes; others pass."""
    lost: Literal["question", "answer"] | None = None
    """What is sent that way goes nowhere, and nobody is told. The other way is open."""
    silent_after: int | None = None
    """After so many bytes of the answer nothing comes, not even an end."""
    cut_after: int | None = None
    """After so many bytes of the answer both sides see the connection end."""
    reset_after: int | None = None
    """After so many bytes of the answer both sides see the connection reset."""
    half_close_after: int | None = None
    """After so many bytes of the answer the client sees an end; the engine is still listened to, and told nothing."""
    delay_s: float = 0.0
    """Each piece of the answer is held back so long."""
    bytes_per_s: float | None = None
    """What the answer may take of the line."""


class FaultProxy:
    def __init__(self, port: int) -> None:
        self.fault = Fault()
        """What befalls each question that begins from here on."""
        self.port = 0
        self.connections_open = 0
        self.connections_total = 0
        self.questions: Counter[bytes] = Counter()
        """How many there were, by their first word: for HTTP the method."""
        self.answer = b""
        """What the engine has sent so far to the last question, whatever of it arrived; probes (GET) do not count."""
        self._engine_port = port
        self._server: asyncio.Server | None = None
        self._kept_port: socket.socket | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._kept_port = keep_port()
        self.port = self._kept_port.getsockname()[1]
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        self.break_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)
        if self._kept_port is not None:
            self._kept_port.close()

    async def listen(self) -> None:
        """Accepts connections, after `refuse` on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """New connections are refused; open ones stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def break_all(self) -> None:
        """Resets every open connection, as a machine does that has just been started anew."""
        for link in self._links:
            link.reset()

    async def until_closed(self, *, seconds_max: float = 60.0) -> None:
        async with asyncio.timeout(seconds_max):
            while self.connections_open:
                await asyncio.sleep(0.005)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections_open += 1
        self.connections_total += 1
        try:
            await self._join(reader, writer)
        except (asyncio.CancelledError, OSError):
            # The proxy is being closed, or the engine could not be reached; either way the client sees a reset.
            _reset(writer)
        finally:
            self.connections_open -= 1
            self._tasks.discard(task)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_connection("127.0.0.1", self._engine_port)
        link = _Link(self, (reader, writer), (engine_reader, engine_writer))
        self._links.add(link)
        try:
            await link.run()
        finally:
            link.reset()
            self._links.discard(link)


_Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Struck(Exception):
    """A fault has ended the connection."""


class _Link:
    """One connection of a client and its twin to the engine."""

    def __init__(self, proxy: FaultProxy, client: _Side, engine: _Side) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_engine, self._to_engine = engine
        for writer in (self._to_client, self._to_engine):
            # Then `drain` means that the system has it all, so that a reset takes nothing back.
            writer.transport.set_write_buffer_limits(high=0)
        self._fault = Fault()
        self._answered = True
        """Whether something has come back since the last question, so that the next bytes are another one."""
        self._passed = 0
        self._is_probe = False

    async def run(self) -> None:
        """Until both directions have ended, or one of them by force."""
        pumps = [asyncio.create_task(self._carry_questions()), asyncio.create_task(self._carry_answers())]
        try:
            await asyncio.gather(*pumps)
            self._end(self._to_client)
            self._end(self._to_engine)
        except (_Struck, OSError):
            self.reset()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def reset(self) -> None:
        _reset(self._to_client)
        _reset(self._to_engine)

    async def _carry_questions(self) -> None:
        while data := await self._from_client.read(PIECE_BYTES):
            if self._answered:
                self._begin(data)
            if self._fault.lost != "question":
                self._to_engine.write(data)
                await self._to_engine.drain()
        _end_direction(self._to_engine)

    def _begin(self, data: bytes) -> None:
        self._answered, self._passed = False, 0
        self._proxy.questions[data.partition(b" ")[0]] += 1
        self._is_probe = data.startswith(b"GET ")
        if not self._is_probe:
            self._proxy.answer = b""
        wanted = self._proxy.fault
        self._fault = wanted if data.startswith(wanted.only) else Fault()

    async def _carry_answers(self) -> None:
        while data := await self._from_engine.read(PIECE_BYTES):
            self._answered = True
            if not self._is_probe:
                self._proxy.answer += data
            await self._pass_on(data)
        fault = self._fault
        if fault.lost != "answer" and not self._reached(fault.silent_after):
            _end_direction(self._to_client)

    async def _pass_on(self, data: bytes) -> None:
        fault = self._fault
        if fault.lost == "answer" or self._reached(fault.silent_after) or self._reached(fault.half_close_after):
            return
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        limits = (fault.silent_after, fault.half_close_after, fault.cut_after, fault.reset_after)
        room = min((limit for limit in limits if limit is not None), default=None)
        await self._send(data if room is None else data[: room - self._passed])
        if self._reached(fault.half_close_after):
            _end_direction(self._to_client)
        if self._reached(fault.reset_after):
            self.reset()
            raise _Struck
        if self._reached(fault.cut_after):
            self._end(self._to_client)
            self._end(self._to_engine)
            raise _Struck

    def _reached(self, limit: int | None) -> bool:
        return limit is not None and self._passed >= limit

    async def _send(self, data: bytes) -> None:
        rate = self._fault.bytes_per_s
        step = len(data) if rate is None else max(1, int(rate * PACE_S))
        for start in range(0, len(data), max(1, step)):
            piece = data[start : start + step]
            if rate is not None:
                await asyncio.sleep(len(piece) / rate)
            self._to_client.write(piece)
            await self._to_client.drain()
            self._passed += len(piece)

    @staticmethod
    def _end(writer: asyncio.StreamWriter) -> None:
        writer.close()


def _end_direction(writer: asyncio.StreamWriter) -> None:
    # Whoever is gone altogether needs not be told.
    with contextlib.suppress(OSError):
        if not writer.transport.is_closing():
            writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Breaks the connection off, so that its other end sees a reset; one that is closed already stays as it is."""
    ours: socket.socket | None = writer.get_extra_info("socket")
    if ours is not None and ours.fileno() != -1 and not writer.transport.is_closing():
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
