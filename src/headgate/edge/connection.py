"""What may come over one caller's connection, and what may it cost us?

HTTP/1.1 by httptools, one request at a time, straight from the socket's callbacks to the exchange. Everything that a
caller could make large or slow has a bound here: the head in bytes, lines and time, the body in bytes, time and
framing, the silence between two requests, and the answer that nobody reads. No connection has a timer of its own: each
says by when something must have happened (`due_at`), and the listener looks at all of them a few times a second.

What is not understood exactly is refused and the connection closed, since a proxy before us may have understood it
otherwise (request smuggling). A second request that comes before the first was answered is not taken: while it waits
nobody could hear that the caller of the first has left.
"""

import asyncio
import re
import socket
import struct
import time
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final, cast

import httptools

from headgate.edge.client import Client, Headers

if TYPE_CHECKING:
    from headgate.edge.connections import Connections

# Java's HTTP client offers HTTP/2 with every request. The parser would take that for the end of HTTP and lose the body.
_UPGRADE: Final = re.compile(rb"(?<=\n)upgrade:", re.IGNORECASE)
_UPGRADE_BEGUN: Final = re.compile(rb"(?<=\n)u(?:p(?:g(?:r(?:a(?:d(?:e)?)?)?)?)?)?\Z", re.IGNORECASE)
_END_OF_HEAD: Final = b"\r\n\r\n"
_ONCE: Final = frozenset({b"host", b"authorization", b"content-length", b"transfer-encoding"})
"""Headers of which a second one makes it a matter of opinion what was asked."""
_FRAMING_BYTES_MIN: Final = 64 * 1024
_FRAMING_PER_BODY_BYTE: Final = 8
"""Chunk sizes, extensions and trailers may take this much for each byte of the body; one-byte chunks take five."""
_CHUNK_HEADS: Final = tuple(b"%x\r\n" % length for length in range(2048))
_RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time: closing then sends a reset."""
_WRITE_BUFFER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one connection may take, and how many there may be. Times in seconds."""

    head_bytes_max: int = 64 * 1024
    headers_max: int = 100
    body_bytes_max: int = 32 * 1024 * 1024
    head_s_max: float = 10.0
    receive_s_max: float = 60.0
    idle_s_max: float = 75.0
    stall_s_max: float = 30.0
    connections_open_max: int = 25_000

    @property
    def passed_over_bytes_max(self) -> int:
        """How much of a body that nobody reads is passed over, so that its caller comes to see the answer."""
        return 4 * self.body_bytes_max


