"""Relays the engine response of one attempt to the client.

A stream is forwarded as it arrives and scanned only for event boundaries, its end, errors and usage. Nothing is sent
until the first event is known not to be an error, so a failure before that can still be retried elsewhere. With a
hedge, the first attempt to reach this point continues, and the other has not sent anything.

A non-streaming response is buffered until it is complete, up to 1 MiB, so that a truncated one is never delivered.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from headgate.core.commands import Dispatch
from headgate.core.events import AttemptEnded, AttemptEnding
from headgate.edge.client import Client, Headers
from headgate.edge.open_attempts import OpenAttempt
from headgate.model.fault import Fault
from headgate.model.message import message
from headgate.model.provider_limits import ProviderLimits
from headgate.model.usage import Usage, UsageSource
from headgate.ports.engine import Call, Engine, EngineFault, EngineResponse, FramedResponse
from headgate.wire.openai_bodies import quoted_error, reported_error, whole_error
from headgate.wire.responses_scanner import scanner_for
from headgate.wire.sse import StreamScanner
from headgate.wire.usage import UsageFinder

OnFirstToken = Callable[[OpenAttempt], None]

_BUFFERED_BYTES_MAX = 1024 * 1024
_TAIL_BYTES = 64
_ERROR_BODY_MAX = 64 * 1024
_REPORTABLE_CONTENT_TYPES = frozenset(
    {"application/json", "application/xml", "text/event-stream", "text/html", "text/plain"}
)
"""Content types that error messages may include. Any other value is arbitrary text from the engine."""

_UNAVAILABLE = frozenset({502, 503, 504})
"""Error statuses that do not depend on the request. The engine, or a proxy in front of it, is unavailable."""

# In Python 3.11, access to a member through its enum takes as long as several function calls.
_COMPLETED = AttemptEnding.COMPLETED


@message
class AttemptResult:
    """Result of an attempt."""

    ending: AttemptEnding
    detail: str = ""
    usage: Usage | None = None
    fault: Fault | None = None
    """Kind of failure. None if the attempt did not fail."""
    usage_implausible: bool = False
    """Whether the engine reported impossible usage."""
    limits: ProviderLimits | None = None
    """Rate limits that a hosted provider reported, if the scheduler does not know them yet."""

    def event(self, dispatch: Dispatch, *, first_token: bool) -> AttemptEnded:
        """Returns the event for the scheduler. `first_token` is whether it also reports the first token."""
        return AttemptEnded(
            dispatch.request_id,
            dispatch.attempt,
            self.ending,
            self.detail,
            self.usage,
            self.fault,
            self.usage_implausible,
            first_token,
            self.limits,
        )


@dataclass(frozen=True, slots=True)
class EngineReply:
    """Engine response that rejects the request. It is forwarded unchanged."""

    status: int
    content_type: str
    body: bytes


class Relay:
    """Relay of one attempt, from the call to the last byte."""

    def __init__(
        self,
        client: Client,
        attempt: OpenAttempt,
        headers: Headers,
        quotes_engine: bool,  # noqa: FBT001 (keyword arguments make the call slower)
        on_first_token: OnFirstToken,
    ) -> None:
        self._client = client
        self._on_first_token = on_first_token
        self._quotes_engine = quotes_engine
        """Whether to quote engine error messages. They may contain the prompt, and the gateway logs its messages."""
        self._attempt = attempt
        self._headers = headers
        self._pacing = False
        self.rejection: EngineReply | None = None

    async def run(self, engine: Engine, call: Call) -> AttemptResult:
        try:
            answer = await engine.ask(call)
        except EngineFault as fault:
            return _failed(str(fault), fault=fault.fault)
        try:
            if answer.status >= 300:
                return await self._relay_error(answer)
            streamed = answer.content_type.lower().startswith("text/event-stream")
            if streamed and call.body.stream:
                keep_usage, progress = call.body.wants_usage, answer.reports_progress
                scanner = scanner_for(call.api, keep_usage_chunk=keep_usage, drop_progress=progress)
                return await self._relay_stream(answer, scanner)
            if not streamed and not call.body.requires_stream:
                return await self._relay_whole(answer, any_format=not call.body.returns_json)
            # A client that expects a stream would mistake any other response for an empty stream.
            error = None if streamed else reported_error(await _read_start(answer))
            if error is not None:
                return _failed(self._quote("", error, answer.secret))
            kind = answer.content_type.partition(";")[0].strip().lower()
            told = kind if kind in _REPORTABLE_CONTENT_TYPES else "an unknown content type"
            return _failed(f"the engine responded with {told} instead of the requested format")
        except EngineFault as fault:
            return _failed(str(fault), fault=fault.fault)
        finally:
            answer.close()

    async def _relay_stream(self, answer: EngineResponse, scanner: StreamScanner) -> AttemptResult:
        head = (answer.status, [*self._headers, (b"content-type", answer.content_type.encode())])

        def begin() -> None:
            self._on_first_token(self._attempt)
            self._start_pacing(answer)

        stream = _StreamRelay(self._client, self._attempt, scanner, head, begin)
        try:
            await answer.stream_to(stream.feed, stream.forward_chunk)
        finally:
            self._stop_pacing()
            self._record_last_byte()
        if scanner.done:
            answer.drain()
            return AttemptResult(_COMPLETED, "", scanner.usage)
        if scanner.error is not None:
            return _failed(self._quote("", scanner.error, answer.secret), scanner.usage)
        if scanner.overlong:
            return _failed("the engine sent an event that is too long", scanner.usage)
        return _failed("the stream ended before its last event", scanner.usage)

    def _start_pacing(self, answer: EngineResponse) -> None:
        """Reads from the engine no faster than the client reads, once this attempt has started the response."""

        def go_on() -> None:
            # While the client was not reading, nothing was read from the engine.
            self._attempt.last_progress_at = asyncio.get_running_loop().time()
            answer.resume()

        client = self._client
        client.on_blocked, client.on_unblocked = answer.pause, go_on
        self._pacing = True
        if client.blocked:
            answer.pause()

    def _record_last_byte(self) -> None:
        """Records the time of the last byte. Called once, because reading the clock for each byte is too expensive."""
        record = self._attempt.record
        if record.first_byte_at and not record.last_byte_at:
            record.last_byte_at = time.monotonic_ns()

    def _stop_pacing(self) -> None:
        if self._pacing:
            self._client.on_blocked = self._client.on_unblocked = None

    async def _relay_whole(self, answer: EngineResponse, *, any_format: bool) -> AttemptResult:
        body = answer.take_body()
        self._attempt.response_arrived = body is not None
        self._record_arrival()
        self._on_first_token(self._attempt)
        headers, any_bytes = [*self._headers, (b"content-type", answer.content_type.encode())], False
        if any_format and isinstance(answer, FramedResponse):
            # Only HTTP framing marks the end of binary tensors and of plain text.
            headers += answer.body_headers
            any_bytes = answer.is_framed
        # A transcript in plain text could contain what looks like usage.
        finder = UsageFinder() if not any_format or _is_json(answer.content_type) else None
        whole = _WholeRelay(self._client, (answer.status, headers), finder, any_bytes=any_bytes)
        if body is None:
            await self._read_whole(answer, whole)
        else:
            whole.feed(body)
            self._record_last_byte()
        result = whole.finish(lambda error: self._quote("", error, answer.secret))
        if answer.usage_estimated and result.usage is not None:
            return replace(result, usage=replace(result.usage, source=UsageSource.ESTIMATED))
        return result

    async def _read_whole(self, answer: EngineResponse, whole: "_WholeRelay") -> None:
        self._start_pacing(answer)
        try:
            await answer.stream_to(whole.feed)
        finally:
            self._stop_pacing()
            self._record_last_byte()

    def _record_arrival(self) -> None:
        """Records when the response arrived. A response streamed to the gateway is already complete at this point."""
        record, now = self._attempt.record, time.monotonic_ns()
        self._attempt.reports_tokens = False
        if record.buffered:
            record.buffered, record.last_byte_at = False, now
        else:
            record.first_byte_at = now

    def _quote(self, how: str, said: str, secret: str) -> str:
        """Returns a description of an error. `said` is the engine's whole message, which may contain the secret."""
        if not self._quotes_engine:
            return f"the engine reported an error{how}"
        return f"the engine reported an error{how}: {quoted_error(said, secret) or 'no message'}"

    async def _relay_error(self, answer: EngineResponse) -> AttemptResult:
        text = await _read_start(answer)
        detail = self._quote(f" with status {answer.status}", whole_error(text), answer.secret)
        if not answer.is_request_error(text):
            accepted = answer.status >= 500 and answer.status not in _UNAVAILABLE
            return _failed(detail, fault=Fault.RESPONSE if accepted else Fault.UNAVAILABLE)
        # Some engines report client errors as server errors. The client gets a 400 instead.
        status = answer.status if answer.status < 500 else 400
        self.rejection = EngineReply(status, answer.content_type, text)
        return AttemptResult(AttemptEnding.REJECTED, detail)


