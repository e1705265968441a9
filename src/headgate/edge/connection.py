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
import time
from math import inf
from typing import Final, Protocol, cast

import httptools

from headgate.edge.client import Client, Headers
from headgate.edge.options import EdgeLimits
from headgate.edge.request_head import HeadBytes, Refused, RequestHead
from headgate.model.units import SECOND

_FRAMING_BYTES_MIN: Final = 64 * 1024
_FRAMING_PER_BODY_BYTE: Final = 8
"""Chunk sizes, extensions and trailers may take this much for each byte of the body; one-byte chunks take five."""
_CHUNK_HEADS: Final = tuple(b"%x\r\n" % length for length in range(2048))
_RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time: closing then sends a reset."""
_WRITE_BUFFER_BYTES: Final = 64 * 1024


class Shared(Protocol):
    """What the connections of one listener share."""

    limits: EdgeLimits

    def add(self, connection: "Connection") -> bool:
        """False if there are too many already."""
        ...

    def remove(self, connection: "Connection") -> None: ...

    def serve(self, client: Client, connection: "Connection") -> None: ...

    def head(self, status: int, headers: Headers) -> bytes: ...

    def refusal(self, refused: Refused, client: Client | None) -> bytes: ...


class Connection(asyncio.Protocol):
    """Also the protocol of its parser."""

    __slots__ = (
        "_began_at",
        "_bodiless",
        "_body_bytes",
        "_chunked",
        "_client",
        "_closing",
        "_framing_bytes",
        "_head",
        "_head_bytes",
        "_in_head",
        "_keep_alive",
        "_loop",
        "_one_one",
        "_others",
        "_parser",
        "_surplus",
        "_transport",
        "_unread",
        "blocked",
        "due_at",
    )

    def __init__(self, others: Shared) -> None:
        self._others = others
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpRequestParser(self)
        self._began_at = 0
        """When the first byte of the request came, in nanoseconds of the clock that never goes back."""
        self._client: Client | None = None
        """The exchange under way; None between two requests."""
        self._in_head = True
        """Whether the next bytes belong to the head of a request, rather than to a body."""
        self._head_bytes = HeadBytes()
        self._body_bytes = self._framing_bytes = 0
        """How much of the body has come, and how much in all since the head."""
        self._head = RequestHead()
        self._keep_alive = True
        self._one_one = True
        """Whether the request is of HTTP/1.1, not 1.0."""
        self._chunked = False
        """Whether the answer under way is sent in chunks, for want of a length."""
        self._bodiless = False
        """Whether the answer under way has a head alone."""
        self._surplus = False
        """Whether a second request has begun before the first was answered."""
        self._closing = False
        self.blocked = False
        self._unread = 0
        self.due_at = self._loop.time() + others.limits.head_ns_max / SECOND
        """When something must have happened on this connection, or it ends."""

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases.
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        if not self._others.add(self):
            self._closing = True
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self._in_head:
            if not self._head_bytes.count and self._client is None:
                self.due_at = self._loop.time() + self._others.limits.head_ns_max / SECOND
        else:
            self._framing_bytes += len(data)
        rest_bytes = 0
        try:
            if self._in_head:
                data, rest_bytes = self._head_bytes.take(data, self._others.limits)
            if data:
                counted = self._head_bytes.count
                self._parser.feed_data(data)
                if self._in_head and self._head_bytes.count == counted:
                    self._head_bytes.count += rest_bytes  # Empty lines before a request look like the end of its head.
            self._check_sizes()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if (refused := _refused(error)) is None:
                raise
            self._refuse(refused)
        except Refused as refused:
            self._refuse(refused)

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
        self._transport.resume_reading()
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
        self._others.remove(self)
        if self._client is not None:
            self._client.leave()

    # What the parser tells

    def on_message_begin(self) -> None:
        self._began_at = time.monotonic_ns()
        self._head = RequestHead()

    def on_url(self, url: bytes) -> None:
        self._head.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # A trailer, which says nothing that was not known before the body.
        self._head.add(name, value, self._others.limits)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._body_bytes = self._framing_bytes = 0
        if self._client is not None:
            self._surplus = True
            self._keep_alive = False
            return
        head, limits = self._head, self._others.limits
        self._keep_alive = self._parser.should_keep_alive()
        version = self._parser.get_http_version()
        self._one_one = version != "1.0"
        head.check(version)
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
        self._others.serve(self._client, self)

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._client is not None and not self._surplus:
            self._client.take_body(data)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes.clear()
        self._head.expects_continue = False
        if self._surplus or self._client is None:
            return
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

    def _check_sizes(self) -> None:
        if self._in_head:
            self._head_bytes.check(self._others.limits)
        framing = self._framing_bytes - self._body_bytes
        if framing > max(_FRAMING_BYTES_MIN, _FRAMING_PER_BODY_BYTE * self._body_bytes):
            raise Refused(400, "the body's chunks are mostly something else than body")
        client = self._client
        if client is not None and client.finished and self._framing_bytes > self._others.limits.passed_over_bytes_max:
            raise Refused(413, "what is sent after the answer is more than will be passed over")

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


def _refused(error: httptools.HttpParserError | httptools.HttpParserUpgrade) -> Refused | None:
    """None for a mistake of our own in one of the parser's callbacks."""
    match error:
        case httptools.HttpParserCallbackError():
            reason = error.__context__
            return reason if isinstance(reason, Refused) else None
        case httptools.HttpParserUpgrade():
            return Refused(400, "this is not a request that is served here; speak HTTP/1.1")
        case _:
            return Refused(400, f"the bytes are not an HTTP/1.1 request: {error}")


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
