"""The reading side of a caller's connection: parses bytes from the socket into heads and bodies, within bounds.

Bytes are parsed in slices, within the time budget of the loop's turn. The pieces of a body in one slice are joined
before they are passed on, so that a body in tiny chunks costs little more than any other.
"""

import asyncio
import time
from typing import Protocol

import httptools

from headgate.edge.body_framing import BodyFraming
from headgate.edge.client import Client
from headgate.edge.options import EdgeLimits
from headgate.edge.request_head import HeadBytes, Refused, RequestHead
from headgate.model.units import SECOND
from headgate.wire.turn_budget import (
    READ_BYTES,
    SLICE_BYTES,
    UNTIMED_BYTES,
    UNTIMED_BYTES_IN_ALL,
    SlicedReads,
    TurnBudget,
)


class ReadingLimits(Protocol):
    """Bounds shared by all connections of a listener."""

    limits: EdgeLimits
    budget: TurnBudget


class RequestReader(asyncio.Protocol):
    """Reads one request at a time. `Connection` adds the exchange and the end of the connection."""

    __slots__ = (
        "_began_at",
        "_bounds",
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
        "_slices",
        "_surplus",
        "_transport",
        "blocked",
        "due_at",
        "on_body",
    )

    def __init__(self, bounds: ReadingLimits) -> None:
        self._bounds = bounds
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._pieces: list[bytes] = []
        """Pieces of the body that the parser found in its last input."""
        self.on_body = self._pieces.append
        self._parser = httptools.HttpRequestParser(self)
        self._budget = bounds.budget
        self._slices = SlicedReads(self._budget, self)
        self._began_at = 0
        """When the first byte of the request arrived, in nanoseconds of the monotonic clock."""
        self._client: Client | None = None
        """The current exchange; None between two requests."""
        self._in_head = True
        """Whether the next bytes belong to the head of a request instead of a body."""
        self._head_bytes = HeadBytes()
        self._framing = BodyFraming()
        self._head = RequestHead()
        self._keep_alive = True
        self._surplus = False
        """Whether a second request began before the first was answered. Only its head is parsed."""
        self._discarded: int | None = None
        """Bytes discarded without parsing after the response; None while bytes are parsed."""
        self._closing = False
        self.blocked = False
        """Whether the write buffer is above its limit because the caller reads too slowly."""
        self.due_at = self._loop.time() + bounds.limits.head_ns_max / SECOND
        """When the connection times out unless it makes progress."""

    def _refuse(self, refused: Refused) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    @property
    def unheard(self) -> bool:
        """Whether no byte has arrived on this connection yet."""
        return not self._began_at and not self._closing

    # Bytes

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        size = len(data)
        if self._discarded is not None or self._surplus:
            self._discard(size)
            return
        budget = self._budget
        budget.untimed_bytes += size + READ_BYTES
        if (
            budget.untimed_bytes > UNTIMED_BYTES_IN_ALL
            or size > (UNTIMED_BYTES if self._framing.chunked else SLICE_BYTES)
            or self._slices.unparsed
        ):
            self._slices.take(data)
        else:
            self.parse(data)

    def parse(self, data: bytes) -> bool:
        """Parses a slice. Returns whether further bytes are to be parsed."""
        if self._closing:
            return False
        try:
            if self._in_head:
                self._parse_head(data)
            else:
                self._parser.feed_data(data)
                self._take_pieces(len(data))
            self._check_sizes()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._surplus:
                self._refuse(_refused(error))
        except Refused as refused:
            self._refuse(refused)
        return not (self._closing or self._surplus or self._discarded is not None)

    def _parse_head(self, data: bytes) -> None:
        if not self._head_bytes.count and self._client is None:
            self.due_at = self._loop.time() + self._bounds.limits.head_ns_max / SECOND
        data, rest_bytes = self._head_bytes.take(data, self._bounds.limits)
        if data:
            counted = self._head_bytes.count
            self._parser.feed_data(data)
            if self._in_head and self._head_bytes.count == counted:
                self._head_bytes.count += rest_bytes  # Empty lines before a request look like the end of its head.
            self._take_pieces(0)

    def _take_pieces(self, data_bytes: int) -> None:
        """Joins the pieces of the body found in the last `data_bytes` bytes and passes them on."""
        pieces, client = self._pieces, self._client
        number, body = len(pieces), b""
        if number:
            body = pieces[0] if number == 1 else b"".join(pieces)
            pieces.clear()
            if client is not None:
                client.take_body(body)
        self._framing.add(data_bytes, number, len(body), answered=client is not None and client.finished)

    def _check_sizes(self) -> None:
        if self._in_head:
            self._head_bytes.check(self._bounds.limits)
            return
        self._framing.check()
        client = self._client
        if client is not None and client.finished and not self._framing.check_passed_over(self._bounds.limits):
            # The end of the request cannot be found any more. The caller can still read the whole response.
            self._keep_alive = False
            self._discarded = 0
            self._transport.write_eof()

    def _discard(self, size: int) -> None:
        """Drops bytes without parsing them, so that the caller can read its response before the connection ends."""
        if self._discarded is None:
            self._head_bytes.count += size
            bound, counted = self._bounds.limits.head_bytes_max, self._head_bytes.count
        else:
            self._discarded += size
            bound, counted = self._bounds.limits.passed_over_bytes_max, self._discarded
        if counted > bound:
            self.abort()

    # Bytes that wait for their turn

    def stop_reading(self) -> None:
        self._transport.pause_reading()

    def go_on_reading(self) -> None:
        if not (self._closing or self._slices.unparsed or (self.blocked and self._client is None)):
            self._transport.resume_reading()

    def give_up_reading(self) -> None:
        self._refuse(Refused(503, "too many request bodies are being received at once; retry in a moment"))

    # Callbacks of the parser

    def on_message_begin(self) -> None:
        self._began_at = time.monotonic_ns()
        self._head = RequestHead()

    def on_url(self, url: bytes) -> None:
        self._head.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            # A trailer; the gateway does not use trailers.
            self._framing.add_trailer(self._bounds.limits)
            return
        self._head.add(name, value, self._bounds.limits)


def _refused(error: httptools.HttpParserError | httptools.HttpParserUpgrade) -> Refused:
    """Converts a parser error. Raises it unchanged if a callback failed for another reason."""
    match error:
        case httptools.HttpParserCallbackError():
            if not isinstance(error.__context__, Refused):
                raise error
            return error.__context__
        case httptools.HttpParserUpgrade():
            return Refused(400, "this kind of request is not supported; use HTTP/1.1")
        case _:
            return Refused(400, f"the bytes are not an HTTP/1.1 request: {error}")