class Refused(Exception):
    """The bytes are not a request that could be taken; the connection ends with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Connection(asyncio.Protocol):
    """Also the protocol of its parser."""

    __slots__ = (
        "_began_at",
        "_bodiless",
        "_body_bytes",
        "_chunked",
        "_client",
        "_closing",
        "_expects_continue",
        "_framing_bytes",
        "_head_bytes",
        "_headers",
        "_headers_seen",
        "_held",
        "_in_head",
        "_keep_alive",
        "_last_bytes",
        "_loop",
        "_one_one",
        "_others",
        "_parser",
        "_surplus",
        "_target",
        "_transport",
        "_unread",
        "blocked",
        "due_at",
    )

    def __init__(self, others: "Connections") -> None:
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
        self._head_bytes = 0
        """How much of a head has come without its end."""
        self._last_bytes: bytes = b""
        """What of the head was parsed last."""
        self._held: bytes = b""
        """What is not parsed yet, since it may be the beginning of a header to be passed over."""
        self._body_bytes = self._framing_bytes = 0
        """How much of the body has come, and how much in all since the head."""
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._headers_seen = 0
        self._expects_continue = False
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
        self.due_at = self._loop.time() + others.bounds.head_s_max
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
            if not self._head_bytes and self._client is None:
                self.due_at = self._loop.time() + self._others.bounds.head_s_max
        else:
            self._framing_bytes += len(data)
        rest_bytes = 0
        try:
            if self._in_head:
                data, rest_bytes = self._pass_over_upgrade(data)
            if data:
                counted = self._head_bytes
                self._parser.feed_data(data)
                if self._in_head and self._head_bytes == counted:
                    self._head_bytes += rest_bytes  # Empty lines before a request look like the end of its head.
            self._check_sizes()
        except httptools.HttpParserCallbackError as error:
            # What one of the callbacks below raised.
            reason = error.__context__
            if not isinstance(reason, Refused):
                raise
            self._refuse(reason)
        except httptools.HttpParserUpgrade:
            self._refuse(Refused(400, "this is not a request that is served here; speak HTTP/1.1"))
        except httptools.HttpParserError as error:
            self._refuse(Refused(400, f"the bytes are not an HTTP/1.1 request: {error}"))
        except Refused as refused:
            self._refuse(refused)

    def pause_writing(self) -> None:
        self.blocked = True
        self._unread = self._transport.get_write_buffer_size()
        self.due_at = self._loop.time() + self._others.bounds.stall_s_max
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
            self.due_at = inf if self._in_head else self._loop.time() + self._others.bounds.receive_s_max
            if client.on_unblocked is not None:
                client.on_unblocked()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self.due_at = inf
        self._others.remove(self)
        if self._client is not None:
            self._client.leave()

    def _pass_over_upgrade(self, data: bytes) -> tuple[bytes, int]:
        """The bytes with the header renamed, wherever reads end; also counts what belongs to the head."""
        before = self._last_bytes
        seen = before + self._held + data
        end = seen.find(_END_OF_HEAD)
        head, rest = (seen, b"") if end < 0 else (seen[: end + 4], seen[end + 4 :])
        self._head_bytes += len(head) - len(before) - len(self._held)
        if self._head_bytes > self._others.bounds.head_bytes_max:
            raise Refused(431, f"the head of a request may have {self._others.bounds.head_bytes_max} bytes")
        begun = _UPGRADE_BEGUN.search(head)
        self._held = head[begun.start() :] if begun else b""
        head = head[: len(head) - len(self._held)]
        self._last_bytes = head[-3:]
        return _UPGRADE.sub(b"x-upgrade-passed-over:", head)[len(before) :] + rest, len(rest)

    # What the parser tells

    def on_message_begin(self) -> None:
        self._began_at = time.monotonic_ns()
        self._target = b""
        self._headers = {}
        self._headers_seen = 0
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # A trailer, which says nothing that was not known before the body.
        self._headers_seen += 1
        if self._headers_seen > self._others.bounds.headers_max:
            raise Refused(431, f"a request may have {self._others.bounds.headers_max} headers")
        name = name.lower()
        if name in _ONCE and name in self._headers:
            raise Refused(400, f"the header {name.decode()} may stand only once")
        # Several lines of one name are one list, or the last would hide the others.
        known = self._headers.get(name)
        self._headers[name] = value if known is None else known + b", " + value
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_continue = True

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._body_bytes = self._framing_bytes = 0
        if self._client is not None:
            self._surplus = True
            self._keep_alive = False
            return
        headers, bounds = self._headers, self._others.bounds
        self._keep_alive = self._parser.should_keep_alive()
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise Refused(505, "speak HTTP/1.1")
        self._one_one = version == "1.1"
        if b"host" not in headers and self._one_one:
            raise Refused(400, "the header host is missing")
        if b"transfer-encoding" in headers and headers[b"transfer-encoding"].lower() != b"chunked":
            raise Refused(501, "of transfer encodings only chunked is known")
        self.due_at = self._loop.time() + bounds.receive_s_max
        method = self._parser.get_method().decode()
        self._bodiless = method == "HEAD"
        path, _, query = self._target.partition(b"?")
        self._client = Client(
            self,
            method=method,
            path=path,
            query=query,
            headers=headers,
            body_bytes_max=bounds.body_bytes_max,
            began_at=self._began_at,
        )
        self._others.serve(self._client, self)

    def on_body(self, data: bytes) -> None:
        self._body_bytes += len(data)
        if self._client is not None and not self._surplus:
            self._client.take_body(data)

    def on_message_complete(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        self._last_bytes = self._held = b""
        self._expects_continue = False
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
        if self._expects_continue and self._one_one:
            self._expects_continue = False
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def send_head(self, status: int, headers: Headers) -> None:
        if self._closing:
            return
        if self._expects_continue:
            # Whether the caller sends the body all the same is its own choice, and not to be known.
            self._keep_alive = False
        with_length = any(name == b"content-length" for name, _ in headers)
        one_one = self._one_one
        self._chunked = not with_length and one_one
        if any(name == b"connection" and value == b"close" for name, value in headers):
            self._keep_alive = False
        elif not self._keep_alive or not (with_length or one_one):
            self._keep_alive = False
            headers.append((b"connection", b"close"))
        elif not one_one:
            headers.append((b"connection", b"keep-alive"))
        if self._chunked:
            headers.append((b"transfer-encoding", b"chunked"))
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
            self.due_at = min(self.due_at, self._loop.time() + self._others.bounds.receive_s_max)

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
        self.due_at = self._loop.time() + self._others.bounds.idle_s_max

    # Ends

    def end_overdue(self, now: float) -> None:
        bounds = self._others.bounds
        if self.blocked:
            unread = self._transport.get_write_buffer_size()
            if unread < self._unread:
                self._unread, self.due_at = unread, now + bounds.stall_s_max
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
        elif self._head_bytes:
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
            self.due_at = self._loop.time() + self._others.bounds.stall_s_max
        self._transport.close()

    def _check_sizes(self) -> None:
        if self._in_head and self._head_bytes > self._others.bounds.head_bytes_max:
            raise Refused(431, f"the head of a request may have {self._others.bounds.head_bytes_max} bytes")
        framing = self._framing_bytes - self._body_bytes
        if framing > max(_FRAMING_BYTES_MIN, _FRAMING_PER_BODY_BYTE * self._body_bytes):
            raise Refused(400, "the body's chunks are mostly something else than body")
        client = self._client
        if client is not None and client.finished and self._framing_bytes > self._others.bounds.passed_over_bytes_max:
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


def _chunk(data: bytes) -> bytes:
    length = len(data)
    # Made beforehand for the lengths that tokens have: this runs for each of them.
    head = _CHUNK_HEADS[length] if length < len(_CHUNK_HEADS) else b"%x\r\n" % length
    return b"".join((head, data, b"\r\n"))
