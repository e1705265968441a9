"""Of which spans does the trace of a request consist?

    headgate chat (server)          the whole of it, a child of whatever span the caller named
      ingress, auth, ... settle     one for each piece of its time that is no attempt's
      chat m (client)               one for each try at an endpoint; its id is what the engine was told
        connect, prefill, decode
    prompt_building, ...            what the caller told of its own work, ending where ours begins

They are made of its record when it has ended. Prompts, answers and keys are not in there, and texts of callers neither,
but for the name of the model that they asked for and the names of their own stages, both bounded.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from headgate.core.events import AttemptEnding
from headgate.model.outcome import FACES
from headgate.model.stage import Stage
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND
from headgate.ports.records import AttemptRecord, RequestRecord
from headgate.telemetry.stages.budget import NOTHING_SAID, spending
from headgate.telemetry.stages.times import StageTime, attempt_times, stage_times
from headgate.telemetry.traces.known import NOTHING_KNOWN, Known
from headgate.telemetry.traces.messages import CLIENT, SERVER, Attribute, Spans
from headgate.telemetry.traces.names import UNKNOWN_ENGINE, WORDS

TEXT_CHARS_MAX: Final = 256
"""Of a reason so much is told."""
OPERATIONS: Final[Mapping[Api, str]] = {
    Api.CHAT: "chat",
    Api.COMPLETIONS: "text_completion",
    Api.EMBEDDINGS: "embeddings",
    Api.RESPONSES: "chat",
}
"""What OpenTelemetry calls them."""
INTERNAL_ERROR: Final = "internal_error"
"""The outcome that a mistake of our own has here."""
_OF_ATTEMPTS: Final = (Stage.CONNECT, Stage.PREFILL, Stage.DECODE)
_BEYOND_ATTEMPTS: Final = 1 << 20
"""From here on numbers are those of other spans."""
_ENDED_BADLY: Final = (AttemptEnding.FAILED, AttemptEnding.SILENT, AttemptEnding.REFUSED)


def trace(record: RequestRecord, known: Known = NOTHING_KNOWN) -> bytes:
    """The spans of one request, as they stand in a message."""
    made = _Trace(record, known)
    times = stage_times(record)
    made.request(times)
    for stage, attempt, begin, end in times:
        if stage not in _OF_ATTEMPTS:
            made.stage(stage, made.root, begin, end, () if attempt is None else (("headgate.attempt", attempt),))
    for each in record.attempts:
        made.attempt(each)
    made.caller_stages()
    return made.spans.written()


class _Trace:
    __slots__ = ("_budget", "_calendar", "_engines", "_numbered", "_record", "_words", "root", "spans")

    def __init__(self, record: RequestRecord, known: Known) -> None:
        self._record = record
        self._words = WORDS[known.names]
        self._engines = known.engines
        self._budget = known.budgets.get(record.class_name or "", NOTHING_SAID)
        self._calendar = record.arrived - record.started_at
        self._numbered = _BEYOND_ATTEMPTS
        self.root = record.span_id(0)
        self.spans = Spans(record.trace_id, record.trace_state)

    def piece(
        self, name: str, parent: bytes, begin: int, end: int, about: tuple[Attribute, ...] = (), *, remote: bool = False
    ) -> None:
        """A span that nobody else needs to know by its id."""
        self._numbered += 1
        span_id, calendar = self._record.span_id(self._numbered), self._calendar
        begin, end = begin + calendar, end + calendar
        self.spans.add(name, span_id=span_id, parent=parent, begin=begin, end=end, remote=remote, attributes=about)

    def stage(self, stage: Stage, parent: bytes, begin: int, end: int, about: tuple[Attribute, ...] = ()) -> None:
        if (allowed := self._budget.stages.get(stage)) is not None:
            about = (*about, ("headgate.budget_ms", allowed / MILLISECOND))
        self.piece(stage.value, parent, begin, end, about)

    # The whole

    def request(self, times: list[StageTime]) -> None:
        record = self._record
        outcome = INTERNAL_ERROR if record.outcome is None else record.outcome.value
        failed = record.outcome is None or FACES[record.outcome].status >= 500
        about: list[Attribute] = [("headgate.request_id", record.request_id), ("headgate.outcome", outcome)]
        if failed and self._words.conventional:
            about.append(("error.type", outcome))
        self.spans.add(
            "headgate" if record.api is None else f"headgate {record.api.value}",
            span_id=self.root,
            parent=record.parent,
            begin=record.arrived,
            end=record.ended_at + self._calendar,
            kind=SERVER,
            remote=bool(record.parent),
            attributes=[*about, *self._facts(), *self._lateness(times), *self._model()],
            error=outcome if failed else None,
        )

    def _facts(self) -> Iterator[Attribute]:
        record = self._record
        if record.tenant is not None:
            yield ("headgate.tenant", record.tenant)
        if record.class_name is not None:
            yield ("headgate.class", record.class_name)
        if record.queued_at:
            yield ("headgate.waited_ns", record.waited_ns)
            yield ("headgate.attempts", len(record.attempts))
            # In the scheduler's words. Those of the door may repeat what was wrong in a body.
            yield ("headgate.reason", record.reason[:TEXT_CHARS_MAX])
        if record.held_ns:
            yield ("headgate.held_ns", record.held_ns)
        if record.degraded:
            yield ("headgate.degraded", ", ".join(record.degraded))
        if record.status:
            yield ("http.response.status_code", record.status)

    def _lateness(self, times: list[StageTime]) -> Iterator[Attribute]:
        if self._budget.says_nothing:
            return
        record = self._record
        spent = spending(times, self._budget, stream=record.stream, outcome=record.outcome)
        if spent.over:
            yield ("headgate.over_budget", ", ".join(spent.over))
        if spent.late:
            yield ("headgate.late", ", ".join(f"{goal}={stage}" for goal, stage in spent.late.items()))

    def _model(self) -> Iterator[Attribute]:
        record, words = self._record, self._words
        if (operation := self._operation) is not None:
            yield ("gen_ai.operation.name", operation)
        if record.attempts:
            yield (words.engine, self._engine(record.attempts[-1]))
        if record.model is not None:
            yield (words.model, record.model)
            if record.attempts:
                yield (words.model_served, record.model_served or record.model)
        if record.prompt_tokens:
            yield (words.prompt_tokens, record.prompt_tokens)
        if record.output_tokens:
            yield (words.output_tokens, record.output_tokens)

    @property
    def _operation(self) -> str | None:
        """In the words of the conventions, where they have one for it and are asked for."""
        api = self._record.api
        return None if api is None or not self._words.conventional else OPERATIONS.get(api)

    def _engine(self, attempt: AttemptRecord) -> str:
        return self._engines.get(attempt.pool, UNKNOWN_ENGINE)

    # Its attempts

    def attempt(self, attempt: AttemptRecord) -> None:
        span_id, calendar = self._record.span_id(attempt.number), self._calendar
        end = attempt.ended_at or self._record.ended_at
        failed = attempt.ending is not None and attempt.ending in _ENDED_BADLY
        operation, model = self._operation, self._record.model_served or self._record.model
        self.spans.add(
            "attempt" if operation is None or model is None else f"{operation} {model}",
            span_id=span_id,
            parent=self.root,
            begin=attempt.ordered_at + calendar,
            end=end + calendar,
            kind=CLIENT,
            attributes=list(self._about(attempt)),
            error=attempt.detail[:TEXT_CHARS_MAX] if failed else None,
        )
        for stage, _, begin, until in attempt_times(attempt, end):
            self.stage(stage, span_id, begin, until)

    def _about(self, attempt: AttemptRecord) -> Iterator[Attribute]:
        yield ("headgate.attempt", attempt.number)
        yield ("headgate.endpoint", attempt.endpoint_id)
        yield ("headgate.pool", attempt.pool)
        yield ("headgate.reason", attempt.reason[:TEXT_CHARS_MAX])
        yield ("headgate.waited_ns", attempt.waited_ns)
        if attempt.hedge:
            yield ("headgate.hedge", True)
        if attempt.ending is not None:
            yield ("headgate.ending", attempt.ending.value)
            if self._words.conventional and attempt.ending in _ENDED_BADLY:
                yield ("error.type", attempt.ending.value)
        yield (self._words.engine, self._engine(attempt))
        if (operation := self._operation) is not None:
            yield ("gen_ai.operation.name", operation)
            if (model := self._record.model_served or self._record.model) is not None:
                yield (self._words.model, model)

    # What was before

    def caller_stages(self) -> None:
        """Ending where ours begins: the caller does not tell when it worked, only for how long."""
        record = self._record
        begin = record.started_at - sum(length for _, length in record.caller_stages)
        parent, remote = record.parent or self.root, bool(record.parent)
        for name, length in record.caller_stages:
            self.piece(name, parent, begin, begin + length, (("headgate.told_by", "caller"),), remote=remote)
            begin += length
