"""How does one connection to an engine carry a question and its answer?

HTTP/1.1 by httptools, one question at a time. Whoever wants the bytes either reads them one after the other or has them
poured: handed over inside the very callback in which they come from the socket, which is how streams are relayed.

An answer that is let go before its end has its connection cut, and that is how an engine learns that nobody waits any
more. It is cut both ways at once: some engines take a half-closed connection for a client that has left, others do not
notice it at all. Bytes that nobody asked for make a connection unfit for another question: they could be taken for its
answer.
"""

import asyncio
import re
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, cast

import httptools

from headgate.engines.dialect import Dialect
from headgate.engines.faults import broken_off, fault_of, unanswered
from headgate.model.fault import Fault
from headgate.ports.engine import EngineFault
from headgate.wire.turn_budget import READ_BYTES, SLICE_BYTES, UNTIMED_BYTES_IN_ALL, SlicedReads, TurnBudget

HEAD_BYTES_MAX: Final = 64 * 1024
CONTENT_TYPE_BYTES_MAX: Final = 256
INTERIM_MAX: Final = 8
"""How many provisional answers (1xx) may come before the real one."""
READ_BUFFER_BYTES: Final = 64 * 1024
"""As much is held for one answer whose reader is slow, and one more read; then the engine's socket is left full."""
FRAMING_BYTES_MAX: Final = 16 * 1024
"""Maximum size of a chunk extension, or of all trailers, without a byte of the body between them."""
_UNBROKEN_BYTES_MAX: Final = FRAMING_BYTES_MAX + SLICE_BYTES
UNTIMED_BYTES: Final = 4 * 1024
"""Reads up to this size are parsed at once; longer ones in slices, within the time budget of the turn."""
END_S_MAX: Final = 1.0
"""How long to wait, after all that matters, for the clean end that lets the connection be used again."""

_UNPRINTABLE: Final = re.compile(rb"[^\x20-\x7e]")
_KEPT: Final = (b"inference-header-content-length",)
"""Headers that belong to the body."""
_KEPT_BYTES_MAX: Final = 32