class _StreamRelay:
    """Relay of a streaming response. `forward_chunk` or `feed` runs for each read of each stream."""

    __slots__ = ("_attempt", "_client", "_first_token", "_head", "_scanner", "_write", "_write_chunk")

    def __init__(
        self,
        client: Client,
        attempt: OpenAttempt,
        scanner: StreamScanner,
        head: tuple[int, Headers],
        first_token: Callable[[], None],
    ) -> None:
        self._client = client
        self._write = client.write
        self._write_chunk: Callable[[bytes], None] | None = None
        """Writes an HTTP chunk to the client, once the response has started in chunks."""
        self._attempt = attempt
        self._scanner = scanner
        self._head = head
        self._first_token = first_token

    def forward_chunk(self, chunk: bytes) -> bool:
        """Forwards an HTTP chunk in its framing if nothing in it needs attention. Returns whether it did."""
        write, attempt, scanner = self._write_chunk, self._attempt, self._scanner
        if write is None or attempt.stop_cause is not None or not scanner.passes_chunk(chunk):
            return False
        attempt.events = scanner.events
        write(chunk)
        return True

    def feed(self, data: bytes) -> bool:
        """Forwards the data that the client should receive. Returns True when the stream has ended."""
        attempt, scanner = self._attempt, self._scanner
        if attempt.stop_cause is not None:
            # The attempt was stopped during this iteration of the event loop. Late data must not change its result.
            return True
        forward = scanner.feed(data)
        attempt.events = scanner.events
        if scanner.closed or not attempt.first_token_seen:
            return self._begin_or_end(forward)
        if forward:
            self._write(forward)
        return False

    def _begin_or_end(self, forward: bytes) -> bool:
        client, scanner, attempt = self._client, self._scanner, self._attempt
        if not attempt.first_token_seen:
            if not (scanner.events or scanner.done):
                return scanner.closed
            attempt.first_token_seen = True
            attempt.record.first_byte_at = time.monotonic_ns()
            self._first_token()
            if attempt.stop_cause is not None:
                return True
            client.start(*self._head)
            self._write_chunk = client.chunk_writer()
        if scanner.done:
            attempt.record.last_byte_at = time.monotonic_ns()
            # `[DONE]` and the end of the response are sent together. Otherwise an attempt stopped in between would look
            # complete.
            client.finish(forward)
        elif forward:
            client.write(forward)
        return scanner.closed


