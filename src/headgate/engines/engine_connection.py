"""One HTTP/1.1 connection to an engine, parsed with httptools.

A connection carries one request at a time. A reader either awaits each read, or passes a function that the socket
callback calls with the bytes. Streams are relayed the second way.

If a response is released before it ends, its connection is aborted, so that the engine notices that the client is gone.
Both directions are closed at the same time: some engines treat a half-closed connection as a disconnect, others do not
notice it at all. Unexpected bytes make a connection unusable for another request, because they could be mistaken for
its response.
"""

import asyncio
import re
import socket
from collections.abc import Callable
from typing import Final, cast

import httptools

from headgate.engines.dialect import Dialect
from headgate.engines.faults import broken_off_message, fault_of, unanswered_message
from headgate.engines.http_response import HttpResponse
from headgate.model.fault import Fault
from headgate.ports.engine import EngineFault
from headgate.wire.chunk_sizes import CHUNKS, END_OF_CHUNK, READ_BYTES_MAX
from headgate.wire.turn_budget import READ_BYTES, SLICE_BYTES, UNTIMED_BYTES_TOTAL, SlicedReads, TurnBudget

HEAD_BYTES_MAX: Final = 64 * 1024
CONTENT_TYPE_BYTES_MAX: Final = 256
INTERIM_MAX: Final = 8
"""Maximum number of interim responses (1xx) before the final one."""
FRAMING_BYTES_MAX: Final = 16 * 1024
"""Maximum size of a chunk extension, or of all trailers, without body bytes in between."""
_FRAMING_RUN_BYTES_MAX: Final = FRAMING_BYTES_MAX + SLICE_BYTES
UNTIMED_BYTES: Final = 4 * 1024
"""Maximum size of a read that is parsed in one step. Larger reads are parsed in slices, within the time budget."""

_UNPRINTABLE: Final = re.compile(rb"[^\x20-\x7e]")
_USUAL_CONTENT_TYPES: Final = {
    text.encode(): text for text in ("application/json", "text/event-stream", "text/event-stream; charset=utf-8")
}
_BODY_HEADER: Final = b"inference-header-content-length"
"""Header that is needed to read the body."""
_BODY_HEADER_BYTES_MAX: Final = 32


