"""Creates the spans of a request from its record.

    headgate chat (server)          the whole request, a child of the client's span if the request identifies one
      ingress, auth, ... settle     one for each stage outside the attempts chat m (client)               one for each
      attempt; the engine receives its span id
        connect, prefill, decode
    prompt_building, ...            stages reported by the client, ending where the request begins

Spans contain no prompts, responses or keys. The only text from clients is the requested model and the names of the
client's own stages, both limited in length.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from headgate.core.events import AttemptEnding
from headgate.model.outcome import HTTP_REPLIES
from headgate.model.stage import Stage
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND
from headgate.ports.records import AttemptRecord, RequestRecord
from headgate.telemetry.stages.stage_budget import NO_STAGE_BUDGET, stage_breakdown
from headgate.telemetry.stages.stage_times import StageTime, attempt_times, stage_times
from headgate.telemetry.traces.attribute_names import ATTRIBUTE_NAMES, UNKNOWN_ENGINE
from headgate.telemetry.traces.otlp import CLIENT, SERVER, Attribute, Spans
from headgate.telemetry.traces.span_settings import DEFAULT_SPAN_SETTINGS, SpanSettings

TEXT_CHARS_MAX: Final = 256
"""Maximum length of a reason or an error text."""
OPERATIONS: Final[Mapping[Api, str]] = {
    Api.CHAT: "chat",
    Api.COMPLETIONS: "text_completion",
    Api.EMBEDDINGS: "embeddings",
    Api.RESPONSES: "chat",
    Api.MESSAGES: "chat",
}
"""OpenTelemetry's operation name for each API."""
NO_OUTCOME: Final = "internal_error"
"""Outcome attribute of a request that failed because of a bug in the gateway."""
_ATTEMPT_STAGES: Final = (Stage.CONNECT, Stage.PREFILL, Stage.DECODE)
_FIRST_OTHER_SPAN: Final = 1 << 20
"""Numbers above this one identify spans that are not attempts."""
_FAILED_ENDINGS: Final = (AttemptEnding.FAILED, AttemptEnding.TIMEOUT, AttemptEnding.REJECTED)


def build_trace(record: RequestRecord, known: SpanSettings = DEFAULT_SPAN_SETTINGS) -> bytes:
    """The encoded spans of one request."""
    made = _TraceBuilder(record, known)
    times = stage_times(record)
    made.add_request(times)
    for stage, attempt, begin, end in times:
        if stage not in _ATTEMPT_STAGES:
            made.add_stage(stage, made.root, begin, end, () if attempt is None else (("headgate.attempt", attempt),))
    for each in record.attempts:
        made.add_attempt(each)
    made.add_caller_stages()
    return made.spans.serialize()


