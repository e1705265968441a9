"""Which paths does the engine have, and what does each answer? Those of vLLM that a gateway uses."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headgate.model.ticket import Api
from headgate.ports.clock import Clock
from headgate.simulation.server import wording
from headgate.simulation.server.answer import Answer
from headgate.simulation.server.chance import FaultDice, Script, script
from headgate.simulation.server.driver import EngineDriver
from headgate.simulation.server.exchange import BodyTooLarge, ClientLeft, Exchange
from headgate.simulation.server.metrics import EngineMetrics
from headgate.simulation.server.options import EngineOptions
from headgate.simulation.server.question import Question, parse
from headgate.simulation.server.record import Record, RecordLine
from headgate.simulation.server.refusal import Refusal, broken, unacceptable

BODY_BYTES_MAX: Final = 32 * 1024 * 1024

_NOT_FOUND: Final = b'{"detail":"Not Found"}'
_WRONG_METHOD: Final = b'{"detail":"Method Not Allowed"}'
_UNAUTHORIZED: Final = b'{"error":"Unauthorized"}'
_PLAIN: Final = "text/plain; version=0.0.4; charset=utf-8"
_QUESTIONS: Final[Mapping[str, Api]] = MappingProxyType(
    {"/v1/chat/completions": Api.CHAT, "/v1/completions": Api.COMPLETIONS, "/v1/embeddings": Api.EMBEDDINGS}
)
_PAGES: Final = ("/health", "/version", "/v1/models", "/metrics")


class EngineApp:
    """One engine behind HTTP. Made inside a running loop."""

    def __init__(self, options: EngineOptions, clock: Clock) -> None:
        self._options = options
        self._metrics = EngineMetrics(options.model, options.profile)
        self._clock = clock
        self.driver = EngineDriver(options, clock, self._metrics)
        self._dice = FaultDice(options.faults, seed=options.seed, number=options.number)
        self._record = Record(options.record)
        self._created = clock.now() // 1_000_000_000
        self._answers = 0

    def stop(self) -> None:
        self.driver.stop()
        self._record.close()

    async def answer(self, exchange: Exchange) -> None:
        api = _QUESTIONS.get(exchange.path)
        if api is Api.EMBEDDINGS and not self._options.embeds:
            api = None
        if not self._may_ask(exchange):
            await exchange.reply(401, _UNAUTHORIZED)
            return
        match exchange.method, exchange.path:
            case "POST", _ if api is not None:
                await self._ask(exchange, api)
            case "GET", path if path in _PAGES:
                await self._show(exchange, path)
            case _, path if api is not None or path in _PAGES:
                await exchange.reply(405, _WRONG_METHOD)
            case _:
                await exchange.reply(404, _NOT_FOUND)

    def _may_ask(self, exchange: Exchange) -> bool:
        """Checks the key. As in vLLM, only paths below /v1 require it."""
        key = self._options.api_key
        return (
            key is None or not exchange.path.startswith("/v1/") or exchange.header("authorization") == f"Bearer {key}"
        )

    async def _show(self, exchange: Exchange, path: str) -> None:
        options = self._options
        match path:
            case "/health":
                await exchange.reply(200, b"")
            case "/version":
                await exchange.reply(200, wording.version())
            case "/v1/models":
                await exchange.reply(200, wording.models(options.model, self._created, options.profile.context_tokens))
            case _:
                await exchange.reply(200, self._metrics.page(self.driver.state()), _PLAIN)

    async def _ask(self, exchange: Exchange, api: Api) -> None:
        try:
            question = parse(await exchange.body(BODY_BYTES_MAX), api, self._options)
            scripts = self._scripts(question)
            # A request that is wrong in itself draws no fault, so that it changes nothing for those after it.
            fate = self._dice.roll(output_tokens=sum(each.output_tokens for each in scripts))
            answer = Answer(self._next_id(exchange, api), question, scripts, fate, self._options)
            if fate.error:
                answer.tale.outcome = "error"
                answer.tale.arrived_at = answer.tale.ended_at = self._clock.now()
                self._write(exchange, question, answer)
                self._metrics.ended["error"] += 1
                raise broken()
        except Refusal as refusal:
            await exchange.reply(refusal.status, refusal.body)
            return
        except BodyTooLarge:
            refusal = unacceptable(f"the body is over {BODY_BYTES_MAX} bytes", None)
            await exchange.reply(413, refusal.body)
            return
        except ClientLeft:
            return
        created = self._clock.now() // 1_000_000_000
        try:
            await answer.run(exchange, self.driver, created)
        finally:
            self._count_endings(answer, scripts)
            self._write(exchange, question, answer)

    def _scripts(self, question: Question) -> list[Script]:
        if question.api is Api.EMBEDDINGS:
            return [Script(0, ends_by_itself=True, first_word=0, stride=1) for _ in question.prompts]
        return [
            script(question, prompt, choice, self._options)
            for prompt in question.prompts
            for choice in range(question.choices_each)
        ]

    def _next_id(self, exchange: Exchange, api: Api) -> str:
        """As vLLM does, the caller's own id is part of the answer's, here with a number, for callers repeat theirs."""
        self._answers += 1
        kind = {Api.CHAT: "chatcmpl", Api.COMPLETIONS: "cmpl", Api.EMBEDDINGS: "embd"}[api]
        said = exchange.header("x-request-id")[:100]
        number = f"{self._options.number}-{self._answers:08x}"
        return f"{kind}-{said}-{number}" if said else f"{kind}-{number}"

    def _count_endings(self, answer: Answer, scripts: list[Script]) -> None:
        if answer.tale.outcome == "finished":
            for each in scripts:
                self._metrics.ended["stop" if each.ends_by_itself else "length"] += 1

    def _write(self, exchange: Exchange, question: Question, answer: Answer) -> None:
        tale = answer.tale
        begun = min((each.begun_at for each in tale.finished), default=None)
        line = RecordLine(
            id=answer.id,
            request_id=exchange.header("x-request-id"),
            engine=self._options.number,
            api=question.api,
            stream=question.stream,
            outcome=tale.outcome,
            arrived_ns=tale.arrived_at,
            begun_ns=begun,
            first_token_ns=tale.first_token_at,
            ended_ns=tale.ended_at,
            queue_ns=None if begun is None else begun - tale.arrived_at,
            prompt_tokens=question.prompt_tokens,
            cached_tokens=sum(each.cached_tokens for each in tale.finished[:1]),
            output_tokens=tale.output_tokens,
            preemptions=sum(each.preemptions for each in tale.finished),
        )
        self._record.write(line)