class EngineConnection(asyncio.Protocol):
    """Connection to an engine. Also receives the callbacks from its HTTP parser."""

    __slots__ = (
        "_between_chunks",
        "_budget",
        "_chunk_ended",
        "_collects_pieces",
        "_framing_bytes",
        "_head_bytes",
        "_headers",
        "_interim",
        "_loop",
        "_on_free",
        "_on_lost",
        "_parser",
        "_paused",
        "_pieces",
        "_response",
        "_slices",
        "_transport",
        "_waiter",
        "idle_since",
        "is_open",
        "keeps_headers",
    )

    def __init__(
        self,
        on_free: "Callable[[EngineConnection], None]",
        on_lost: "Callable[[EngineConnection], None]",
        budget: TurnBudget,
    ) -> None:
        self._on_free = on_free
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        """Parser of all responses on this connection. After a complete response, it begins with the next one."""
        self._response: HttpResponse | None = None
        """Response in progress. None before its head arrives and after it ends."""
        self._waiter: asyncio.Future[HttpResponse] | None = None
        """Future that resolves when the response head arrives."""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._framing_bytes = 0
        """Bytes received since the last piece of the body, including the whole read that contained it."""
        self._pieces: list[bytes] = []
        """Body pieces in the current slice."""
        self._collects_pieces = False
        """Whether pieces are collected and passed on together at the end of a slice."""
        self._chunk_ended = False
        """Whether the parser has reported the end of a chunk, and no chunk since then."""
        self._between_chunks = False
        """Whether the parser has seen the end of a chunk and nothing after it, and no bytes are waiting for it."""
        self._budget = budget
        self._slices = SlicedReads(budget, self)
        self._interim = 0
        self._paused = False
        self.idle_since, self.is_open = 0.0, False
        self.keeps_headers = False
        """Whether responses keep their headers."""

    async def ask(
        self, question: list[bytes | memoryview], dialect: Dialect, sent: Callable[[], None] | None = None
    ) -> HttpResponse:
        """Sends a request and returns the response once its head has arrived. Raises `EngineFault`."""
        if not self.is_open:
            raise EngineFault(unanswered_message(None), Fault.CONNECTION)
        self._headers = {}
        self._head_bytes = self._framing_bytes = self._interim = 0
        self._chunk_ended = self._between_chunks = False
        waiter = self._waiter = self._loop.create_future()
        self._transport.writelines(question)
        if sent is not None:
            sent()
        try:
            answer = await waiter
        except asyncio.CancelledError:
            if self._waiter is waiter:
                self.abort()
            elif not waiter.cancelled() and waiter.exception() is None:
                # The head has arrived. If the response is already complete, the connection may be serving another
                # request.
                waiter.result().close()
            raise
        answer.dialect = dialect
        return answer

    # asyncio callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass of it.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        size = len(data)
        budget = self._budget
        budget.untimed_bytes = untimed_bytes = budget.untimed_bytes + size + READ_BYTES
        # Between two chunks no bytes are waiting, so the read is next if this turn has time left.
        untimed = untimed_bytes <= UNTIMED_BYTES_TOTAL
        if self._between_chunks and size <= READ_BYTES_MAX and (untimed or budget.allows()):
            answer = self._response
            if answer is not None and (
                ((take_chunk := answer.take_chunk) is not None and take_chunk(data)) or _feed_chunk(answer, data)
            ):
                # The read is one complete chunk, after which the parser would be in the same state as before.
                self._framing_bytes = size
                return
        if untimed and size <= UNTIMED_BYTES and not self._slices.unparsed:
            self._parse(data)
        else:
            self._parse_in_slices(data)

    def _parse_in_slices(self, data: bytes) -> None:
        if self._response is None and self._waiter is None:
            self.abort()  # The bytes could be mistaken for the response to the next request.
            return
        self._between_chunks = False  # These bytes may wait for the next turn.
        self._slices.feed(data)
        if not self._slices.unparsed:
            self.resume_reading()  # The response may have paused and resumed reading while the bytes were parsed.

    def parse(self, data: bytes) -> bool:
        """Parses a slice of a large read and passes its body on in one piece. Returns whether to parse more slices."""
        self._collects_pieces = True
        try:
            self._parse(data)
        finally:
            self._collects_pieces = False
            self._flush_pieces()
        return self.is_open

    def _parse(self, data: bytes) -> None:
        if self._response is None:
            if self._waiter is None:
                # There is no request in progress. The bytes could be mistaken for the response to the next one.
                self.abort()
                return
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            reason = error.__context__
            if not isinstance(reason, EngineFault):
                raise
            self._fail(reason)
        except httptools.HttpParserError as error:
            self._fail(EngineFault(f"the response is not valid HTTP ({error})"))
        # If more bytes followed the end of the chunk, a line end would complete a size line, which begins a chunk.
        self._between_chunks = self._chunk_ended and data.endswith(END_OF_CHUNK) and not self._slices.unparsed_bytes
        self._framing_bytes += len(data)
        if self._framing_bytes > _FRAMING_RUN_BYTES_MAX:
            self._check_sizes()

    def _check_sizes(self) -> None:
        if self._response is not None:
            self._fail(EngineFault(f"a chunk extension or the trailers exceed {FRAMING_BYTES_MAX} bytes"))
        elif self._waiter is not None and self._head_bytes > HEAD_BYTES_MAX:
            self._fail(EngineFault(f"the response head exceeds {HEAD_BYTES_MAX} bytes"))

    def _flush_pieces(self) -> None:
        """Joins the body pieces in a slice and passes them to the response."""
        pieces, answer = self._pieces, self._response
        if not pieces:
            return
        body = b"".join(pieces)
        pieces.clear()
        if answer is not None:
            answer.feed(body)

    def eof_received(self) -> None:
        """Does nothing, so the transport closes the connection."""

    def pause_writing(self) -> None:
        """Does nothing. A request is written at once, whatever the size of the write buffer."""

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._slices.drop()
        self._on_lost(self)
        if self._response is not None:
            answer, self._response = self._response, None
            answer.end(
                None
                if exc is None and not answer.is_framed
                else EngineFault(broken_off_message(exc), fault_of(exc, Fault.RESPONSE))
            )
        self._fail_waiter(EngineFault(unanswered_message(exc), fault_of(exc, Fault.CONNECTION)))

    # Parser callbacks

    def on_message_begin(self) -> None:
        if self._waiter is None:
            raise EngineFault("the engine sent more than one response")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._waiter is not None:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101 or self._interim > INTERIM_MAX:
            raise EngineFault(f"unexpected status {status}")
        if status < 200:
            self._interim += 1
            return
        assert self._waiter is not None
        waiter, self._waiter = self._waiter, None
        self._framing_bytes = 0
        if waiter.done():
            raise EngineFault("the request was cancelled before the response arrived")
        answer = self._response = _response(self, status, self._headers)
        if self.keeps_headers:
            answer.headers = self._headers
        waiter.set_result(answer)

    def on_body(self, data: bytes) -> None:
        self._framing_bytes = 0
        if self._collects_pieces:
            self._pieces.append(data)
        elif self._response is not None:
            self._response.feed(data)

    def on_chunk_header(self) -> None:
        self._chunk_ended = False

    def on_chunk_complete(self) -> None:
        self._chunk_ended = True

    def on_message_complete(self) -> None:
        self._flush_pieces()
        if self._response is None:
            self._headers = {}  # This was an interim response; the final one follows.
            return
        answer, self._response = self._response, None
        answer.end(None)
        # Bytes after the response would be mistaken for the next response.
        pending = self._transport.get_write_buffer_size() or (self._slices.unparsed and self._slices.unparsed_bytes)
        if self._parser.should_keep_alive() and not pending and self.is_open:
            self.resume()
            self._on_free(self)
        else:
            # A plain close would wait until the engine had read all the bytes still being sent.
            self.abort()

    # For the response and the engine client

    def pause(self) -> None:
        if not self._paused and self.is_open:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.resume_reading()

    # Sliced reads

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.is_open and not self._paused and not self._slices.unparsed:
            self._transport.resume_reading()

    def reject_overflow(self) -> None:
        self._fail(EngineFault("the gateway has too many unparsed bytes buffered from engines", Fault.GATEWAY))

    # Closing

    def close(self) -> None:
        """Closes an idle connection."""
        self.is_open = False
        self._transport.close()

    def abort(self) -> None:
        """Closes the connection without sending buffered bytes and without notifying the response."""
        self.is_open = False
        self._slices.drop()
        self._response = self._waiter = None
        self._transport.abort()

    def _fail(self, fault: EngineFault) -> None:
        """Ends the response with a fault and aborts the connection, whose bytes can no longer be trusted."""
        self._flush_pieces()
        answer, self._response = self._response, None
        if answer is not None:
            answer.end(EngineFault(f"the engine's response was truncated: {fault}", fault.fault))
        self._fail_waiter(EngineFault(f"the request to the engine failed: {fault}", fault.fault))
        self.abort()

    def _fail_waiter(self, fault: EngineFault) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(fault)