class _TraceBuilder:
    __slots__ = ("_budget", "_engines", "_last_span_number", "_names", "_record", "_wall_offset_ns", "root", "spans")

    def __init__(self, record: RequestRecord, known: SpanSettings) -> None:
        self._record = record
        self._names = ATTRIBUTE_NAMES[known.conventions]
        self._engines = known.engines
        self._budget = known.budgets.get(record.class_name or "", NO_STAGE_BUDGET)
        self._wall_offset_ns = record.arrived_at - record.started_at
        self._last_span_number = _FIRST_OTHER_SPAN
        self.root = record.span_id(0)
        self.spans = Spans(record.trace_id, record.trace_state)

    def add_span(
        self,
        name: str,
        parent: bytes,
        begin: int,
        end: int,
        attributes: tuple[Attribute, ...] = (),
        *,
        remote: bool = False,
    ) -> None:
        """Adds a span whose id is not used anywhere else."""
        self._last_span_number += 1
        span_id, calendar = self._record.span_id(self._last_span_number), self._wall_offset_ns
        begin, end = begin + calendar, end + calendar
        self.spans.add(name, span_id=span_id, parent=parent, begin=begin, end=end, remote=remote, attributes=attributes)

    def add_stage(
        self, stage: Stage, parent: bytes, begin: int, end: int, attributes: tuple[Attribute, ...] = ()
    ) -> None:
        if (allowed := self._budget.stages.get(stage)) is not None:
            attributes = (*attributes, ("headgate.budget_ms", allowed / MILLISECOND))
        self.add_span(stage.value, parent, begin, end, attributes)

    # The request

    def add_request(self, times: list[StageTime]) -> None:
        record = self._record
        outcome = NO_OUTCOME if record.outcome is None else record.outcome.value
        failed = record.outcome is None or HTTP_REPLIES[record.outcome].status >= 500
        about: list[Attribute] = [("headgate.request_id", record.request_id), ("headgate.outcome", outcome)]
        if failed and self._names.semantic_conventions:
            about.append(("error.type", outcome))
        self.spans.add(
            "headgate" if record.api is None else f"headgate {record.api.value}",
            span_id=self.root,
            parent=record.parent_span_id,
            begin=record.arrived_at,
            end=record.ended_at + self._wall_offset_ns,
            kind=SERVER,
            remote=bool(record.parent_span_id),
            attributes=[
                *about,
                *self._request_attributes(),
                *self._budget_attributes(times),
                *self._model_attributes(),
            ],
            error=outcome if failed else None,
        )

    def _request_attributes(self) -> Iterator[Attribute]:
        record = self._record
        if record.tenant is not None:
            yield ("headgate.tenant", record.tenant)
        if record.class_name is not None:
            yield ("headgate.class", record.class_name)
        if record.queued_at:
            yield ("headgate.waited_ns", record.waited_ns)
            yield ("headgate.attempts", len(record.attempts))
            # Use only the scheduler's reasons: a reason from parsing the request may quote its body.
            yield ("headgate.reason", record.reason[:TEXT_CHARS_MAX])
        if record.held_ns:
            yield ("headgate.held_ns", record.held_ns)
        if record.degraded:
            yield ("headgate.degraded", ", ".join(record.degraded))
        if record.status:
            yield ("http.response.status_code", record.status)

    def _budget_attributes(self, times: list[StageTime]) -> Iterator[Attribute]:
        if self._budget.is_empty:
            return
        record = self._record
        spent = stage_breakdown(times, self._budget, stream=record.stream, outcome=record.outcome)
        if spent.over_budget:
            yield ("headgate.over_budget", ", ".join(spent.over_budget))
        if spent.missed_targets:
            yield (
                "headgate.missed_targets",
                ", ".join(f"{target}={stage}" for target, stage in spent.missed_targets.items()),
            )

    def _model_attributes(self) -> Iterator[Attribute]:
        record, words = self._record, self._names
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
        """Operation name from the semantic conventions; None if they are disabled or have no name for the API."""
        api = self._record.api
        return None if api is None or not self._names.semantic_conventions else OPERATIONS.get(api)

    def _engine(self, attempt: AttemptRecord) -> str:
        return self._engines.get(attempt.pool, UNKNOWN_ENGINE)

    # Attempts

    def add_attempt(self, attempt: AttemptRecord) -> None:
        span_id, calendar = self._record.span_id(attempt.number), self._wall_offset_ns
        end = attempt.ended_at or self._record.ended_at
        failed = attempt.ending is not None and attempt.ending in _FAILED_ENDINGS
        operation, model = self._operation, self._record.model_served or self._record.model
        self.spans.add(
            "attempt" if operation is None or model is None else f"{operation} {model}",
            span_id=span_id,
            parent=self.root,
            begin=attempt.dispatched_at + calendar,
            end=end + calendar,
            kind=CLIENT,
            attributes=list(self._attempt_attributes(attempt)),
            error=attempt.detail[:TEXT_CHARS_MAX] if failed else None,
        )
        for stage, _, begin, until in attempt_times(attempt, end):
            self.add_stage(stage, span_id, begin, until)

    def _attempt_attributes(self, attempt: AttemptRecord) -> Iterator[Attribute]:
        yield ("headgate.attempt", attempt.number)
        yield ("headgate.endpoint", attempt.endpoint_id)
        yield ("headgate.pool", attempt.pool)
        yield ("headgate.reason", attempt.reason[:TEXT_CHARS_MAX])
        yield ("headgate.waited_ns", attempt.waited_ns)
        if attempt.hedge:
            yield ("headgate.hedge", True)
        if attempt.ending is not None:
            yield ("headgate.attempt_ending", attempt.ending.value)
            if self._names.semantic_conventions and attempt.ending in _FAILED_ENDINGS:
                yield ("error.type", attempt.ending.value)
        yield (self._names.engine, self._engine(attempt))
        if (operation := self._operation) is not None:
            yield ("gen_ai.operation.name", operation)
            if (model := self._record.model_served or self._record.model) is not None:
                yield (self._names.model, model)

    # The client's own stages

    def add_caller_stages(self) -> None:
        """Adds the client's stages. Clients report only durations, so the last stage ends where the request begins."""
        record = self._record
        begin = record.started_at - sum(length for _, length in record.caller_stages)
        parent, remote = record.parent_span_id or self.root, bool(record.parent_span_id)
        for name, length in record.caller_stages:
            self.add_span(name, parent, begin, begin + length, (("headgate.reported_by", "caller"),), remote=remote)
            begin += length
