"""A TCP proxy between the gateway and an engine that runs in the test's event loop and injects network faults.

    async with FaultProxy(engine.port) as proxy:
        proxy.fault = Fault(only=b"POST", reset_after=200)    # for every request from now on
        ...                                                   # reach the engine at proxy.url
        await proxy.refuse()                                  # refuse connections until `listen` is called

The proxy treats client bytes that follow a response as the next request, so it counts bytes per response even on a
keep-alive connection. It forwards half-closes and resets as such. It does not corrupt data: the receiver gets a prefix
of the bytes that were sent.
"""

import asyncio
import contextlib
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from typing import Literal, Self

from testing.ports import reserve_port

PIECE_BYTES = 64 * 1024
PACE_S = 0.02
"""Interval at which a bandwidth limit releases bytes, in seconds."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Fault in one request and its response. With the defaults, both pass through."""

    only: bytes = b""
    """Prefix of the requests that the fault affects. Other requests pass through."""
    lost: Literal["question", "answer"] | None = None
    """Direction in which all bytes are dropped silently. The other direction stays open."""
    silent_after: int | None = None
    """Number of response bytes after which nothing more arrives, not even the end of the connection."""
    cut_after: int | None = None
    """Number of response bytes after which the proxy closes the connection on both sides."""
    reset_after: int | None = None
    """Number of response bytes after which the proxy resets the connection on both sides."""
    half_close_after: int | None = None
    """Number of response bytes after which the client sees a half-close. The engine can still send and does not notice.
    """
    delay_s: float = 0.0
    """Delay for each response chunk, in seconds."""
    bytes_per_s: float | None = None
    """Bandwidth of the response, in bytes per second."""


class FaultProxy:
    def __init__(self, port: int) -> None:
        self.fault = Fault()
        """Fault that applies to each new request."""
        self.port = 0
        self.connections_open = 0
        self.connections_total = 0
        self.questions: Counter[bytes] = Counter()
        """Number of requests by first word, which is the method in HTTP."""
        self.question = b""
        """Bytes of the last request that have arrived. Probes (GET) do not count."""
        self.answer = b""
        """Bytes that the engine has sent in response to the last request, delivered or not. Probes (GET) do not count.
        """
        self._engine_port = port
        self._server: asyncio.Server | None = None
        self._kept_port: socket.socket | None = None
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._kept_port = reserve_port()
        self.port = self._kept_port.getsockname()[1]
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_listening()
        self.break_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)
        if self._kept_port is not None:
            self._kept_port.close()

    async def listen(self) -> None:
        """Accept connections. After `stop_listening`, listen on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop_listening(self) -> None:
        """Refuse new connections. Existing connections stay open."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def break_all(self) -> None:
        """Reset every open connection, as a rebooted machine would."""
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
            # The proxy is closing or the engine is unreachable. In both cases the client sees a reset.
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


class _FaultTriggered(Exception):
    """Raised when a fault has ended the connection."""


class _Link:
    """A client connection and the matching connection to the engine."""

    def __init__(self, proxy: FaultProxy, client: _Side, engine: _Side) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_engine, self._to_engine = engine
        for writer in (self._to_client, self._to_engine):
            # With this limit, `drain` waits until the kernel has all bytes, so a reset does not discard any.
            writer.transport.set_write_buffer_limits(high=0)
        self._fault = Fault()
        self._answered = True
        """Whether the engine has sent bytes since the last request. If so, the next client bytes are a new request."""
        self._passed = 0
        self._is_probe = False

    async def run(self) -> None:
        """Forward bytes until both directions have ended or a fault ends the connection."""
        pumps = [asyncio.create_task(self._forward_requests()), asyncio.create_task(self._forward_responses())]
        try:
            await asyncio.gather(*pumps)
            self._end(self._to_client)
            self._end(self._to_engine)
        except (_FaultTriggered, OSError):
            self.reset()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    def reset(self) -> None:
        _reset(self._to_client)
        _reset(self._to_engine)

    async def _forward_requests(self) -> None:
        while data := await self._from_client.read(PIECE_BYTES):
            if self._answered:
                self._begin(data)
            if not self._is_probe:
                self._proxy.question += data
            if self._fault.lost != "question":
                self._to_engine.write(data)
                await self._to_engine.drain()
        _end_direction(self._to_engine)

    def _begin(self, data: bytes) -> None:
        self._answered, self._passed = False, 0
        self._proxy.questions[data.partition(b" ")[0]] += 1
        self._is_probe = data.startswith(b"GET ")
        if not self._is_probe:
            self._proxy.question = self._proxy.answer = b""
        wanted = self._proxy.fault
        self._fault = wanted if data.startswith(wanted.only) else Fault()

    async def _forward_responses(self) -> None:
        while data := await self._from_engine.read(PIECE_BYTES):
            self._answered = True
            if not self._is_probe:
                self._proxy.answer += data
            await self._forward(data)
        fault = self._fault
        if fault.lost != "answer" and not self._reached(fault.silent_after):
            _end_direction(self._to_client)

    async def _forward(self, data: bytes) -> None:
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
            raise _FaultTriggered
        if self._reached(fault.cut_after):
            self._end(self._to_client)
            self._end(self._to_engine)
            raise _FaultTriggered

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
    # A peer that is already gone does not need the half-close.
    with contextlib.suppress(OSError):
        if not writer.transport.is_closing():
            writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Reset the connection. A connection that is already closed stays closed."""
    ours: socket.socket | None = writer.get_extra_info("socket")
    if ours is not None and ours.fileno() != -1 and not writer.transport.is_closing():
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
