"""How do the bytes of one attempt reach the caller?

They pass as they come. A streamed answer is looked at only for event boundaries, its end, errors
and usage; nothing reaches the caller before the first event is known not to be an error, so that
a failure up to there can still be tried elsewhere; of two attempts at once the one that gets there
first goes on, and the other has sent nothing. An answer that is not streamed is held until
it is whole, as long as it is of ordinary size, so that a broken one is never delivered.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from headgate.core.events import AttemptEnding
from headgate.edge.client import Client, Headers
from headgate.edge.open_attempts import OpenAttempt
from headgate.model.fault import Fault
from headgate.model.ticket import Api
from headgate.model.usage import Usage, UsageSource
from headgate.ports.engine import Answer, Call, Engine, EngineFault, FramedAnswer
from headgate.wire.replies import read_error, reported_error
from headgate.wire.responses import scanner_for
from headgate.wire.sse import StreamScanner
from headgate.wire.usage import UsageFinder

FirstTokenNotice = Callable[[], None]

_HELD_MAX = 1024 * 1024
_END_BYTES = 64
_ERROR_BODY_MAX = 64 * 1024
_KINDS_TOLD = frozenset({"application/json", "application/xml", "text/event-stream", "text/html", "text/plain"})
"""Content types that may stand in a message. Others are the engine's own words."""

_UNAVAILABLE = frozenset({502, 503, 504})
"""Error statuses unrelated to the request: the engine, or a proxy in front of it, cannot serve."""


@dataclass(frozen=True, slots=True)
class Result:
    """How the attempt ended."""

    ending: AttemptEnding
    detail: str = ""
    usage: Usage | None = None
    fault: Fault | None = None
    """Kind of failure, if the attempt failed."""
    disbelieved: bool = False
    """Whether the engine reported impossible usage."""


@dataclass(frozen=True, slots=True)
class EngineReply:
    """An engine's own verdict on the request, to be passed on as it is."""

    status: int
    content_type: str
    body: bytes


class Relay:
    """One attempt: from the call to the last byte."""

    def __init__(self, client: Client, attempt: OpenAttempt, headers: Headers, *, quotes_engine: bool) -> None:
        self._client = client
        self._quotes_engine = quotes_engine
        """Whether what an engine says of an error goes into ours. It may repeat the prompt, and ours are logged."""
        self._attempt = attempt
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        self._paces = False
        self.refusal: EngineReply | None = None

    async def run(self, engine: Engine, call: Call, first_token: FirstTokenNotice) -> Result:
        try:
            answer = await engine.ask(call)
        except EngineFault as fault:
            return _failed(str(fault), fault=fault.fault)
        try:
            if answer.status >= 300:
                return await self._error(answer)
            streamed = answer.content_type.lower().startswith("text/event-stream")
            if streamed and call.body.stream:
                keep_usage, progress = call.body.wants_usage, answer.reports_progress
                scanner = scanner_for(call.api, keep_usage_chunk=keep_usage, drop_progress=progress)
                return await self._stream(answer, scanner, first_token)
            if not streamed and not call.body.stream:
                return await self._whole(answer, first_token, tensors=call.api is Api.INFER)
            # A caller that reads events finds none in anything else, and would take that for all there is.
            error = None if streamed else reported_error(await _beginning(answer))
            if error is not None:
                return _failed(self._quote("", error))
            kind = answer.content_type.partition(";")[0].strip().lower()
            told = kind if kind in _KINDS_TOLD else "a content type of its own"
            return _failed(f"the engine answered with {told}, unasked")
        except EngineFault as fault:
            return _failed(str(fault), fault=fault.fault)
        finally:
            answer.close()

    async def _stream(self, answer: Answer, scanner: StreamScanner, first_token: FirstTokenNotice) -> Result:
        head = (answer.status, [*self._headers, (b"content-type", answer.content_type.encode())])

        def begin() -> None:
            first_token()
            self._pace(answer)

        stream = _Stream(self._client, self._attempt, scanner, head, begin)
        try:
            await answer.pour(stream.take)
        finally:
            self._pace_no_more()
            self._saw_last()
        if scanner.done:
            answer.let_end()
            return Result(AttemptEnding.COMPLETED, "", scanner.usage)
        if scanner.error is not None:
            return _failed(self._quote("", scanner.error), scanner.usage)
        if scanner.overlong:
            return _failed("the engine sent an event without end", scanner.usage)
        return _failed("the stream ended before its last event", scanner.usage)

    def _pace(self, answer: Answer) -> None:
        """Takes from the engine no faster than the caller reads, from the moment it speaks for the request."""

        def go_on() -> None:
            # While the caller did not read, the engine could not be heard.
            self._attempt.heard_at = self._loop.time()
            answer.resume()

        client = self._client
        client.on_blocked, client.on_unblocked = answer.pause, go_on
        self._paces = True
        if client.blocked:
            answer.pause()

    def _saw_last(self) -> None:
        """Once for all its bytes: to look at the clock for each of them would cost more than it tells."""
        record = self._attempt.record
        if record.first_byte_at and not record.last_byte_at:
            record.last_byte_at = time.monotonic_ns()

    def _pace_no_more(self) -> None:
        if self._paces:
            self._client.on_blocked = self._client.on_unblocked = None

    async def _whole(self, answer: Answer, first_token: FirstTokenNotice, *, tensors: bool) -> Result:
        self._begin_whole()
        first_token()
        headers, any_bytes = [*self._headers, (b"content-type", answer.content_type.encode())], False
        if tensors and isinstance(answer, FramedAnswer):
            # Tensors may be data of any kind, and an answer about a model may be empty: only its frame tells its end.
            headers += answer.kept_headers
            any_bytes = answer.is_framed
        whole = _Whole(self._client, (answer.status, headers), any_bytes=any_bytes)
        self._pace(answer)
        try:
            await answer.pour(whole.take)
        finally:
            self._pace_no_more()
            self._saw_last()
        result = whole.conclude(self._quote)
        if answer.usage_estimated and result.usage is not None:
            return replace(result, usage=replace(result.usage, source=UsageSource.ESTIMATED))
        return result

    def _begin_whole(self) -> None:
        """Records when the answer arrived. An answer that was streamed to the gateway is complete by now."""
        record, now = self._attempt.record, time.monotonic_ns()
        self._attempt.reports_tokens = False
        if record.held_back:
            record.held_back, record.last_byte_at = False, now
        else:
            record.first_byte_at = now

    def _quote(self, how: str, said: str) -> str:
        quoted = f": {said or 'without a message'}" if self._quotes_engine else ""
        return f"the engine reported an error{how}{quoted}"

    async def _error(self, answer: Answer) -> Result:
        text = await _beginning(answer)
        detail = self._quote(f" with {answer.status}", read_error(text))
        if not answer.blames_request(text):
            accepted = answer.status >= 500 and answer.status not in _UNAVAILABLE
            return _failed(detail, fault=Fault.ANSWER if accepted else Fault.UNAVAILABLE)
        # Some engines report a mistake of the caller as a failure of their own. To callers it is what it is.
        status = answer.status if answer.status < 500 else 400
        self.refusal = EngineReply(status, answer.content_type, text)
        return Result(AttemptEnding.REFUSED, detail)


