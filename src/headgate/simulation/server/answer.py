"""How does one request get its answer, and what ends it early?"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from headgate.model.ticket import Api
from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.sequence import EngineRequest, Finished
from headgate.simulation.server import wording
from headgate.simulation.server.chance import Fate, Script
from headgate.simulation.server.driver import EngineDriver
from headgate.simulation.server.exchange import Exchange
from headgate.simulation.server.options import EngineOptions
from headgate.simulation.server.question import Question
from headgate.simulation.server.wording import ChunkWriter, RunningUsage

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


@dataclass(slots=True)
class Tale:
    """What the record will say of an answer."""

    outcome: str = "finished"
    arrived_at: Instant = field(default_factory=lambda: Instant(0))
    first_token_at: Instant | None = None
    ended_at: Instant = field(default_factory=lambda: Instant(0))
    output_tokens: int = 0
    finished: list[Finished] = field(default_factory=list[Finished])


class Answer:
    """One answer, of one or several sequences. A `Listener` of the driver."""

    def __init__(
        self, answer_id: str, question: Question, scripts: list[Script], fate: Fate, options: EngineOptions
    ) -> None:
        self.id = answer_id
        self.tale = Tale()
        self._question = question
        self._scripts = scripts
        self._options = options
        self._fate = fate
        # Whichever comes first; only streams are truncated.
        truncate_after = fate.truncate_after if question.stream else None
        self._break_after = min((each for each in (fate.reset_after, truncate_after) if each), default=None)
        self._broken = False
        self._left = False
        self._pending: list[bytes] = []
        self._waker: asyncio.Future[None] | None = None
        self._start = b""
        self._writers: dict[RequestId, ChunkWriter] = {}
        self._open = len(scripts)

    # ------------------------------------------------------------------------------------------- what the driver tells

    def got_token(self, request_id: RequestId, at: Instant) -> bool:
        writer = self._writers[request_id]
        tale = self.tale
        if tale.first_token_at is None:
            tale.first_token_at = at
        if not self._broken:
            tale.output_tokens += 1
            if self._question.stream:
                self._pending.append(writer.next())
            else:
                writer.sent += 1
            self._broken = tale.output_tokens == self._break_after
        return writer.sent == 1

    def finished(self, happening: Finished) -> None:
        self._open -= 1
        self.tale.finished.append(happening)

    def wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    # ----------------------------------------------------------------------------------------------------- its life

    async def run(self, exchange: Exchange, driver: EngineDriver, created: int) -> None:
        requests = self._requests(created)
        request_ids = [request.request_id for request in requests]
        leaving = asyncio.ensure_future(exchange.gone())

        def left(_: asyncio.Future[None]) -> None:
            self._left = True
            driver.cancel(request_ids)
            self.wake()

        leaving.add_done_callback(left)
        self.tale.arrived_at = driver.submit(requests, self)
        try:
            if self._question.stream:
                await self._stream(exchange)
            else:
                await self._whole(exchange, created)
        finally:
            leaving.remove_done_callback(left)
            leaving.cancel()
            driver.cancel(request_ids)
            self.tale.ended_at = max((each.at for each in self.tale.finished), default=driver.now)

    def _requests(self, created: int) -> list[EngineRequest]:
        question = self._question
        self._start = wording.stream_start(self.id, created, self._options.model, question.api)
        usage = (
            RunningUsage(question.prompt_tokens) if question.usage_in_each_chunk and self._options.tells_usage else None
        )
        requests: list[EngineRequest] = []
        for index, script in enumerate(self._scripts):
            prompt = question.prompts[index // question.choices_each]
            request_id = RequestId(f"{self.id}/{index}")
            self._writers[request_id] = ChunkWriter(self._start, index, script, question.api, usage=usage)
            requests.append(
                EngineRequest(request_id, prompt.tokens, script.output_tokens, prompt.names, question.priority)
            )
        return requests

    async def _woken(self) -> bool:
        """Waits until there is something to do; False once the client has left."""
        if not self._pending and self._open and not self._broken and not self._left:
            self._waker = asyncio.get_running_loop().create_future()
            await self._waker
        if self._left:
            self.tale.outcome = "left"
        return not self._left

    async def _stream(self, exchange: Exchange) -> None:
        await exchange.start(200, EVENT_STREAM)
        while await self._woken():
            data = b"".join(self._pending)
            self._pending.clear()
            if self._broken:
                await self._break(exchange, data)
                return
            if not self._open:
                await exchange.finish(data + self._closing())
                return
            await exchange.write(data)

    def _closing(self) -> bytes:
        question = self._question
        if question.wants_usage and self._options.tells_usage:
            usage = wording.usage_chunk(self._start, question.prompt_tokens, self.tale.output_tokens)
            return usage + wording.DONE
        return wording.DONE

    async def _break(self, exchange: Exchange, data: bytes) -> None:
        if self._fate.reset_after == self._break_after:
            self.tale.outcome = "reset"
            if data:
                await exchange.write(data)
            await exchange.cut()
        else:
            self.tale.outcome = "truncated"
            await exchange.finish(data)

    async def _whole(self, exchange: Exchange, created: int) -> None:
        while self._open and not self._broken:
            if not await self._woken():
                return
        if self._broken:
            self.tale.outcome = "reset"
            await exchange.cut()
            return
        await exchange.reply(200, self._body(created))

    def _body(self, created: int) -> bytes:
        question, options = self._question, self._options
        usage = wording.usage_of(question.prompt_tokens, self.tale.output_tokens) if options.tells_usage else None
        model = options.model
        if question.api is Api.EMBEDDINGS:
            prompts, as_base64 = question.prompts, question.as_base64
            return wording.embeddings(self.id, created, model=model, prompts=prompts, usage=usage, as_base64=as_base64)
        return wording.whole(self.id, created, model=model, api=question.api, scripts=self._scripts, usage=usage)
