"""HTTP response from an engine, whose body arrives over its connection.

A reader either awaits each read, or passes a function that is called with the bytes as they arrive.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from headgate.engines.dialect import Dialect
from headgate.ports.engine import EngineFault

READ_BUFFER_BYTES: Final = 64 * 1024
"""Maximum bytes buffered for a slow reader of one response, plus one read.

When it is reached, reading from the socket pauses.
"""
DRAIN_S_MAX: Final = 1.0
"""Maximum wait for the response to end cleanly after all relevant bytes have arrived, in seconds.

A clean end allows the connection to be reused.
"""


class ResponseConnection(Protocol):
    """Connection that carries a response."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def abort(self) -> None: ...


class HttpResponse:
    """Response whose head has arrived."""

    __slots__ = (
        "_buffer",
        "_buffered_bytes",
        "_chunk_sink",
        "_connection",
        "_ended",
        "_fault",
        "_paused",
        "_sink",
        "_sink_done",
        "_waiter",
        "body_headers",
        "content_type",
        "dialect",
        "headers",
        "is_framed",
        "reports_progress",
        "secret",
        "status",
        "take",
        "take_chunk",
    )
    usage_estimated = False

    def __init__(self, connection: ResponseConnection, status: int, content_type: str) -> None:
        self.status = status
        self.content_type = content_type
        self.reports_progress = False
        self.secret = ""
        self.body_headers: tuple[tuple[bytes, bytes], ...] = ()
        self.is_framed = True
        self.dialect: Dialect
        self.headers: Mapping[bytes, bytes]
        """Headers with names in lower case. Set only if the connection keeps them."""
        self._connection: ResponseConnection | None = connection
        """Connection for this response.

        None once the response has ended, when the connection may serve another request.
        """
        self._buffer: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._sink: Callable[[bytes], bool] | None = None
        self.take: Callable[[bytes], bool] | None = None
        """The sink, while it can receive bytes directly: it is set and not paused, and no bytes are buffered."""
        self._chunk_sink: Callable[[bytes], bool] | None = None
        self.take_chunk: Callable[[bytes], bool] | None = None
        """The chunk sink, if there is one, under the same conditions."""
        self._paused = False
        self._sink_done = False
        """Whether the receiving function has reported that it needs no more bytes."""
        self._ended = False
        self._fault: EngineFault | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        while not self._buffer:
            if self._ended:
                if self._fault is not None:
                    raise self._fault
                return b""
            await self._wait()
        data = self._buffer.popleft()
        self._buffered_bytes -= len(data)
        if self._connection is not None and not self._paused:
            self._connection.resume()
        return data

    def take_body(self) -> bytes | None:
        if not self._ended or self._fault is not None or len(self._buffer) != 1:
            return None
        self._buffered_bytes = 0
        return self._buffer.popleft()

    async def stream_to(self, sink: Callable[[bytes], bool], chunk_sink: Callable[[bytes], bool] | None = None) -> None:
        self._sink, self._chunk_sink = sink, chunk_sink
        self._flush()
        while not self._sink_done and (self._buffer or not self._ended):
            await self._wait()
        if not self._sink_done and self._fault is not None:
            raise self._fault

    def pause(self) -> None:
        self._paused = True
        self.take = self.take_chunk = None
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._paused = False
        self._flush()

    def is_request_error(self, body: bytes) -> bool:
        return self.dialect.is_request_error(self.status, body)

    def drain(self) -> None:
        self._sink, self._chunk_sink, self._paused = _discard, None, False
        self._buffer.clear()
        self.take, self.take_chunk = _discard, None
        if self._connection is not None:
            self._connection.resume()
            asyncio.get_running_loop().call_later(DRAIN_S_MAX, self._abort)

    def close(self) -> None:
        if self._sink is not _discard:
            self._abort()

    def _abort(self) -> None:
        self._sink = self.take = self._chunk_sink = self.take_chunk = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.abort()

    # Called by the connection

    def feed(self, data: bytes) -> None:
        take = self.take
        if take is not None:
            if take(data):
                self.finish_sink()
            return
        self._buffer.append(data)
        self._buffered_bytes += len(data)
        if self._buffered_bytes > READ_BUFFER_BYTES and self._connection is not None:
            self._connection.pause()
        if self._sink is None:
            self._wake()

    def end(self, fault: EngineFault | None) -> None:
        self._ended = True
        self._fault = fault
        self._connection = None
        self._wake()

    def finish_sink(self) -> None:
        """Called when the sink has returned that it needs no more bytes."""
        self._sink_done = True
        self._sink = self.take = self._chunk_sink = self.take_chunk = None
        self._wake()

    def _flush(self) -> None:
        """Passes on buffered bytes, up to a limit per event loop iteration, and schedules the rest."""
        handed = 0
        while self._buffer and self._sink is not None and not self._paused:
            if handed >= READ_BUFFER_BYTES:
                asyncio.get_running_loop().call_soon(self._flush)
                return
            data = self._buffer.popleft()
            handed += len(data)
            self._buffered_bytes -= len(data)
            if self._sink(data):
                self.finish_sink()
        if self._paused or self._buffer:
            self.take = self.take_chunk = None
        else:
            self.take, self.take_chunk = self._sink, self._chunk_sink
        if self._ended and not self._buffer:
            self._wake()
        elif self._connection is not None and not self._paused:
            self._connection.resume()

    async def _wait(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _discard(_: bytes) -> bool:
    return False
