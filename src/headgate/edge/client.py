"""One HTTP request and its response, independent of the transport.

The application awaits the request body and then starts, writes and finishes the response. Writing never waits: bytes
that the client has not read stay in its connection's write buffer. While that buffer is full, the application must
pause the source of the response.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from headgate.model.units import TenantId
from headgate.wire.request_body import LARGE_BYTES

Headers = list[tuple[bytes, bytes]]


class BodyTooLarge(Exception):
    """The request body exceeds the size limit."""


class BodyMemoryExceeded(Exception):
    """The bodies of all open requests together have reached their memory limit."""


class ClientDisconnected(Exception):
    """The client closed its connection before its request was complete."""


class ClientTransport(Protocol):
    """Client connection that carries the response."""

    @property
    def blocked(self) -> bool:
        """Whether the write buffer is above its limit because the client reads too slowly."""
        ...

    @property
    def peer(self) -> str:
        """Remote address of the connection: the client or a proxy in front of it."""
        ...

    def mark_authenticated(self, tenant: TenantId | None = None, /) -> bool:
        """Counts the connection toward the tenant's share instead of the unauthenticated connections.

        Returns False if the tenant has already used its share of connections. The connection then closes after the
        response.
        """
        ...

    def pause_body(self) -> None:
        """Stops reading from the client until `resume_body`."""
        ...

    def resume_body(self) -> None: ...

    def send_continue(self) -> None:
        """Sends `100 Continue` if the client waits for it before sending the body."""
        ...

    def send_head(self, status: int, headers: Headers) -> None: ...

    def send(self, data: bytes) -> None: ...

    def send_end(self, data: bytes) -> None: ...

    def chunk_writer(self) -> Callable[[bytes], None] | None:
        """Returns a function that sends an HTTP chunk as it is. None if the response is not sent in chunks."""
        ...


class Client:
    __slots__ = (
        "_body_received",
        "_complete",
        "_no_room",
        "_on_disconnect",
        "_reserve",
        "_too_large",
        "_transport",
        "_waiter",
        "began_at",
        "body_bytes_max",
        "closes",
        "common_headers",
        "disconnected",
        "finished",
        "finished_at",
        "headers",
        "method",
        "on_blocked",
        "on_unblocked",
        "path",
        "query",
        "received",
        "received_at",
        "received_bytes",
        "started",
        "status",
        "task",
        "write",
    )

    def __init__(  # noqa: PLR0917 (keyword arguments make the call slower)
        self,
        wire: ClientTransport,
        method: str,
        path: bytes,
        headers: Mapping[bytes, bytes],
        body_bytes_max: int,
        began_at: int = 0,
        query: bytes = b"",
    ) -> None:
        self._transport = wire
        self.began_at = began_at or time.monotonic_ns()
        """Time at which the first byte of the request arrived. All times here are monotonic, in nanoseconds."""
        self.received_at = 0
        """Time at which the last byte of the body arrived. 0 until then."""
        self.finished_at = 0
        self.status = 0
        """HTTP status of the response. 0 until the response starts."""
        self.write = wire.send
        """Writes part of the response body, between `start` and `finish`."""
        self.method = method
        self.path = path
        """Path as received, so that authorization and routing see exactly the same bytes."""
        self.query = query
        """Query string as received. Not used by the inference API."""
        self.headers = headers
        self.body_bytes_max = body_bytes_max
        self.common_headers: Headers = []
        """Headers that are added to every response."""
        self.closes = False
        """Whether the connection is closed after the response."""
        self.task: asyncio.Task[None] | None = None
        """Task that serves the request. None if the listener did not start it."""
        self.started = False
        """Whether the response head has been sent."""
        self.finished = False
        """Whether the end of the response has been sent."""
        self.disconnected = False
        """Whether the client disconnected before the response ended."""
        self.on_blocked: Callable[[], None] | None = None
        """Called when the write buffer exceeds its limit because the client reads too slowly."""
        self.on_unblocked: Callable[[], None] | None = None
        """Called when the client has read enough that writing can resume."""
        self._on_disconnect: Callable[[], None] | None = None
        self._body_received: bytes | bytearray = b""
        """The body received so far, in one buffer, because many small pieces would use much more memory."""
        # Plain attributes, because each of them is read several times per request.
        self.received_bytes = 0
        """Body bytes received so far."""
        self.received = False
        """Whether the body is complete or has been rejected."""
        self._too_large = False
        self._reserve: Callable[[int], bool] | None = None
        self._no_room = False
        self._complete = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def blocked(self) -> bool:
        """Whether the write buffer is above its limit because the client reads too slowly."""
        return self._transport.blocked

    # The request

    @property
    def peer(self) -> str:
        """Remote address of the connection: the client or a proxy in front of it."""
        return self._transport.peer

    def mark_authenticated(self, tenant: TenantId | None = None, /) -> bool:
        """Marks the client as authenticated. Returns False if the tenant may not open another connection."""
        return self._transport.mark_authenticated(tenant)

    async def body(self, size_max: int) -> bytes | bytearray:
        while not self.received and not self.disconnected:
            self._transport.send_continue()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self.received_body(size_max)

    def received_body(self, size_max: int) -> bytes | bytearray:
        """Returns the body after its last byte has arrived or the client has disconnected."""
        if self._no_room:
            raise BodyMemoryExceeded
        if self._too_large or self.received_bytes > size_max:
            raise BodyTooLarge
        if not self._complete:
            raise ClientDisconnected
        if self.received_bytes <= LARGE_BYTES and not isinstance(self._body_received, bytes):
            # Copying a large body would block the event loop.
            self._body_received = bytes(self._body_received)
        return self._body_received

    def limit_body(self, reserve: Callable[[int], bool]) -> None:
        """Calls `reserve` with the bytes received so far, then with the size of each further piece of the body.

        The body is rejected when `reserve` returns False.
        """
        self._reserve = reserve
        if not reserve(self.received_bytes):
            self.reject_body()

    @property
    def body_rejected(self) -> bool:
        """Whether the body has been dropped because the bodies of open requests use too much memory."""
        return self._no_room

    def hold_body(self, reserve: Callable[[int], bool]) -> None:
        """Stops reading the body until `resume_body`. `reserve` limits the bytes that have already been read."""
        self._transport.pause_body()
        self.limit_body(reserve)

    def resume_body(self) -> None:
        self._reserve = None
        self._transport.resume_body()

    def release(self) -> None:
        """Drops the body and the references to the exchange when the request ends.

        Connection, client and exchange refer to each other. Without this call the body would stay in memory until the
        next garbage collection, although its bytes are already counted as free.
        """
        self._body_received = b""
        self._reserve = self._on_disconnect = self.on_blocked = self.on_unblocked = None

    def notify_on_disconnect(self, on_left: Callable[[], None]) -> None:
        """Calls `on_left` once if the client disconnects before its response is complete, or has already done so."""
        self._on_disconnect = on_left
        if self.disconnected:
            on_left()

    # The response

    def reply(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        assert not self.started, "the response has already started"
        self.started = True
        self.status = status
        transport = self._transport
        transport.send_head(status, [*self.common_headers, *headers, (b"content-length", b"%d" % len(body))])
        self.finished = True
        transport.send_end(body)
        self.finished_at = time.monotonic_ns()

    def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        assert not self.started, "the response has already started"
        self.started = True
        self.status = status
        self._transport.send_head(status, [*self.common_headers, *headers])

    def chunk_writer(self) -> Callable[[bytes], None] | None:
        """Returns a function that writes an HTTP chunk, with its size line and end, between `start` and `finish`.

        None if the response is not sent in chunks.
        """
        return self._transport.chunk_writer()

    def finish(self, data: bytes = b"") -> None:
        assert self.started, "the response has not started"
        assert not self.finished, "the response has already finished"
        self.finished = True
        self._transport.send_end(data)
        self.finished_at = time.monotonic_ns()

    # Called by the connection

    def add_body(self, data: bytes) -> None:
        """Adds received bytes to the body. Drops them if the body is no longer needed."""
        if self.finished or self._too_large or self._no_room:
            return
        self.received_bytes += len(data)
        if self.received_bytes > self.body_bytes_max:
            self._too_large = True
            self._drop_body()
        elif self._reserve is not None and not self._reserve(len(data)):
            self.reject_body()
        elif not self._body_received:
            self._body_received = data
        else:
            if isinstance(self._body_received, bytes):
                self._body_received = bytearray(self._body_received)
            self._body_received += data

    def reject_body(self) -> None:
        """Drops the body, because the bodies of all open requests use too much memory."""
        self._no_room = True
        self._drop_body()

    def _drop_body(self) -> None:
        self.received = True
        self._body_received = b""
        self._wake()

    def complete_body(self) -> None:
        self._complete = self.received = True
        self.received_at = time.monotonic_ns()
        self._wake()

    def mark_disconnected(self) -> None:
        """Called when the connection is lost."""
        if self.finished:
            return
        self.disconnected = True
        self._wake()
        if self._on_disconnect is not None:
            self._on_disconnect()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
