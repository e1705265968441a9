"""Routes of the simulated engine: the part of vLLM's HTTP API that a gateway uses."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headgate.model.ticket import FORM_APIS, Api
from headgate.ports.clock import Clock
from headgate.simulation.server import vllm_format
from headgate.simulation.server.driver import EngineDriver
from headgate.simulation.server.error_response import ErrorResponse, bad_request, internal_error
from headgate.simulation.server.exchange import EngineBodyTooLarge, EngineClientDisconnected, EngineExchange
from headgate.simulation.server.metrics import EngineMetrics
from headgate.simulation.server.options import EngineOptions
from headgate.simulation.server.record import RecordFile, RecordLine
from headgate.simulation.server.request import SimulatedRequest, parse_request
from headgate.simulation.server.response import SimulatedResponse
from headgate.simulation.server.sampling import FaultSampler, SampledOutput, sample_output
from headgate.simulation.server.transcription import parse_transcription

BODY_BYTES_MAX: Final = 32 * 1024 * 1024

_NOT_FOUND: Final = b'{"detail":"Not Found"}'
_METHOD_NOT_ALLOWED: Final = b'{"detail":"Method Not Allowed"}'
_UNAUTHORIZED: Final = b'{"error":"Unauthorized"}'
_PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
_GENERATION_PATHS: Final[Mapping[str, Api]] = MappingProxyType(
    {
        "/v1/chat/completions": Api.CHAT,
        "/v1/completions": Api.COMPLETIONS,
        "/v1/embeddings": Api.EMBEDDINGS,
        "/v1/audio/transcriptions": Api.TRANSCRIPTIONS,
        "/v1/audio/translations": Api.TRANSLATIONS,
    }
)
_ID_PREFIX: Final[Mapping[Api, str]] = MappingProxyType(
    {
        Api.CHAT: "chatcmpl",
        Api.COMPLETIONS: "cmpl",
        Api.EMBEDDINGS: "embd",
        Api.TRANSCRIPTIONS: "transcribe",
        Api.TRANSLATIONS: "translate",
    }
)
_GET_PATHS: Final = ("/health", "/version", "/v1/models", "/metrics")


class EngineApp:
    """One engine behind HTTP. Must be created inside a running event loop."""

    def __init__(self, options: EngineOptions, clock: Clock) -> None:
        self._options = options
        self._metrics = EngineMetrics(options.model, options.profile)
        self._clock = clock
        self.driver = EngineDriver(options, clock, self._metrics)
        self._faults = FaultSampler(options.faults, seed=options.seed, number=options.number)
        self._record = RecordFile(options.record_path)
        self._created = clock.now() // 1_000_000_000
        self._answers = 0

    def stop(self) -> None:
        self.driver.stop()
        self._record.close()

    async def handle(self, exchange: EngineExchange) -> None:
        api = _GENERATION_PATHS.get(exchange.path)
        if api is Api.EMBEDDINGS and not self._options.serves_embeddings:
            api = None
        if not self._is_authorized(exchange):
            await exchange.reply(401, _UNAUTHORIZED)
            return
        match exchange.method, exchange.path:
            case "POST", _ if api is not None:
                await self._generate(exchange, api)
            case "GET", path if path in _GET_PATHS:
                await self._serve_get(exchange, path)
            case _, path if api is not None or path in _GET_PATHS:
                await exchange.reply(405, _METHOD_NOT_ALLOWED)
            case _:
                await exchange.reply(404, _NOT_FOUND)

    def _is_authorized(self, exchange: EngineExchange) -> bool:
        """Checks the API key. As in vLLM, only paths below /v1 require it."""
        key = self._options.api_key
        return (
            key is None or not exchange.path.startswith("/v1/") or exchange.header("authorization") == f"Bearer {key}"
        )

    async def _serve_get(self, exchange: EngineExchange, path: str) -> None:
        options = self._options
        match path:
            case "/health":
                await exchange.reply(200, b"")
            case "/version":
                await exchange.reply(200, vllm_format.version_body())
            case "/v1/models":
                await exchange.reply(
                    200, vllm_format.models_body(options.model, self._created, options.profile.context_tokens)
                )
            case _:
                await exchange.reply(200, self._metrics.render(self.driver.state()), _PLAIN)

    async def _generate(self, exchange: EngineExchange, api: Api) -> None:
        try:
            raw = await exchange.body(BODY_BYTES_MAX)
            if api in FORM_APIS:
                content_type = exchange.header("content-type").encode("latin-1", "replace")
                question = parse_transcription(raw, content_type, api, self._options)
            else:
                question = parse_request(raw, api, self._options)
            scripts = self._sample_outputs(question)
            # No fault is drawn for an invalid request, so that it does not affect the faults of later requests.
            fate = self._faults.next_fault(output_tokens=sum(each.output_tokens for each in scripts))
            answer = SimulatedResponse(self._next_id(exchange, api), question, scripts, fate, self._options)
            if fate.error:
                answer.stats.outcome = "error"
                answer.stats.arrived_at = answer.stats.ended_at = self._clock.now()
                self._write_record(exchange, question, answer)
                self._metrics.finish_reasons["error"] += 1
                raise internal_error()
        except ErrorResponse as refusal:
            await exchange.reply(refusal.status, refusal.body)
            return
        except EngineBodyTooLarge:
            refusal = bad_request(f"the body exceeds {BODY_BYTES_MAX} bytes", None)
            await exchange.reply(413, refusal.body)
            return
        except EngineClientDisconnected:
            return
        created = self._clock.now() // 1_000_000_000
        try:
            await answer.run(exchange, self.driver, created)
        finally:
            self._count_finish_reasons(answer, scripts)
            self._write_record(exchange, question, answer)

    def _sample_outputs(self, question: SimulatedRequest) -> list[SampledOutput]:
        if question.api is Api.EMBEDDINGS:
            return [SampledOutput(0, ends_with_eos=True, first_word=0, stride=1) for _ in question.prompts]
        return [
            sample_output(question, prompt, choice, self._options)
            for prompt in question.prompts
            for choice in range(question.choices_per_prompt)
        ]

    def _next_id(self, exchange: EngineExchange, api: Api) -> str:
        """Returns a response id that contains the client's request id, as in vLLM. The number makes it unique."""
        self._answers += 1
        kind = _ID_PREFIX[api]
        said = exchange.header("x-request-id")[:100]
        number = f"{self._options.number}-{self._answers:08x}"
        return f"{kind}-{said}-{number}" if said else f"{kind}-{number}"

    def _count_finish_reasons(self, answer: SimulatedResponse, scripts: list[SampledOutput]) -> None:
        if answer.stats.outcome == "finished":
            for each in scripts:
                self._metrics.finish_reasons["stop" if each.ends_with_eos else "length"] += 1

    def _write_record(self, exchange: EngineExchange, question: SimulatedRequest, answer: SimulatedResponse) -> None:
        tale = answer.stats
        begun = min((each.started_at for each in tale.finished), default=None)
        line = RecordLine(
            id=answer.id,
            request_id=exchange.header("x-request-id"),
            engine=self._options.number,
            api=question.api,
            stream=question.stream,
            outcome=tale.outcome,
            arrived_ns=tale.arrived_at,
            started_ns=begun,
            first_token_ns=tale.first_token_at,
            ended_ns=tale.ended_at,
            queue_ns=None if begun is None else begun - tale.arrived_at,
            prompt_tokens=question.prompt_tokens,
            cached_tokens=sum(each.cached_tokens for each in tale.finished[:1]),
            output_tokens=tale.output_tokens,
            preemptions=sum(each.preemptions for each in tale.finished),
        )
        self._record.write(line)
