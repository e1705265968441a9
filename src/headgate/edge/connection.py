"""What may come over one caller's connection, and what may it cost us?

HTTP/1.1 by httptools, one request at a time, straight from the socket's callbacks to the exchange. Everything that a
caller could make large or slow has a bound here: the head in bytes, lines and time, the body in bytes, time and
framing, the silence between two requests, and the answer that nobody reads. No connection has a timer of its own: each
says by when something must have happened (`due_at`), and the listener looks at all of them a few times a second.

What is not understood exactly is refused and the connection closed. A second request that comes before the first was
answered is not taken: while it waits nobody could hear that the caller of the first has left.
"""

import asyncio
import socket
import struct
from math import inf
from typing import Final, Protocol, cast

from headgate.edge.client import Client, Headers
from headgate.edge.options import EdgeLimits
from headgate.edge.request_head import Refused
from headgate.edge.request_reader import RequestReader
from headgate.model.units import SECOND, TenantId
from headgate.wire.turn_budget import REQUEST_NS, TurnBudget

_CHUNK_HEADS: Final = tuple(b"%x\r\n" % length for length in range(2048))
_RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time: closing then sends a reset."""
_WRITE_BUFFER_BYTES: Final = 64 * 1024


class Shared(Protocol):
    """What the connections of one listener share."""

    limits: EdgeLimits
    budget: TurnBudget

    def add(self, connection: "Connection", descriptor: int) -> bool:
        """False if there are too many already."""
        ...

    def remove(self, connection: "Connection") -> None: ...

    def identified(self, connection: "Connection", tenant: TenantId | None) -> bool:
        """Called when the caller is authenticated. Returns False if the tenant already has its share of connections."""
        ...

    def serve(self, client: Client, connection: "Connection") -> None: ...

    def head(self, status: int, headers: Headers) -> bytes: ...

    def refusal(self, refused: Refused, client: Client | None) -> bytes: ...


class Connection(RequestReader):
    """One caller's connection, with the callbacks of its parser."""

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_one_one",
        "_others",
        "_unread",
    )

    def __init__(self, others: Shared) -> None:
        super().__init__(others)
        self._others: Shared = others
        self._one_one = True
        """Whether the request is of HTTP/1.1, not 1.0."""
        self._chunked = False
        """Whether the answer under way is sent in chunks, for want of a length."""
        self._bodiless = False
        """Whether the answer under way has a head alone."""
        self._unread = 0

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases.
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        if not self._others.add(self, self._transport.get_extra_info("socket").fileno()):
            self._closing = True
            self._transport.abort()

    def pause_writing(self) -> None:
        self.blocked = True
        self._unread = self._transport.get_write_buffer_size()
        self.due_at = self._loop.time() + self._others.limits.client_stall_ns_max / SECOND
        if self._client is not None and self._client.on_blocked is not None:
            self._client.on_blocked()

    def resume_writing(self) -> None:
        self.blocked = False
        if self._closing:
            return
        # Paused or not: a request that stood behind an early answer may have begun meanwhile.
        self.go_on_reading()
        client = self._client
        if client is None:
            self._await_request()
        else:
            self.due_at = inf if self._in_head else self._loop.time() + self._others.limits.receive_ns_max / SECOND
            if client.on_unblocked is not None:
                client.on_unblocked()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self.due_at = inf
        self._slices.drop()
        self._others.remove(self)
        if self._client is not None:
            self._client.leave()

    # What the parser tells

    def on_headers_complete(self) -> None:
        if self._client is not None:
            self._surplus = True
            self._keep_alive = False
            raise Refused(400, "wait for the response before sending another request")  # Only ends the parsing.
        self._in_head = False
        head, limits = self._head, self._others.limits
        self._keep_alive = self._parser.should_keep_alive()
        version = self._parser.get_http_version()
        self._one_one = version != "1.0"
        head.check(version)
        self._framing.begin(chunked=b"transfer-encoding" in head.headers)
        self.due_at = self._loop.time() + limits.receive_ns_max / SECOND
        method = self._parser.get_method().decode()
        self._bodiless = method == "HEAD"
        path, _, query = head.target.partition(b"?")
        self._client = Client(
            self,
            method=method,
            path=path,
            query=query,
            headers=head.headers,
            body_bytes_max=limits.body_bytes_max,
            began_at=self._began_at,
        )
        self._budget.charge(REQUEST_NS)
        self._others.serve(self._client, self)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes.clear()
        self._head.expects_continue = False
        if self._client is None:
            return
        self._take_pieces(0)
        self._framing.chunked = False
        if not self.blocked:
            self.due_at = inf
        self._client.complete_body()
        if self._client.finished:
            self._go_on()

    # An exchange

    @property
    def peer(self) -> str:
        name: object = self._transport.get_extra_info("peername")
        return str(name[0]) if isinstance(name, tuple) and name else ""  # pyright: ignore[reportUnknownArgumentType]

    def identified(self, tenant: TenantId | None = None, /) -> bool:
        admitted = self._others.identified(self, tenant)
        if not admitted:
            self._keep_alive = False
        return admitted

    def ask_for_body(self) -> None:
        if self._head.expects_continue and self._one_one:
            self._head.expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def send_head(self, status: int, headers: Headers) -> None:
        if self._closing:
            return
        if self._head.expects_continue:
            # Whether the caller sends the body all the same is its own choice, and not to be known.
            self._keep_alive = False
        self._chunked, self._keep_alive = _frame(headers, one_one=self._one_one, keep_alive=self._keep_alive)
        self._transport.write(self._others.head(status, headers))

    def send(self, data: bytes) -> None:
        if self._closing or not data or self._bodiless:
            return
        self._transport.write(_chunk(data) if self._chunked else data)

    def send_end(self, data: bytes) -> None:
        if self._closing:
            return
        assert self._client is not None
        if not self._bodiless:
            if self._chunked:
                data = (_chunk(data) if data else b"") + b"0\r\n\r\n"
            if data:
                self._transport.write(data)
        if self._in_head or not self._keep_alive:
            self._go_on()
        else:
            # The rest of the request is passed over as it comes, so that the connection can be used again.
            self.due_at = min(self.due_at, self._loop.time() + self._others.limits.receive_ns_max / SECOND)

    def _go_on(self) -> None:
        """The request has come and the answer has gone: waits for the next one, if there may be one."""
        self._client = None
        if not self._keep_alive or self._surplus:
            self._close()
        elif self.blocked:
            # What it does not read must not grow by further answers.
            self._transport.pause_reading()
        else:
            self._await_request()

    def _await_request(self) -> None:
        self.due_at = self._loop.time() + self._others.limits.idle_ns_max / SECOND

    # Ends

    def end_overdue(self, now: float) -> None:
        limits = self._others.limits
        if self.blocked:
            unread = self._transport.get_write_buffer_size()
            if unread < self._unread:
                self._unread, self.due_at = unread, now + limits.client_stall_ns_max / SECOND
            else:
                # A plain close would wait for the very caller that does not read.
                self.abort()
        elif self._closing:
            self.abort()
        elif self._client is not None:
            # The answer is under way or over, and what is left of the request takes too long to come in. Where it is
            # awaited the door knows that too, and says so.
            if self._client.finished:
                self.abort()
            else:
                self.due_at = inf
        elif self._head_bytes.count:
            self._refuse(Refused(408, "the head of the request took too long to come in; send it faster"))
        else:
            self._close()

    def close_when_idle(self) -> None:
        self._keep_alive = False
        if self._client is None and not self._closing:
            self._close()

    def abort(self) -> None:
        """Cuts it off. What was sent but not read is lost, and whoever serves the exchange is told that it is over."""
        self._closing = True
        if not self._one_one:
            # To a caller of HTTP/1.0 a plain close is the end of an answer without a length.
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def _close(self) -> None:
        """What was sent is still delivered, for as long as the caller reads."""
        self._closing = True
        if not self.blocked:
            self.due_at = self._loop.time() + self._others.limits.client_stall_ns_max / SECOND
        self._transport.close()

    def _refuse(self, refused: Refused) -> None:
        """Says why, where an answer can still be given, and ends the connection."""
        self._keep_alive = False
        client = self._client
        if client is None or not (client.started or self._in_head or self._surplus):
            self._transport.write(self._others.refusal(refused, client))
            self._close()
        else:
            # The exchange under way has an answer of its own, which must not be mixed up with another.
            self.abort()


def _frame(headers: Headers, *, one_one: bool, keep_alive: bool) -> tuple[bool, bool]:
    """Adds the headers of the framing. Whether the body is sent in chunks, and whether the connection is kept."""
    with_length = any(name == b"content-length" for name, _ in headers)
    chunked = not with_length and one_one
    if any(name == b"connection" and value == b"close" for name, value in headers):
        keep_alive = False
    elif not keep_alive or not (with_length or one_one):
        keep_alive = False
        headers.append((b"connection", b"close"))
    elif not one_one:
        headers.append((b"connection", b"keep-alive"))
    if chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    return chunked, keep_alive


def _chunk(data: bytes) -> bytes:
    length = len(data)
    # Made beforehand for the lengths that tokens have: this runs for each of them.
    head = _CHUNK_HEADS[length] if length < len(_CHUNK_HEADS) else b"%x\r\n" % length
    return b"".join((head, data, b"\r\n"))