class EngineConnection(asyncio.Protocol):
    """Also the protocol of its parser."""

    __slots__ = (
        "_answer",
        "_budget",
        "_framing_bytes",
        "_head_bytes",
        "_headers",
        "_interim",
        "_joins",
        "_loop",
        "_on_free",
        "_on_lost",
        "_parser",
        "_paused",
        "_pieces",
        "_slices",
        "_transport",
        "_until_close",
        "_waiter",
        "idle_since",
        "is_open",
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
        self._parser: httptools.HttpResponseParser
        self._answer: HttpAnswer | None = None
        """The answer under way; None before its head and after its end."""
        self._waiter: asyncio.Future[HttpAnswer] | None = None
        """Who awaits the head of an answer."""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._framing_bytes = 0
        """Bytes received since the last piece of the body, including the read that contained it."""
        self._pieces: list[bytes] = []
        """Pieces of the body found in the current slice."""
        self._joins = False
        """Whether pieces are collected and passed on together at the end of a slice."""
        self._budget = budget
        self._slices = SlicedReads(budget, self)
        self._interim = 0
        self._until_close = False
        """Whether the answer goes on until the engine closes, having told no length."""
        self._paused = False
        self.idle_since = 0.0
        self.is_open = False

    async def ask(
        self, question: list[bytes | memoryview], dialect: Dialect, sent: Callable[[], None] | None = None
    ) -> "HttpAnswer":
        """Sends the question and gives the answer once its head has come. Raises `EngineFault`."""
        if not self.is_open:
            raise EngineFault(unanswered(None), Fault.CONNECTION)
        self._parser = httptools.HttpResponseParser(self)
        self._headers = {}
        self._head_bytes = self._framing_bytes = self._interim = 0
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
                # The head has come. A whole answer has freed the connection, and it may carry another's question.
                waiter.result().close()
            raise
        answer.dialect = dialect
        return answer

    # What asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but its bases.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        size = len(data)
        budget = self._budget
        budget.untimed_bytes += size + READ_BYTES
        if budget.untimed_bytes > UNTIMED_BYTES_IN_ALL or size > UNTIMED_BYTES or self._slices.unparsed:
            self._take_timed(data)
        else:
            self._parse(data)

    def _take_timed(self, data: bytes) -> None:
        if self._answer is None and self._waiter is None:
            self.abort()  # Later they would be taken for the response to the next request.
            return
        self._slices.take(data)
        if not self._slices.unparsed:
            self.go_on_reading()  # The answer may have paused and resumed reading during parsing.

    def parse(self, data: bytes) -> bool:
        """Parses a slice of a long read and passes its body on in one piece. Returns whether to parse more slices."""
        self._joins = True
        try:
            self._parse(data)
        finally:
            self._joins = False
            self._hand_on()
        return self.is_open

    def _parse(self, data: bytes) -> None:
        if self._answer is None:
            if self._waiter is None:
                # Nobody asked: whatever this is, it could be taken for the answer to the next question.
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
            self._fail(EngineFault(f"its answer is not HTTP ({error})"))
        self._framing_bytes += len(data)
        if self._framing_bytes > _UNBROKEN_BYTES_MAX:
            self._check_sizes()

    def _check_sizes(self) -> None:
        if self._answer is not None:
            self._fail(EngineFault(f"a chunk extension or its trailers exceed {FRAMING_BYTES_MAX} bytes"))
        elif self._waiter is not None and self._head_bytes > HEAD_BYTES_MAX:
            self._fail(EngineFault(f"the head of its answer has more than {HEAD_BYTES_MAX} bytes"))

    def _hand_on(self) -> None:
        """Joins the pieces of the body found in a slice and passes them to the answer."""
        pieces, answer = self._pieces, self._answer
        if not pieces:
            return
        body = b"".join(pieces)
        pieces.clear()
        if answer is not None:
            answer.take(body)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._slices.drop()
        self._on_lost(self)
        if self._answer is not None:
            answer, self._answer = self._answer, None
            answer.end(
                None if self._until_close and exc is None else EngineFault(broken_off(exc), fault_of(exc, Fault.ANSWER))
            )
        self._refuse(EngineFault(unanswered(exc), fault_of(exc, Fault.CONNECTION)))

    # What the parser tells

    def on_message_begin(self) -> None:
        if self._waiter is None:
            raise EngineFault("it sent more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._waiter is not None:
            self._headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status == 101 or self._interim > INTERIM_MAX:
            raise EngineFault(f"it answered {status}, unasked")
        if status < 200:
            self._interim += 1
            return
        assert self._waiter is not None
        waiter, self._waiter = self._waiter, None
        self._framing_bytes = 0
        if waiter.done():
            raise EngineFault("nobody waits for its answer any more")
        headers = self._headers
        bodiless = status in (204, 304)
        self._until_close = not bodiless and b"content-length" not in headers and b"transfer-encoding" not in headers
        # It goes into a header of our own answer, where not every character may stand.
        said = headers.get(b"content-type", b"application/octet-stream")[:CONTENT_TYPE_BYTES_MAX]
        kind = _UNPRINTABLE.sub(b"?", said)
        self._answer = HttpAnswer(self, status, kind.decode("ascii"))
        self._answer.is_framed = not self._until_close
        self._answer.kept_headers = tuple((name, headers[name][:_KEPT_BYTES_MAX]) for name in _KEPT if name in headers)
        waiter.set_result(self._answer)

    def on_body(self, data: bytes) -> None:
        self._framing_bytes = 0
        if self._joins:
            self._pieces.append(data)
        elif self._answer is not None:
            self._answer.take(data)

    def on_message_complete(self) -> None:
        self._hand_on()
        if self._answer is None:
            self._headers = {}  # A provisional answer: the real one follows.
            return
        answer, self._answer = self._answer, None
        answer.end(None)
        # Bytes after the answer would be taken for the next one.
        unsent_or_unparsed = self._transport.get_write_buffer_size() or self._slices.unparsed_bytes
        if self._parser.should_keep_alive() and not unsent_or_unparsed and self.is_open:
            self.resume()
            self._on_free(self)
        else:
            # A plain close would wait until the engine has read what is still being sent.
            self.abort()

    # For the answer and the engine

    def pause(self) -> None:
        if not self._paused and self.is_open:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self.go_on_reading()

    # Bytes that wait for their turn

    def stop_reading(self) -> None:
        self._transport.pause_reading()

    def go_on_reading(self) -> None:
        if self.is_open and not self._paused and not self._slices.unparsed:
            self._transport.resume_reading()

    def give_up_reading(self) -> None:
        reason = "the gateway has too many bytes from engines waiting to be parsed"
        self._fail(EngineFault(reason, Fault.GATEWAY))

    # Ends

    def close(self) -> None:
        """For a connection that carries nothing."""
        self.is_open = False
        self._transport.close()

    def abort(self) -> None:
        """Cut, without waiting for the engine to read what is still being sent; nobody is told."""
        self.is_open = False
        self._slices.drop()
        self._answer = self._waiter = None
        self._transport.abort()

    def _fail(self, fault: EngineFault) -> None:
        """What comes over this connection can no longer be trusted."""
        self._hand_on()
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.end(EngineFault(f"the engine's answer broke off: {fault}", fault.fault))
        self._refuse(EngineFault(f"the engine could not be asked: {fault}", fault.fault))
        self.abort()

    def _refuse(self, fault: EngineFault) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(fault)


class HttpAnswer:
    """An answer whose head has come."""

    __slots__ = (
        "_connection",
        "_ended",
        "_enough",
        "_fault",
        "_held",
        "_held_bytes",
        "_paused",
        "_take",
        "_waiter",
        "content_type",
        "dialect",
        "is_framed",
        "kept_headers",
        "reports_progress",
        "status",
    )
    usage_estimated = False

    def __init__(self, connection: EngineConnection, status: int, content_type: str) -> None:
        self.status = status
        self.content_type = content_type
        self.reports_progress = False
        self.kept_headers: tuple[tuple[bytes, bytes], ...] = ()
        self.is_framed = True
        self.dialect: Dialect
        self._connection: EngineConnection | None = connection
        """None once the answer has come to its end: the connection may then carry another."""
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._take: Callable[[bytes], bool] | None = None
        self._paused = False
        self._enough = False
        """Whether the one it is poured to wants no more."""
        self._ended = False
        self._fault: EngineFault | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        while not self._held:
            if self._ended:
                if self._fault is not None:
                    raise self._fault
                return b""
            await self._wait()
        data = self._held.popleft()
        self._held_bytes -= len(data)
        if self._connection is not None and not self._paused:
            self._connection.resume()
        return data

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        self._take = take
        self._go_on()
        while not self._enough and (self._held or not self._ended):
            await self._wait()
        if not self._enough and self._fault is not None:
            raise self._fault

    def pause(self) -> None:
        self._paused = True
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        self._paused = False
        self._go_on()

    def blames_request(self, body: bytes) -> bool:
        return self.dialect.blames_request(self.status, body)

    def let_end(self) -> None:
        self._take, self._paused = _pass_over, False
        self._held.clear()
        if self._connection is not None:
            self._connection.resume()
            asyncio.get_running_loop().call_later(END_S_MAX, self._cut)

    def close(self) -> None:
        if self._take is not _pass_over:
            self._cut()

    def _cut(self) -> None:
        self._take = None
        if self._connection is not None:
            connection, self._connection = self._connection, None
            connection.abort()

    # Told by the connection

    def take(self, data: bytes) -> None:
        take = self._take
        if take is not None and not self._paused and not self._held:
            if take(data):
                self._have_enough()
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > READ_BUFFER_BYTES and self._connection is not None:
            self._connection.pause()
        if take is None:
            self._wake()

    def end(self, fault: EngineFault | None) -> None:
        self._ended = True
        self._fault = fault
        self._connection = None
        self._wake()

    def _have_enough(self) -> None:
        self._enough, self._take = True, None
        self._wake()

    def _go_on(self) -> None:
        """Passes on held bytes within the budget of this turn, and schedules the rest."""
        handed = 0
        while self._held and self._take is not None and not self._paused:
            if handed >= READ_BUFFER_BYTES:
                asyncio.get_running_loop().call_soon(self._go_on)
                return
            data = self._held.popleft()
            handed += len(data)
            self._held_bytes -= len(data)
            if self._take(data):
                self._have_enough()
        if self._ended and not self._held:
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


def _pass_over(_: bytes) -> bool:
    return False
