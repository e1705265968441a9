"""The stored form of a request's record.

A row contains the record (`ports/records.py`), the stages and the history from decisions.py, so that a request can be
explained after it has left memory. It contains no prompts, responses or keys. Rows are encoded as arrays. New fields go
at the end and have a default, so that every version can read rows written by older versions.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct, msgpack

from headgate.core.commands import Abort, Dispatch, Eject, End, Hold
from headgate.core.events import AttemptEnded, AttemptEnding, FirstToken
from headgate.model.caps import Caps
from headgate.model.outcome import Outcome
from headgate.model.stage import Stage
from headgate.model.ticket import Api, Ticket
from headgate.model.units import ClassName, Duration, EndpointId, Instant, ModelName, PoolName, RequestId, TenantId
from headgate.model.usage import Usage, UsageSource
from headgate.ports.records import RequestRecord
from headgate.telemetry.decision_history import NAME_CHARS_MAX, REASON_CHARS_MAX, RequestHistory, Step
from headgate.telemetry.stages.stage_times import StageTime, stage_times

_US: Final = 1_000
_NO_CAPS: Final = Caps()
_NO_DURATION: Final = Duration(0)
_APIS: Final = frozenset(api.value for api in Api)


class RecordKey(Struct, array_like=True, frozen=True):
    """Fields by which rows can be searched."""

    request_id: str
    tenant: str
    """Tenant id; empty if unknown."""
    service_class: str
    """Class name; empty if the request was never classified."""
    outcome: str
    arrived_at: int
    """Arrival time, as Unix time in nanoseconds."""
    total_us: int


class StageSpan(Struct, array_like=True, frozen=True):
    """One stage. Times are relative to the start of the request."""

    stage: str
    attempt: int | None
    begin_us: int
    end_us: int


class AttemptRow(Struct, array_like=True, frozen=True):
    number: int
    endpoint: str
    pool: str
    hedge: bool
    ending: str
    detail: str


class _DispatchStep(Struct, array_like=True, frozen=True, tag="d"):
    at: int
    attempt: int
    endpoint: str
    pool: str
    service_class: str
    waited_ns: int
    held_ns: int
    reason: str
    level: int
    hedge: bool
    caps: Caps | None
    costs: tuple[tuple[str, int], ...] = ()
    route: str = ""


class _HoldStep(Struct, array_like=True, frozen=True, tag="h"):
    at: int
    pool: str
    service_class: str
    reason: str


class _FirstTokenStep(Struct, array_like=True, frozen=True, tag="f"):
    at: int
    attempt: int
    delivered: bool = True


class _AbortStep(Struct, array_like=True, frozen=True, tag="a"):
    at: int
    attempt: int
    endpoint: str
    reason: str


class _AttemptEndedStep(Struct, array_like=True, frozen=True, tag="e"):
    at: int
    attempt: int
    ending: AttemptEnding
    detail: str
    tokens: tuple[int, int, int] | None
    """Prompt tokens, output tokens and cached prompt tokens; None if the engine reported none."""
    first_token: bool = False


class _EndStep(Struct, array_like=True, frozen=True, tag="x"):
    at: int
    outcome: Outcome
    service_class: str | None
    attempts: int
    waited_ns: int
    held_ns: int
    retry_after_ns: int | None
    reason: str


RecordedStep = _DispatchStep | _HoldStep | _FirstTokenStep | _AbortStep | _AttemptEndedStep | _EndStep


class RecordedHistory(Struct, array_like=True, frozen=True):
    """The request as seen by the scheduler, with its history."""

    arrived_at: int
    model: str
    requested_class: str | None
    service_tier: str | None
    model_tier: str | None
    first_token_ns_left: int | None
    completion_ns_left: int | None
    n: int
    output_tokens_max: int | None
    steps: list[RecordedStep]
    ejections: list[tuple[int, str, int, str]]
    """Ejections of endpoints that the request was sent to, each with its time, endpoint, end time and reason."""
    policies: list[tuple[int, str]]
    prompts: int = 1


class RecordRow(Struct, array_like=True, frozen=True):
    key: RecordKey
    api: str
    model: str
    stream: bool
    status: int
    reason: str
    prompt_bytes: int
    client_retries: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    waited_us: int
    held_us: int
    degraded: tuple[str, ...]
    trace_id: str
    stages: list[StageSpan]
    caller_stages: list[tuple[str, int]]
    """Name and duration in microseconds of each stage reported by the client."""
    attempts: list[AttemptRow]
    history: RecordedHistory | None


ContextEvents = tuple[Sequence[tuple[Instant, Eject]], Sequence[tuple[Instant, str]]]
"""Ejections and policy changes while a request was open."""


def row_of(
    record: RequestRecord,
    history: RequestHistory | None,
    context: ContextEvents = ((), ()),
    times: Sequence[StageTime] | None = None,
) -> RecordRow:
    """Creates a row. `history` is None if the request ended before it was scheduled. `times` contains its stages, if
    already computed.
    """
    began = record.started_at
    key = RecordKey(
        record.request_id,
        record.tenant or "",
        record.class_name or "",
        "" if record.outcome is None else record.outcome.value,
        record.arrived_at,
        max(0, record.ended_at - began) // _US,
    )
    return RecordRow(
        key=key,
        api="" if record.api is None else record.api.value,
        model=(record.model or "")[:NAME_CHARS_MAX],
        stream=record.stream,
        status=record.status,
        reason=record.reason[:REASON_CHARS_MAX],
        prompt_bytes=record.prompt_bytes,
        client_retries=record.client_retries,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        output_tokens=record.output_tokens,
        waited_us=record.waited_ns // _US,
        held_us=record.held_ns // _US,
        degraded=record.degraded,
        trace_id=record.trace_id.hex(),
        stages=[
            StageSpan(stage.value, attempt, (begin - began) // _US, (end - began) // _US)
            for stage, attempt, begin, end in (stage_times(record) if times is None else times)
        ],
        caller_stages=[(name, length // _US) for name, length in record.caller_stages],
        attempts=[
            AttemptRow(
                each.number,
                each.endpoint_id,
                each.pool,
                each.hedge,
                "" if each.ending is None else each.ending.value,
                each.detail[:REASON_CHARS_MAX],
            )
            for each in record.attempts
        ],
        history=None if history is None else _recorded_history(history, context),
    )


def stages_of(row: RecordRow) -> list[tuple[Stage, int | None, int, int]]:
    """The stages in the format of `stage_times`, in microseconds. Stages unknown to this version are omitted."""
    known = {stage.value: stage for stage in Stage}
    return [(known[each.stage], each.attempt, each.begin_us, each.end_us) for each in row.stages if each.stage in known]


# Encoding

_encoder: Final = msgpack.Encoder()
_decoder: Final = msgpack.Decoder(RecordRow)


def encode_row(row: RecordRow) -> bytes:
    return _encoder.encode(row)


def decode_row(written: bytes) -> RecordRow:
    """Decodes a row. Raises `msgspec.DecodeError`."""
    return _decoder.decode(written)


# Conversion of histories


def _recorded_history(history: RequestHistory, around: ContextEvents) -> RecordedHistory:
    # Copy first, because the event loop may add steps while this thread reads.
    steps = tuple(history.steps)
    ejections, policies = around
    return RecordedHistory(
        arrived_at=history.arrived_at,
        model=history.model or "",
        requested_class=history.requested_class,
        service_tier=history.service_tier,
        model_tier=history.model_tier,
        first_token_ns_left=history.first_token_ns_left,
        completion_ns_left=history.completion_ns_left,
        n=history.n,
        output_tokens_max=history.output_tokens_max,
        steps=[_recorded_step(step, at) for at, step in steps],
        ejections=[(at, each.endpoint_id, each.until, each.reason) for at, each in ejections],
        policies=list(policies),
        prompts=history.prompts,
    )


def _recorded_step(step: Step, at: Instant) -> RecordedStep:
    match step:
        case Dispatch():
            caps = None if step.caps == _NO_CAPS else step.caps
            return _DispatchStep(
                at,
                step.attempt,
                step.endpoint_id,
                step.pool,
                step.service_class,
                step.waited_ns,
                step.held_ns,
                step.reason[:REASON_CHARS_MAX],
                step.level,
                step.hedge,
                caps,
                step.costs,
                step.route,
            )
        case Hold():
            return _HoldStep(at, step.pool, step.service_class, step.reason)
        case FirstToken():
            return _FirstTokenStep(at, step.attempt, step.delivered)
        case Abort():
            return _AbortStep(at, step.attempt, step.endpoint_id, step.reason)
        case AttemptEnded():
            usage = step.usage
            tokens = None if usage is None else (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens)
            return _AttemptEndedStep(at, step.attempt, step.ending, step.detail, tokens, step.first_token)
        case End():
            lengths = step.waited_ns, step.held_ns, step.retry_after_ns
            return _EndStep(at, step.outcome, step.service_class, step.attempts, *lengths, step.reason)


def history_of(row: RecordRow) -> RequestHistory | None:
    """The stored history; None if there is none or this version does not know the request's API."""
    asked = row.history
    if asked is None or row.api not in _APIS:
        return None
    ticket = Ticket(
        RequestId(row.key.request_id),
        Api(row.api),
        ModelName(asked.model),
        TenantId(row.key.tenant),
        row.stream,
        row.prompt_bytes,
        requested_class=asked.requested_class,
        service_tier=asked.service_tier,
        client_retries=row.client_retries,
        first_token_ns_left=_duration(asked.first_token_ns_left),
        completion_ns_left=_duration(asked.completion_ns_left),
        n=asked.n,
        output_tokens_max=asked.output_tokens_max,
        model_tier=asked.model_tier,
        prompts=asked.prompts,
    )
    history = RequestHistory(ticket, Instant(asked.arrived_at))
    history.steps.extend(_steps(asked.steps, ticket.request_id))
    return history


