"""One client connection: HTTP/1.1, parsed by httptools directly in the socket callbacks, one request at a time.

Everything that a client could make too large or too slow is limited:

- the head, in bytes, lines and time,
- the body, in bytes, time and framing,
- the idle time between two requests,
- the time for which a response may stay unread.

Connections have no timers of their own. Each has a timeout (`timeout_at`), and the listener checks all of them a few
times a second.

Ambiguous requests are rejected, and their connections are closed. Pipelined requests are rejected too: while a second
request waits, the gateway could not detect that the client has disconnected.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Final, Protocol, cast

from headgate.edge.client import Client, Headers
from headgate.edge.options import EdgeLimits
from headgate.edge.request_head import HttpRejection
from headgate.edge.request_reader import RequestReader
from headgate.model.units import SECOND, TenantId
from headgate.wire.turn_budget import REQUEST_NS, TurnBudget

_CHUNK_HEADS_BYTES: Final = 2048
_CHUNK_HEADS: Final = tuple(b"%x\r\n" % length for length in range(_CHUNK_HEADS_BYTES))
_RESET_LINGER: Final = struct.pack("ii", 1, 0)
"""Value of `SO_LINGER` that makes closing send a TCP reset."""
_WRITE_BUFFER_BYTES: Final = 64 * 1024
_JOINED_BYTES_MAX: Final = 16 * 1024
"""Maximum size of a body that is copied in order to send it with its head."""
_LENGTH: Final = b"content-length"
_CLOSE: Final = (b"connection", b"close")


class OpenConnection(Protocol):
    """A connection that the listener counts, sweeps and closes."""

    timeout_at: float

    @property
    def is_unused(self) -> bool:
        """Whether the client has connected but not sent a byte yet."""
        ...

    def handle_timeout(self, now: float) -> None: ...

    def close_when_idle(self) -> None: ...

    def abort(self) -> None: ...


class ListenerContext(Protocol):
    """State shared by the connections of one listener."""

    limits: EdgeLimits
    budget: TurnBudget

    def add(self, connection: OpenConnection, descriptor: int) -> bool:
        """Registers the connection. Returns False if there are too many connections."""
        ...

    def remove(self, connection: OpenConnection) -> None: ...

    def mark_authenticated(self, connection: "Connection", tenant: TenantId | None) -> bool:
        """Marks the client as authenticated. Returns False if the tenant has already used its share of connections."""
        ...

    def serve(self, client: Client, connection: "Connection") -> None: ...

    def head(self, status: int, headers: Headers) -> bytes: ...

    def rejection_reply(self, refused: HttpRejection, client: Client | None, path: bytes) -> bytes: ...


class Connection(RequestReader):
    """One client connection and its parser callbacks."""

    __slots__ = (
        "_chunked",
        "_held_head",
        "_is_http_1_1",
        "_listener",
        "_omits_body",
        "_unread_bytes",
    )

    def __init__(self, others: ListenerContext) -> None:
        super().__init__(others)
        self._listener: ListenerContext = others
        self._is_http_1_1 = True
        """Whether the request uses HTTP/1.1 rather than 1.0."""
        self._chunked = False
        """Whether the current response is chunked because its length is unknown."""
        self._held_head = b""
        """Head of a response with a length. It is sent with the body, which follows at once (`Client.reply`)."""
        self._omits_body = False
        """Whether the current response is sent without a body."""
        self._unread_bytes = 0

    # Callbacks from asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport class does not inherit from it.
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        if not self._listener.add(self, self._transport.get_extra_info("socket").fileno()):
            self._closing = True
            self._transport.abort()

    def pause_writing(self) -> None:
        self.blocked = True
        self._unread_bytes = self._transport.get_write_buffer_size()
        self.timeout_at = self._loop.time() + self._listener.limits.send_timeout_ns / SECOND
        if self._client is not None and self._client.on_blocked is not None:
            self._client.on_blocked()

    def resume_writing(self) -> None:
        self.blocked = False
        if self._closing:
            return
        # Reading may be paused even during an exchange, because the next request can start before reading resumes.
        self.resume_reading()
        client = self._client
        if client is None:
            self._await_request()
        else:
            self.timeout_at = (
                inf if self._in_head else self._loop.time() + self._listener.limits.body_timeout_ns / SECOND
            )
            if client.on_unblocked is not None:
                client.on_unblocked()

    def eof_received(self) -> None:
        """Does nothing, so the transport closes the connection."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self.timeout_at = inf
        self._slices.drop()
        self._listener.remove(self)
        if self._client is not None:
            self._client.mark_disconnected()

    # Callbacks from the parser

    def on_headers_complete(self) -> None:
        if self._client is not None:
            self._pipelined = True
            self._keep_alive = False
            raise HttpRejection(400, "wait for the response before sending another request")  # Ends parsing; not sent.
        self._in_head = False
        head, limits = self._head, self._listener.limits
        self._keep_alive = self._parser.should_keep_alive()
        version = self._parser.get_http_version()
        self._is_http_1_1 = version != "1.0"
        head.check(version)
        self._framing.begin(chunked=b"transfer-encoding" in head.headers)
        self.timeout_at = self._loop.time() + limits.body_timeout_ns / SECOND
        method = self._parser.get_method().decode()
        self._omits_body = method == "HEAD"
        path, _, query = head.target.partition(b"?")
        size_max = limits.body_bytes_max if limits.audio_body_bytes_max is None else limits.any_body_bytes_max
        # Positional, because keyword arguments would make this call twice as slow.
        client = Client(self, method, path, head.headers, size_max, self._began_at, query)
        self._client = client
        self._budget.charge(REQUEST_NS)
        self._listener.serve(client, self)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes.clear()
        self._head.expects_continue = False
        if self._client is None:
            return
        self._flush_pieces(0)
        self._framing.chunked = False
        if not self.blocked:
            self.timeout_at = inf
        self._client.complete_body()
        if self._client.finished:
            self._end_exchange()

    # The exchange

    @property
    def peer(self) -> str:
        name: object = self._transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) and name else ""  # pyright: ignore[reportUnknownArgumentType]

    def mark_authenticated(self, tenant: TenantId | None = None, /) -> bool:
        admitted = self._listener.mark_authenticated(self, tenant)
        if not admitted:
            self._keep_alive = False
        return admitted

    def send_continue(self) -> None:
        if self._head.expects_continue and self._is_http_1_1:
            self._head.expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def send_head(self, status: int, headers: Headers) -> None:
        if self._closing:
            return
        if self._head.expects_continue:
            # The client may or may not send the body now, so the connection cannot be reused.
            self._keep_alive = False
        # `Client.reply` puts the length last.
        with_length = headers[-1][0] == _LENGTH
        self._frame(headers, with_length=with_length)
        head = self._listener.head(status, headers)
        if with_length:
            self._held_head = head
        else:
            self._transport.write(head)

    def _frame(self, headers: Headers, *, with_length: bool) -> None:
        """Adds the framing headers. Determines whether the body is chunked and whether the connection stays open."""
        one_one = self._is_http_1_1
        closes = self._client is not None and self._client.closes
        if closes or not self._keep_alive or not (with_length or one_one):
            self._keep_alive = False
            headers.append(_CLOSE)
        elif not one_one:
            headers.append((b"connection", b"keep-alive"))
        self._chunked = one_one and not with_length
        if self._chunked:
            headers.append((b"transfer-encoding", b"chunked"))

    def send(self, data: bytes) -> None:
        if self._closing or not data or self._omits_body:
            return
        if self._chunked:
            # Runs for every token, so it calls no function, and the heads of chunks of common lengths are precomputed.
            size = len(data)
            data = b"".join((_CHUNK_HEADS[size] if size < _CHUNK_HEADS_BYTES else b"%x\r\n" % size, data, b"\r\n"))
        elif self._held_head:
            data, self._held_head = self._held_head + data, b""
        self._transport.write(data)

    def chunk_writer(self) -> Callable[[bytes], None] | None:
        return self._send_chunk if self._chunked and not self._omits_body else None

    def _send_chunk(self, chunk: bytes) -> None:
        if not self._closing:
            self._transport.write(chunk)

    def send_end(self, data: bytes) -> None:
        if self._closing:
            return
        assert self._client is not None
        if self._omits_body:
            data = b""
        elif self._chunked:
            data = (_chunk(data) if data else b"") + b"0\r\n\r\n"
        if self._held_head:
            head, self._held_head = self._held_head, b""
            if len(data) <= _JOINED_BYTES_MAX:
                data = head + data
            else:
                self._transport.write(head)
        if data:
            self._transport.write(data)
        if self._in_head or not self._keep_alive:
            self._end_exchange()
        else:
            # The rest of the request is discarded as it arrives, so that the connection can be reused.
            self.timeout_at = min(self.timeout_at, self._loop.time() + self._listener.limits.body_timeout_ns / SECOND)

    def _end_exchange(self) -> None:
        """Ends the exchange, then waits for the next request or closes the connection."""
        self._client = None
        if not self._keep_alive or self._pipelined:
            self._close()
        elif self.blocked:
            # If the client sent more requests, its unread responses would accumulate.
            self._transport.pause_reading()
        else:
            self._await_request()

    def _await_request(self) -> None:
        self.timeout_at = self._loop.time() + self._listener.limits.keepalive_timeout_ns / SECOND

    # Timeouts and closing

    def handle_timeout(self, now: float) -> None:
        limits = self._listener.limits
        if self.blocked:
            unread = self._transport.get_write_buffer_size()
            if unread < self._unread_bytes:
                self._unread_bytes, self.timeout_at = unread, now + limits.send_timeout_ns / SECOND
            else:
                # A graceful close would wait for a client that does not read.
                self.abort()
        elif self._closing:
            self.abort()
        elif self._client is not None:
            # The rest of the request is taking too long to arrive. Until the response has finished, the application's
            # own timeout handles this.
            if self._client.finished:
                self.abort()
            else:
                self.timeout_at = inf
        elif self._head_bytes.count:
            self._reject(HttpRejection(408, "the request head took too long to arrive; send it faster"))
        else:
            self._close()

    def close_when_idle(self) -> None:
        self._keep_alive = False
        if self._client is None and not self._closing:
            self._close()

    def abort(self) -> None:
        """Aborts the connection. Unread response bytes are lost and the exchange ends."""
        self._closing = True
        if not self._is_http_1_1:
            # For an HTTP/1.0 client, a normal close would mark the end of a response without a length.
            # If the client has disconnected, the socket is closed: OSError from asyncio, ValueError from uvloop.
            with suppress(OSError, ValueError):
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_LINGER)
        self._transport.abort()

    def _close(self) -> None:
        """Closes the connection after the client has read the buffered response."""
        self._closing = True
        if not self.blocked:
            self.timeout_at = self._loop.time() + self._listener.limits.send_timeout_ns / SECOND
        self._transport.close()

    def _reject(self, refused: HttpRejection) -> None:
        """Sends an error response if still possible, and closes the connection."""
        self._keep_alive = False
        client = self._client
        if client is None or not (client.started or self._in_head or self._pipelined):
            path = self._head.target.partition(b"?")[0] if client is None else client.path
            self._transport.write(self._listener.rejection_reply(refused, client, path))
            self._close()
        else:
            # The current exchange has its own response, and a second one must not be mixed into it.
            self.abort()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)
