"""Reading side of a client connection: parses bytes from the socket into heads and bodies, within limits.

Bytes are parsed in slices, within the time budget of each event loop iteration. The body pieces of one slice are joined
before they are passed on, so that a body sent in tiny chunks costs little more than any other.
"""

import asyncio
import time
from typing import Final, Protocol

import httptools

from headgate.edge.body_framing import BodyFraming
from headgate.edge.client import Client
from headgate.edge.options import EdgeLimits
from headgate.edge.request_head import HeadBytes, HttpRejection, RequestHead
from headgate.model.units import SECOND
from headgate.wire.turn_budget import (
    READ_BYTES,
    SLICE_BYTES,
    UNTIMED_BYTES,
    UNTIMED_BYTES_TOTAL,
    SlicedReads,
    TurnBudget,
)

_EXPECT: Final = b"expect"


class ReadingLimits(Protocol):
    """Limits shared by all connections of a listener."""

    limits: EdgeLimits
    budget: TurnBudget


class RequestReader(asyncio.Protocol):
    """Reads one request at a time. `Connection` adds the exchange and the end of the connection."""

    __slots__ = (
        "_began_at",
        "_body_paused",
        "_budget",
        "_client",
        "_closing",
        "_discarded",
        "_framing",
        "_head",
        "_head_bytes",
        "_in_head",
        "_keep_alive",
        "_loop",
        "_parser",
        "_pieces",
        "_pipelined",
        "_shared_limits",
        "_slices",
        "_transport",
        "blocked",
        "on_body",
        "timeout_at",
    )

    def __init__(self, bounds: ReadingLimits) -> None:
        self._shared_limits = bounds
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._pieces: list[bytes] = []
        """Body pieces that the parser found in its most recent input."""
        self.on_body = self._pieces.append
        self._parser = httptools.HttpRequestParser(self)
        self._budget = bounds.budget
        self._slices = SlicedReads(self._budget, self)
        self._began_at = 0
        """Time at which the first byte of the request arrived, in monotonic nanoseconds."""
        self._client: Client | None = None
        """Current exchange. None between two requests."""
        self._in_head = True
        """Whether the next bytes belong to a request head rather than a body."""
        self._head_bytes = HeadBytes()
        self._framing = BodyFraming()
        self._head = RequestHead()
        self._keep_alive = True
        self._pipelined = False
        """Whether a second request started before the response to the first. Only its head is parsed."""
        self._discarded: int | None = None
        """Number of bytes discarded without parsing after the response. None while bytes are still being parsed."""
        self._body_paused = False
        """Whether the connection is not read until the client is authenticated."""
        self._closing = False
        self.blocked = False
        """Whether the write buffer is above its limit because the client reads too slowly."""
        self.timeout_at = self._loop.time() + bounds.limits.header_timeout_ns / SECOND
        """Time at which the connection times out unless it makes progress, in seconds of the event loop clock."""

    def _reject(self, refused: HttpRejection) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    @property
    def is_unused(self) -> bool:
        """Whether no byte has arrived on this connection yet."""
        return not self._began_at and not self._closing

    # Received bytes

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        size = len(data)
        if self._discarded is not None or self._pipelined:
            self._discard(size)
            return
        budget = self._budget
        budget.untimed_bytes += size + READ_BYTES
        if (
            budget.untimed_bytes > UNTIMED_BYTES_TOTAL
            or size > (UNTIMED_BYTES if self._framing.chunked else SLICE_BYTES)
            or self._slices.unparsed
        ):
            self._slices.feed(data)
        else:
            self.parse(data)

    def parse(self, data: bytes) -> bool:
        """Parses a slice. Returns whether to parse further bytes."""
        if self._closing:
            return False
        try:
            if self._in_head:
                self._parse_head(data)
            else:
                self._parser.feed_data(data)
                self._flush_pieces(len(data))
            self._check_sizes()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._pipelined:
                self._reject(_rejection_from(error))
        except HttpRejection as refused:
            self._reject(refused)
        return not (self._closing or self._pipelined or self._discarded is not None)

    def _parse_head(self, data: bytes) -> None:
        if not self._head_bytes.count and self._client is None:
            self.timeout_at = self._loop.time() + self._shared_limits.limits.header_timeout_ns / SECOND
        data = self._head_bytes.feed(data, self._shared_limits.limits)
        if data:
            self._parser.feed_data(data)
            self._flush_pieces(0)

    def _flush_pieces(self, data_bytes: int) -> None:
        """Joins the body pieces found in the last `data_bytes` bytes and passes them on."""
        pieces, client = self._pieces, self._client
        if not pieces and not data_bytes:
            return
        number, body = len(pieces), b""
        if number:
            body = pieces[0] if number == 1 else b"".join(pieces)
            pieces.clear()
            if client is not None:
                client.add_body(body)
        self._framing.add(data_bytes, number, len(body), answered=client is not None and client.finished)

    def _check_sizes(self) -> None:
        if self._in_head:
            self._head_bytes.check(self._shared_limits.limits)
            return
        self._framing.check()
        client = self._client
        if client is not None and client.finished and not self._framing.check_discarded(self._shared_limits.limits):
            # The end of the request can no longer be found, but the client can still read its complete response.
            self._keep_alive = False
            self._discarded = 0
            # A TLS connection cannot be closed in one direction. The client relies on the length of the response.
            if self._transport.can_write_eof():
                self._transport.write_eof()

    def _discard(self, size: int) -> None:
        """Drops bytes without parsing them, so that the client can read its response before the connection closes."""
        if self._discarded is None:
            self._head_bytes.count += size
            bound, counted = self._shared_limits.limits.header_bytes_max, self._head_bytes.count
        else:
            self._discarded += size
            bound, counted = self._shared_limits.limits.discarded_bytes_max, self._discarded
        if counted > bound:
            self.abort()

    # Callbacks from the sliced reads

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        waits = self._slices.unparsed or self._body_paused or (self.blocked and self._client is None)
        if not (self._closing or waits or self._transport.is_closing()):
            self._transport.resume_reading()

    # Called by the client

    def pause_body(self) -> None:
        self._body_paused = True
        if not (self._closing or self._transport.is_closing()):
            self._transport.pause_reading()

    def resume_body(self) -> None:
        self._body_paused = False
        self.resume_reading()

    def reject_overflow(self) -> None:
        self._reject(HttpRejection(503, "too many request bodies are being received; retry in a moment"))

    # Callbacks from the parser

    def on_message_begin(self) -> None:
        self._began_at = time.monotonic_ns()
        self._head = RequestHead()

    def on_url(self, url: bytes) -> None:
        self._head.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            # Trailers are counted and otherwise ignored.
            self._framing.add_trailer(self._shared_limits.limits)
            return
        # Runs for every header, so it calls no function for a header that occurs once.
        head, limits = self._head, self._shared_limits.limits
        head.lines += 1
        if head.lines > limits.header_count_max or len(name) + len(value) > limits.field_bytes_max:
            head.reject_sizes(limits)
        name = name.lower()
        if name in head.headers:
            head.add_repeated(name, value)
        else:
            head.headers[name] = value
        if name == _EXPECT and value.lower() == b"100-continue":
            head.expects_continue = True


def _rejection_from(error: httptools.HttpParserError | httptools.HttpParserUpgrade) -> HttpRejection:
    """Converts a parser error. If a callback failed for another reason, raises the error unchanged."""
    match error:
        case httptools.HttpParserCallbackError():
            if not isinstance(error.__context__, HttpRejection):
                raise error
            return error.__context__
        case httptools.HttpParserUpgrade():
            return HttpRejection(400, "protocol upgrades are not supported; use HTTP/1.1")
        case _:
            return HttpRejection(400, f"invalid HTTP/1.1 request: {error}")