def context_events_of(row: RecordRow) -> ContextEvents:
    asked = row.history
    if asked is None:
        return (), ()
    ejections = [
        (Instant(at), Eject(EndpointId(endpoint), Instant(until), reason))
        for at, endpoint, until, reason in asked.ejections
    ]
    return ejections, [(Instant(at), name) for at, name in asked.policies]


def _steps(kept: Iterable[RecordedStep], request_id: RequestId) -> Iterable[tuple[Instant, Step]]:
    for each in kept:
        yield Instant(each.at), _step(each, request_id)


def _step(kept: RecordedStep, request_id: RequestId) -> Step:
    match kept:
        case _DispatchStep():
            return _dispatch(kept, request_id)
        case _HoldStep():
            return Hold(request_id, PoolName(kept.pool), ClassName(kept.service_class), kept.reason)
        case _FirstTokenStep():
            return FirstToken(request_id, kept.attempt, kept.delivered)
        case _AbortStep():
            return Abort(request_id, kept.attempt, EndpointId(kept.endpoint), kept.reason)
        case _AttemptEndedStep():
            usage = None if kept.tokens is None else Usage(*kept.tokens, UsageSource.ENGINE)
            return AttemptEnded(request_id, kept.attempt, kept.ending, kept.detail, usage, first_token=kept.first_token)
        case _EndStep():
            return _end(kept, request_id)


def _dispatch(kept: _DispatchStep, request_id: RequestId) -> Dispatch:
    return Dispatch(
        request_id,
        kept.attempt,
        EndpointId(kept.endpoint),
        PoolName(kept.pool),
        ClassName(kept.service_class),
        Duration(kept.waited_ns),
        _NO_DURATION,
        _NO_DURATION,
        _NO_DURATION,
        kept.caps or _NO_CAPS,
        kept.reason,
        level=kept.level,
        hedge=kept.hedge,
        held_ns=Duration(kept.held_ns),
        costs=kept.costs,
        route=kept.route,
    )


def _end(kept: _EndStep, request_id: RequestId) -> End:
    return End(
        request_id,
        kept.outcome,
        None if kept.service_class is None else ClassName(kept.service_class),
        kept.attempts,
        Duration(kept.waited_ns),
        _duration(kept.retry_after_ns),
        kept.reason,
        held_ns=Duration(kept.held_ns),
    )


def _duration(length_ns: int | None) -> Duration | None:
    return None if length_ns is None else Duration(length_ns)
