"""One response from the simulated engine, from submission until it ends or an injected fault occurs."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from headgate.model.ticket import FORM_APIS, Api
from headgate.model.units import Instant, RequestId
from headgate.simulation.engine.sequence import EngineRequest, SequenceFinished
from headgate.simulation.server import vllm_format
from headgate.simulation.server.driver import EngineDriver
from headgate.simulation.server.exchange import EngineExchange
from headgate.simulation.server.options import EngineOptions
from headgate.simulation.server.request import SimulatedRequest
from headgate.simulation.server.sampling import InjectedFault, SampledOutput
from headgate.simulation.server.transcription import transcript_body
from headgate.simulation.server.vllm_format import ChunkWriter, RunningUsage

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"


@dataclass(slots=True)
class ResponseStats:
    """Data about a response for the record file."""

    outcome: str = "finished"
    arrived_at: Instant = field(default_factory=lambda: Instant(0))
    first_token_at: Instant | None = None
    ended_at: Instant = field(default_factory=lambda: Instant(0))
    output_tokens: int = 0
    finished: list[SequenceFinished] = field(default_factory=list[SequenceFinished])


class SimulatedResponse:
    """One response with one or more sequences. Implements the driver's `Listener`."""

    def __init__(
        self,
        answer_id: str,
        question: SimulatedRequest,
        scripts: list[SampledOutput],
        fate: InjectedFault,
        options: EngineOptions,
    ) -> None:
        self.id = answer_id
        self.stats = ResponseStats()
        self._request = question
        self._outputs = scripts
        self._options = options
        self._fault = fate
        # Whichever of the two faults comes first applies. Only streams are truncated.
        truncate_after = fate.truncate_after if question.stream else None
        self._break_after = min((each for each in (fate.reset_after, truncate_after) if each), default=None)
        self._broken = False
        self._disconnected = False
        self._pending: list[bytes] = []
        self._waker: asyncio.Future[None] | None = None
        self._start = b""
        self._writers: dict[RequestId, ChunkWriter] = {}
        self._open = len(scripts)

    # -------------------------------------------------------------------------------------------- events of the driver

    def on_token(self, request_id: RequestId, at: Instant) -> bool:
        writer = self._writers[request_id]
        tale = self.stats
        if tale.first_token_at is None:
            tale.first_token_at = at
        if not self._broken:
            tale.output_tokens += 1
            if self._request.stream:
                self._pending.append(writer.next_chunk())
            else:
                writer.sent += 1
            self._broken = tale.output_tokens == self._break_after
        return writer.sent == 1

    def on_finished(self, happening: SequenceFinished) -> None:
        self._open -= 1
        self.stats.finished.append(happening)

    def wake(self) -> None:
        if self._waker is not None and not self._waker.done():
            self._waker.set_result(None)

    # --------------------------------------------------------------------------------------------------------- sending

    async def run(self, exchange: EngineExchange, driver: EngineDriver, created: int) -> None:
        requests = self._requests(created)
        request_ids = [request.request_id for request in requests]
        leaving = asyncio.ensure_future(exchange.wait_disconnected())

        def left(_: asyncio.Future[None]) -> None:
            self._disconnected = True
            driver.cancel(request_ids)
            self.wake()

        leaving.add_done_callback(left)
        self.stats.arrived_at = driver.submit(requests, self)
        try:
            if self._request.stream:
                await self._stream(exchange)
            else:
                await self._send_whole(exchange, created)
        finally:
            leaving.remove_done_callback(left)
            leaving.cancel()
            driver.cancel(request_ids)
            self.stats.ended_at = max((each.at for each in self.stats.finished), default=driver.now)

    def _requests(self, created: int) -> list[EngineRequest]:
        question = self._request
        self._start = vllm_format.chunk_head(self.id, created, self._options.model, question.api)
        usage = (
            RunningUsage(question.prompt_tokens) if question.continuous_usage and self._options.reports_usage else None
        )
        requests: list[EngineRequest] = []
        for index, script in enumerate(self._outputs):
            prompt = question.prompts[index // question.choices_per_prompt]
            request_id = RequestId(f"{self.id}/{index}")
            self._writers[request_id] = ChunkWriter(self._start, index, script, question.api, usage=usage)
            requests.append(
                EngineRequest(request_id, prompt.tokens, script.output_tokens, prompt.block_hashes, question.priority)
            )
        return requests

    async def _wait_for_update(self) -> bool:
        """Waits for data, the end, or a fault. Returns False if the client has disconnected."""
        if not self._pending and self._open and not self._broken and not self._disconnected:
            self._waker = asyncio.get_running_loop().create_future()
            await self._waker
        if self._disconnected:
            self.stats.outcome = "disconnected"
        return not self._disconnected

    async def _stream(self, exchange: EngineExchange) -> None:
        await exchange.start(200, EVENT_STREAM)
        while await self._wait_for_update():
            data = b"".join(self._pending)
            self._pending.clear()
            if self._broken:
                await self._break(exchange, data)
                return
            if not self._open:
                await exchange.finish(data + self._final_chunks())
                return
            await exchange.write(data)

    def _final_chunks(self) -> bytes:
        question = self._request
        if question.include_usage and self._options.reports_usage:
            usage = vllm_format.usage_chunk(self._start, question.prompt_tokens, self.stats.output_tokens)
            return usage + vllm_format.DONE
        return vllm_format.DONE

    async def _break(self, exchange: EngineExchange, data: bytes) -> None:
        if self._fault.reset_after == self._break_after:
            self.stats.outcome = "reset"
            if data:
                await exchange.write(data)
            await exchange.reset()
        else:
            self.stats.outcome = "truncated"
            await exchange.finish(data)

    async def _send_whole(self, exchange: EngineExchange, created: int) -> None:
        while self._open and not self._broken:
            if not await self._wait_for_update():
                return
        if self._broken:
            self.stats.outcome = "reset"
            await exchange.reset()
            return
        await exchange.reply(200, self._whole_body(created))

    def _whole_body(self, created: int) -> bytes:
        question, options = self._request, self._options
        usage = (
            vllm_format.usage_of(question.prompt_tokens, self.stats.output_tokens) if options.reports_usage else None
        )
        model = options.model
        if question.api is Api.EMBEDDINGS:
            prompts, as_base64 = question.prompts, question.as_base64
            return vllm_format.embeddings_body(
                self.id, created, model=model, prompts=prompts, usage=usage, as_base64=as_base64
            )
        if question.api in FORM_APIS:
            return transcript_body(question, self._outputs[0].text(), reports_usage=options.reports_usage)
        return vllm_format.completion_body(
            self.id, created, model=model, api=question.api, scripts=self._outputs, usage=usage
        )