class _WholeRelay:
    """Relay of a non-streaming response, buffered until it is complete or too large to buffer."""

    __slots__ = ("_allows_binary", "_buffer", "_client", "_finder", "_head")

    def __init__(
        self, client: Client, head: tuple[int, Headers], finder: UsageFinder | None, *, any_bytes: bool
    ) -> None:
        self._client = client
        self._allows_binary = any_bytes
        """Whether the response may be something other than JSON."""
        self._head = head
        self._finder = finder
        self._buffer: bytes | bytearray = b""

    def feed(self, data: bytes) -> bool:
        if self._finder is not None:
            self._finder.feed(data)
        if not self._buffer and len(data) <= _BUFFERED_BYTES_MAX:
            self._buffer = data  # Most responses arrive in one piece, which need not be copied.
            return False
        if isinstance(self._buffer, bytes):
            self._buffer = bytearray(self._buffer)
        self._buffer += data
        if not self._client.started:
            if len(self._buffer) <= _BUFFERED_BYTES_MAX:
                return False
            self._client.start(*self._head)
            data = bytes(self._buffer)
        self._client.write(data)
        # Keep the last bytes, to check that the response is complete.
        del self._buffer[:-_TAIL_BYTES]
        return False

    def finish(self, quote: Callable[[str], str]) -> AttemptResult:
        """Delivers the response after its last byte and returns the result."""
        usage = None if self._finder is None else self._finder.usage
        if not self._client.started and (error := reported_error(self._buffer)) is not None:
            return _failed(quote(error), usage)
        if not self._allows_binary and not _ends_object(self._buffer):
            # Without a Content-Length, a lost connection looks like the end of the response.
            return _failed("the engine's response is not a complete JSON object")
        if self._client.started:
            self._client.finish()
        else:
            self._client.reply(*self._head, bytes(self._buffer))
        return AttemptResult(_COMPLETED, "", usage)


def _is_json(content_type: str) -> bool:
    return content_type.lower().startswith("application/json")


def _ends_object(body: bytes | bytearray) -> bool:
    return body.endswith(b"}") or body.rstrip().endswith(b"}")


def _failed(detail: str, usage: Usage | None = None, *, fault: Fault = Fault.RESPONSE) -> AttemptResult:
    return AttemptResult(AttemptEnding.FAILED, detail, usage, fault)


async def _read_start(answer: EngineResponse) -> bytes:
    """Returns the start of a response, long enough to identify an error."""
    body = bytearray()
    while len(body) <= _ERROR_BODY_MAX and (data := await answer.read()):
        body += data
    return bytes(body[:_ERROR_BODY_MAX])
