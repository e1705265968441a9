"""What is kept of one request, in files?

What its record says (`ports/records.py`), the stages that it falls into, and the history that decisions.py has of it,
so that it can be told later as it would have been told at once. Neither prompts nor answers nor keys are in it. A row
is written as an array: fields are added at the end only, with what they are in rows that have none, so that every
version reads what an older one wrote.
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
from headgate.telemetry.decisions import NAME_CHARS_MAX, REASON_CHARS_MAX, History, Step
from headgate.telemetry.stages.times import StageTime, stage_times

_US: Final = 1_000
_NO_CAPS: Final = Caps()
_NEVER: Final = Duration(0)
_APIS: Final = frozenset(api.value for api in Api)


class Key(Struct, array_like=True, frozen=True):
    """By what a row is looked for."""

    request_id: str
    tenant: str
    """Empty where nobody knows whose it is."""
    service_class: str
    """Empty where it never had one."""
    outcome: str
    arrived: int
    """By the calendar, in nanoseconds."""
    total_us: int


class StageSpan(Struct, array_like=True, frozen=True):
    """From the beginning of the request."""

    stage: str
    attempt: int | None
    begin_us: int
    end_us: int


class Try(Struct, array_like=True, frozen=True):
    number: int
    endpoint: str
    pool: str
    hedge: bool
    ending: str
    detail: str


class _Sent(Struct, array_like=True, frozen=True, tag="d"):
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


class _Held(Struct, array_like=True, frozen=True, tag="h"):
    at: int
    pool: str
    service_class: str
    reason: str


class _First(Struct, array_like=True, frozen=True, tag="f"):
    at: int
    attempt: int
    delivered: bool = True


class _Aborted(Struct, array_like=True, frozen=True, tag="a"):
    at: int
    attempt: int
    endpoint: str
    reason: str


class _TryEnded(Struct, array_like=True, frozen=True, tag="e"):
    at: int
    attempt: int
    ending: AttemptEnding
    detail: str
    tokens: tuple[int, int, int] | None
    """Of the prompt, of the output, and of the prompt those that were cached."""


class _Over(Struct, array_like=True, frozen=True, tag="x"):
    at: int
    outcome: Outcome
    service_class: str | None
    attempts: int
    waited_ns: int
    held_ns: int
    retry_after_ns: int | None
    reason: str


KeptStep = _Sent | _Held | _First | _Aborted | _TryEnded | _Over


class Asked(Struct, array_like=True, frozen=True):
    """What the scheduler was told of it."""

    arrived_at: int
    model: str
    class_named: str | None
    service_tier: str | None
    rung: str | None
    first_token_ns_left: int | None
    completion_ns_left: int | None
    n: int
    output_tokens_max: int | None
    steps: list[KeptStep]
    ejections: list[tuple[int, str, int, str]]
    """When, which endpoint, until when and why: those of endpoints that it was at."""
    policies: list[tuple[int, str]]
    prompts: int = 1


class Row(Struct, array_like=True, frozen=True):
    key: Key
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
    """Name and microseconds."""
    attempts: list[Try]
    asked: Asked | None


Around = tuple[Sequence[tuple[Instant, Eject]], Sequence[tuple[Instant, str]]]
"""The ejections and the changes of policy while a request was open."""


def row_of(
    record: RequestRecord,
    history: History | None,
    around: Around = ((), ()),
    times: Sequence[StageTime] | None = None,
) -> Row:
    """`history` is None where the request ended before it was scheduled; `times` are its stages, if they are known."""
    began = record.started_at
    key = Key(
        record.request_id,
        record.tenant or "",
        record.class_name or "",
        "" if record.outcome is None else record.outcome.value,
        record.arrived,
        max(0, record.ended_at - began) // _US,
    )
    return Row(
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
            Try(
                each.number,
                each.endpoint_id,
                each.pool,
                each.hedge,
                "" if each.ending is None else each.ending.value,
                each.detail[:REASON_CHARS_MAX],
            )
            for each in record.attempts
        ],
        asked=None if history is None else _asked(history, around),
    )


def stages_of(row: Row) -> list[tuple[Stage, int | None, int, int]]:
    """As `stage_times` has them, in microseconds; what another version calls otherwise is left out."""
    known = {stage.value: stage for stage in Stage}
    return [(known[each.stage], each.attempt, each.begin_us, each.end_us) for each in row.stages if each.stage in known]


# There, as bytes

_encoder: Final = msgpack.Encoder()
_decoder: Final = msgpack.Decoder(Row)


def encoded(row: Row) -> bytes:
    return _encoder.encode(row)


def decoded(written: bytes) -> Row:
    """Raises `msgspec.DecodeError`."""
    return _decoder.decode(written)


# The history, there and back


def _asked(history: History, around: Around) -> Asked:
    # More may be added while this is read in another thread.
    steps = tuple(history.steps)
    ejections, policies = around
    return Asked(
        arrived_at=history.arrived_at,
        model=history.model or "",
        class_named=history.class_named,
        service_tier=history.service_tier,
        rung=history.rung,
        first_token_ns_left=history.first_token_ns_left,
        completion_ns_left=history.completion_ns_left,
        n=history.n,
        output_tokens_max=history.output_tokens_max,
        steps=[_kept(step, at) for at, step in steps],
        ejections=[(at, each.endpoint_id, each.until, each.reason) for at, each in ejections],
        policies=list(policies),
        prompts=history.prompts,
    )


def _kept(step: Step, at: Instant) -> KeptStep:
    match step:
        case Dispatch():
            caps = None if step.caps == _NO_CAPS else step.caps
            place = step.endpoint_id, step.pool, step.service_class
            why = step.reason[:REASON_CHARS_MAX], step.level, step.hedge, caps, step.costs
            return _Sent(at, step.attempt, *place, step.waited_ns, step.held_ns, *why)
        case Hold():
            return _Held(at, step.pool, step.service_class, step.reason)
        case FirstToken():
            return _First(at, step.attempt, step.delivered)
        case Abort():
            return _Aborted(at, step.attempt, step.endpoint_id, step.reason)
        case AttemptEnded():
            usage = step.usage
            tokens = None if usage is None else (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens)
            return _TryEnded(at, step.attempt, step.ending, step.detail, tokens)
        case End():
            lengths = step.waited_ns, step.held_ns, step.retry_after_ns
            return _Over(at, step.outcome, step.service_class, step.attempts, *lengths, step.reason)


def history_of(row: Row) -> History | None:
    """As decisions.py had it; None where it had none, or the request is of a kind that only another version knows."""
    asked = row.asked
    if asked is None or row.api not in _APIS:
        return None
    ticket = Ticket(
        RequestId(row.key.request_id),
        Api(row.api),
        ModelName(asked.model),
        TenantId(row.key.tenant),
        row.stream,
        row.prompt_bytes,
        class_named=asked.class_named,
        service_tier=asked.service_tier,
        client_retries=row.client_retries,
        first_token_ns_left=_length(asked.first_token_ns_left),
        completion_ns_left=_length(asked.completion_ns_left),
        n=asked.n,
        output_tokens_max=asked.output_tokens_max,
        rung=asked.rung,
        prompts=asked.prompts,
    )
    history = History(ticket, Instant(asked.arrived_at))
    history.steps.extend(_steps(asked.steps, ticket.request_id))
    return history


def around_of(row: Row) -> Around:
    asked = row.asked
    if asked is None:
        return (), ()
    ejections = [
        (Instant(at), Eject(EndpointId(endpoint), Instant(until), reason))
        for at, endpoint, until, reason in asked.ejections
    ]
    return ejections, [(Instant(at), name) for at, name in asked.policies]


def _steps(kept: Iterable[KeptStep], request_id: RequestId) -> Iterable[tuple[Instant, Step]]:
    for each in kept:
        yield Instant(each.at), _step(each, request_id)


def _step(kept: KeptStep, request_id: RequestId) -> Step:
    match kept:
        case _Sent():
            return _dispatch(kept, request_id)
        case _Held():
            return Hold(request_id, PoolName(kept.pool), ClassName(kept.service_class), kept.reason)
        case _First():
            return FirstToken(request_id, kept.attempt, kept.delivered)
        case _Aborted():
            return Abort(request_id, kept.attempt, EndpointId(kept.endpoint), kept.reason)
        case _TryEnded():
            usage = None if kept.tokens is None else Usage(*kept.tokens, UsageSource.ENGINE)
            return AttemptEnded(request_id, kept.attempt, kept.ending, kept.detail, usage)
        case _Over():
            return _end(kept, request_id)


def _dispatch(kept: _Sent, request_id: RequestId) -> Dispatch:
    return Dispatch(
        request_id,
        kept.attempt,
        EndpointId(kept.endpoint),
        PoolName(kept.pool),
        ClassName(kept.service_class),
        Duration(kept.waited_ns),
        _NEVER,
        _NEVER,
        _NEVER,
        kept.caps or _NO_CAPS,
        kept.reason,
        level=kept.level,
        hedge=kept.hedge,
        held_ns=Duration(kept.held_ns),
        costs=kept.costs,
    )


def _end(kept: _Over, request_id: RequestId) -> End:
    return End(
        request_id,
        kept.outcome,
        None if kept.service_class is None else ClassName(kept.service_class),
        kept.attempts,
        Duration(kept.waited_ns),
        _length(kept.retry_after_ns),
        kept.reason,
        held_ns=Duration(kept.held_ns),
    )


def _length(length_ns: int | None) -> Duration | None:
    return None if length_ns is None else Duration(length_ns)
