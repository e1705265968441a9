"""How do the bytes of one attempt reach the caller?

They pass as they come. A streamed answer is looked at only for event boundaries, its end, errors
and usage; nothing reaches the caller before the first event is known not to be an error, so that
a failure up to there can still be tried elsewhere. An answer that is not streamed is held until
it is whole, as long as it is of ordinary size, so that a broken one is never delivered.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from headgate.core.events import AttemptEnding
from headgate.edge.client import Client, Headers
from headgate.edge.open_attempts import OpenAttempt
from headgate.model.usage import Usage
from headgate.ports.engine import Answer, Call, Engine, EngineFault
from headgate.wire.replies import read_error, reported_error
from headgate.wire.sse import StreamScanner
from headgate.wire.usage import UsageFinder

FirstTokenNotice = Callable[[], None]

_HELD_MAX = 1024 * 1024
_ERROR_BODY_MAX = 64 * 1024
_LINGER_S = 1.0
"""How long to wait, after `[DONE]`, for the clean end that lets the connection be used again."""


@dataclass(frozen=True, slots=True)
class Result:
    """How the attempt ended."""

    ending: AttemptEnding
    detail: str = ""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class EngineReply:
    """An engine's own verdict on the request, to be passed on as it is."""

    status: int
    content_type: str
    body: bytes


class Relay:
    """One attempt: from the call to the last byte."""

    def __init__(self, client: Client, attempt: OpenAttempt, headers: Headers) -> None:
        self._client = client
        self._attempt = attempt
        self._headers = headers
        self._loop = asyncio.get_running_loop()
        self.refusal: EngineReply | None = None

    async def run(self, engine: Engine, call: Call, first_token: FirstTokenNotice) -> Result:
        try:
            answer = await engine.ask(call)
        except EngineFault as fault:
            return Result(AttemptEnding.FAILED, str(fault))
        try:
            if answer.status >= 300:
                return await self._error(answer)
            streamed = answer.content_type.lower().startswith("text/event-stream")
            if streamed and call.body.stream:
                return await self._stream(answer, first_token, keep_usage=call.body.wants_usage)
            if not streamed and not call.body.stream:
                return await self._whole(answer, first_token)
            # A caller that reads events finds none in anything else, and would take that for all there is.
            error = None if streamed else reported_error(await _beginning(answer))
            return Result(AttemptEnding.FAILED, error or f"the engine answered with {answer.content_type}, unasked")
        except EngineFault as fault:
            return Result(AttemptEnding.FAILED, str(fault))
        finally:
            answer.close()

    async def _stream(self, answer: Answer, first_token: FirstTokenNotice, *, keep_usage: bool) -> Result:
        scanner = StreamScanner(keep_usage_chunk=keep_usage)
        client, attempt, now = self._client, self._attempt, self._loop.time
        while data := await answer.read():
            forward = scanner.feed(data)
            attempt.heard(scanner.events, now())
            if not client.started and (scanner.events or scanner.done):
                attempt.first_seen = True
                first_token()
                await client.start(answer.status, [*self._headers, (b"content-type", answer.content_type.encode())])
            if scanner.done:
                # `[DONE]` goes with the end itself, or an attempt stopped between the two would look complete.
                await client.finish(forward)
                await self._linger(answer)
                return Result(AttemptEnding.COMPLETED, "", scanner.usage)
            if client.started and forward:
                await client.write(forward)
            if scanner.error is not None:
                return Result(AttemptEnding.FAILED, f"the engine reported: {scanner.error}", scanner.usage)
            if scanner.overlong:
                return Result(AttemptEnding.FAILED, "the engine sent an event without end", scanner.usage)
        return Result(AttemptEnding.FAILED, "the stream ended before [DONE]", scanner.usage)

    async def _linger(self, answer: Answer) -> None:
        """The caller has everything; what is left decides only whether the connection can be kept."""
        try:
            async with asyncio.timeout(_LINGER_S):
                while await answer.read():
                    pass
        except (TimeoutError, EngineFault):
            pass

    async def _whole(self, answer: Answer, first_token: FirstTokenNotice) -> Result:
        first_token()
        finder = UsageFinder()
        held = bytearray()
        headers = [*self._headers, (b"content-type", answer.content_type.encode())]
        while data := await answer.read():
            finder.feed(data)
            if self._client.started:
                await self._client.write(data)
                continue
            held += data
            if len(held) > _HELD_MAX:
                await self._client.start(answer.status, headers)
                await self._client.write(bytes(held))
        if self._client.started:
            await self._client.finish()
        elif (error := reported_error(held)) is not None:
            return Result(AttemptEnding.FAILED, error, finder.usage)
        elif not held.rstrip().endswith(b"}"):
            # Where the engine sends no length, a connection that breaks looks like the end.
            return Result(AttemptEnding.FAILED, "the engine's answer is not a whole JSON object")
        else:
            await self._client.reply(answer.status, headers, bytes(held))
        return Result(AttemptEnding.COMPLETED, "", finder.usage)

    async def _error(self, answer: Answer) -> Result:
        text = await _beginning(answer)
        detail = f"the engine answered {answer.status}: {read_error(text)}"
        if not answer.blames_request(text):
            return Result(AttemptEnding.FAILED, detail)
        self.refusal = EngineReply(answer.status, answer.content_type, text)
        return Result(AttemptEnding.REFUSED, detail)


async def _beginning(answer: Answer) -> bytes:
    """As much of an answer as is needed to know what is wrong with it."""
    body = bytearray()
    while len(body) <= _ERROR_BODY_MAX and (data := await answer.read()):
        body += data
    return bytes(body[:_ERROR_BODY_MAX])