class _Stream:
    """A streamed answer on its way from the engine to the caller. `take` runs for each read of each stream."""

    __slots__ = ("_attempt", "_client", "_first_token", "_head", "_scanner", "_write")

    def __init__(
        self,
        client: Client,
        attempt: OpenAttempt,
        scanner: StreamScanner,
        head: tuple[int, Headers],
        first_token: FirstTokenNotice,
    ) -> None:
        self._client = client
        self._write = client.write
        self._attempt = attempt
        self._scanner = scanner
        self._head = head
        self._first_token = first_token

    def take(self, data: bytes) -> bool:
        """Passes on what is to be passed on. True when nothing after it matters."""
        attempt, scanner = self._attempt, self._scanner
        if attempt.stopped is not None:
            # Its end has been decided in this turn of the loop, and what comes too late must not look like another.
            return True
        forward = scanner.feed(data)
        attempt.events = scanner.events
        if scanner.closed or not attempt.first_seen:
            return self._begin_or_end(forward)
        if forward:
            self._write(forward)
        return False

    def _begin_or_end(self, forward: bytes) -> bool:
        client, scanner, attempt = self._client, self._scanner, self._attempt
        if not attempt.first_seen:
            if not (scanner.events or scanner.done):
                return scanner.closed
            attempt.first_seen = True
            attempt.record.first_byte_at = time.monotonic_ns()
            self._first_token()
            if attempt.stopped is not None:
                return True
            client.start(*self._head)
        if scanner.done:
            attempt.record.last_byte_at = time.monotonic_ns()
            # `[DONE]` goes with the end itself, or an attempt stopped between the two would look complete.
            client.finish(forward)
        elif forward:
            client.write(forward)
        return scanner.closed


class _Whole:
    """An answer that is not streamed, held until it is known to be whole or has grown too large to be held."""

    __slots__ = ("_any_bytes", "_client", "_finder", "_head", "_held")

    def __init__(self, client: Client, head: tuple[int, Headers], *, any_bytes: bool = False) -> None:
        self._client = client
        self._any_bytes = any_bytes
        """Whether it need not be JSON."""
        self._head = head
        self._finder = UsageFinder()
        self._held = bytearray()

    def take(self, data: bytes) -> bool:
        self._finder.feed(data)
        self._held += data
        if not self._client.started:
            if len(self._held) <= _HELD_MAX:
                return False
            self._client.start(*self._head)
            data = bytes(self._held)
        self._client.write(data)
        # The end tells whether it is whole.
        del self._held[:-_END_BYTES]
        return False

    def conclude(self, quote: Callable[[str, str], str]) -> Result:
        """The engine has sent all it had to send."""
        if not self._client.started and (error := reported_error(self._held)) is not None:
            return _failed(quote("", error), self._finder.usage)
        if not self._any_bytes and not self._held.rstrip().endswith(b"}"):
            # Without a Content-Length, a broken connection looks like the end of the answer.
            return _failed("the engine's answer is not a whole JSON object")
        if self._client.started:
            self._client.finish()
        else:
            self._client.reply(*self._head, bytes(self._held))
        return Result(AttemptEnding.COMPLETED, "", self._finder.usage)


def _failed(detail: str, usage: Usage | None = None, *, fault: Fault = Fault.ANSWER) -> Result:
    return Result(AttemptEnding.FAILED, detail, usage, fault)


async def _beginning(answer: Answer) -> bytes:
    """As much of an answer as is needed to know what is wrong with it."""
    body = bytearray()
    while len(body) <= _ERROR_BODY_MAX and (data := await answer.read()):
        body += data
    return bytes(body[:_ERROR_BODY_MAX])