def _feed_chunk(answer: HttpResponse, read: bytes) -> bool:
    """Passes the body on if the read is one complete chunk. Returns whether it is."""
    size_line, body_bytes = CHUNKS[len(read)]
    body = read.removeprefix(size_line).removesuffix(END_OF_CHUNK)
    if len(body) != body_bytes:
        return False
    answer.feed(body)
    return True


def _response(connection: EngineConnection, status: int, headers: dict[bytes, bytes]) -> HttpResponse:
    answer = HttpResponse(connection, status, _content_type(headers))
    # Without a length, the response ends when the engine closes the connection.
    answer.is_framed = status in (204, 304) or b"content-length" in headers or b"transfer-encoding" in headers
    if _BODY_HEADER in headers:
        answer.body_headers = ((_BODY_HEADER, headers[_BODY_HEADER][:_BODY_HEADER_BYTES_MAX]),)
    return answer


def _content_type(headers: dict[bytes, bytes]) -> str:
    """Returns the content type, without characters that are invalid in a header of the gateway's own response."""
    said = headers.get(b"content-type", b"application/octet-stream")[:CONTENT_TYPE_BYTES_MAX]
    if (usual := _USUAL_CONTENT_TYPES.get(said)) is not None:
        return usual
    if said.isascii() and (text := said.decode("ascii")).isprintable():
        return text
    return _UNPRINTABLE.sub(b"?", said).decode("ascii")
