"""How is it told where the time of a request went, and what became of one that only its record knows?"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, seconds
from headgate.telemetry.decisions import History, Picture
from headgate.telemetry.explanation import explained
from headgate.telemetry.records.row import Row, Try, around_of, history_of, stages_of
from headgate.telemetry.stages.budget import ClassBudget, spending

_US: Final = 1_000
"""Nanoseconds."""


def told_by_row(row: Row, neighbours: Sequence[History], *, forgotten: bool) -> dict[str, object]:
    """As `explained` tells it, of what was written; `neighbours` are others that were there meanwhile.

    `forgotten` says that there were more of them than these."""
    over = Instant(row.key.arrived + row.key.total_us * _US)
    history = history_of(row)
    if history is None:
        return _by_its_record(row)
    ejections, policies = around_of(row)
    until = over if forgotten else Instant(0)
    return explained(Picture(history, tuple(neighbours), tuple(ejections), tuple(policies), until), over)


def _by_its_record(row: Row) -> dict[str, object]:
    """What ended before it was scheduled has no history, nor has one that was forgotten meanwhile."""
    key, length = row.key, _lasting(row.key.total_us)
    whose = f"of tenant {key.tenant}" if key.tenant else "of an unknown caller"
    scheduled = bool(row.attempts or row.waited_us or row.held_us)
    where = "" if scheduled else " at the door"
    ended = f"ended{where} after {length} as {key.outcome or 'nothing'}"
    waited = [f"waited {_lasting(row.waited_us)}"] if row.waited_us >= _US else []
    clauses = [*waited, *(_clause(each) for each in row.attempts), ended]
    why = f": {row.reason}" if row.reason else ""
    forgotten = " Its history was forgotten before it was written; this is what its record says." if scheduled else ""
    return {
        "request_id": key.request_id,
        "tenant": key.tenant,
        "model": row.model,
        "class": key.service_class or None,
        "outcome": key.outcome or None,
        "arrived_at": moment(key.arrived),
        "summary": f"{key.request_id} {whose} {'; '.join(clauses)}{why}.{forgotten}",
        "steps": [
            {"at_ms": 0.0, "kind": "arrived", "what": "arrived", "why": ""},
            *_tries(row),
            {
                "at_ms": _ms(key.total_us),
                "kind": "ended",
                "what": f"ended: {key.outcome}",
                "why": row.reason,
                "outcome": key.outcome,
                "attempts": len(row.attempts),
            },
        ],
    }


def _clause(tried: Try) -> str:
    hedge = ", as a hedge," if tried.hedge else ""
    how = f" ({tried.ending}{f': {tried.detail}' if tried.detail else ''})" if tried.ending else ""
    return f"went to {tried.endpoint}{hedge}{how}"


def _tries(row: Row) -> Iterator[dict[str, object]]:
    """The queue and each try, at the beginning of the first stage that is theirs."""
    if row.waited_us >= _US:
        began = min((each.begin_us for each in row.stages if each.stage == Stage.QUEUE), default=0)
        waited = {"kind": "queued", "what": "queued", "why": "", "waited_ms": _ms(row.waited_us)}
        yield {"at_ms": _ms(began), **waited}
    for tried in row.attempts:
        began = min((each.begin_us for each in row.stages if each.attempt == tried.number), default=row.key.total_us)
        yield {
            "at_ms": _ms(began),
            "kind": "dispatched",
            "what": f"{'hedged at' if tried.hedge else 'sent to'} {tried.endpoint}",
            "why": ": ".join(each for each in (tried.ending, tried.detail) if each),
            "endpoint": tried.endpoint,
            "pool": tried.pool,
            "attempt": tried.number,
            "hedge": tried.hedge,
        }


def time_spent(row: Row, budget: ClassBudget) -> dict[str, object]:
    """The stages of a request that has ended, and what its class allows them."""
    spent = spending(stages_of(row), budget, stream=row.stream, outcome=row.key.outcome, unit=_US)
    return {
        "total_ms": _ms(row.key.total_us),
        "status": row.status,
        "attempts": len(row.attempts),
        "prompt_tokens": row.prompt_tokens,
        "cached_tokens": row.cached_tokens,
        "output_tokens": row.output_tokens,
        "trace_id": row.trace_id or None,
        "stages": [
            {
                "stage": each.stage,
                "attempt": each.attempt,
                "at_ms": _ms(each.begin_us),
                "took_ms": _ms(each.end_us - each.begin_us),
            }
            for each in row.stages
        ],
        "caller_stages": [{"stage": name, "took_ms": _ms(length)} for name, length in row.caller_stages],
        "budget": _budget(budget),
        "over_budget": [stage.value for stage in spent.over],
        "late": {goal.value: stage.value for goal, stage in spent.late.items()},
    }


def listed(row: Row, budget: ClassBudget) -> dict[str, object]:
    """One request among others."""
    key = row.key
    return {
        "request_id": key.request_id,
        "tenant": key.tenant or None,
        "class": key.service_class or None,
        "model": row.model or None,
        "outcome": key.outcome or None,
        "arrived_at": moment(key.arrived),
        "reason": row.reason,
        **time_spent(row, budget),
    }


def _budget(budget: ClassBudget) -> Mapping[str, object]:
    return {
        "stages": {stage.value: length / MILLISECOND for stage, length in budget.stages.items()},
        "ttft_ms": None if budget.ttft_ns is None else budget.ttft_ns / MILLISECOND,
        "duration_ms": None if budget.duration_ns is None else budget.duration_ns / MILLISECOND,
    }


def moment(at: int) -> str:
    return datetime.fromtimestamp(at / SECOND, UTC).isoformat(timespec="milliseconds")


def _lasting(length_us: int) -> str:
    return f"{length_us // _US} ms" if length_us < 1_000_000 else seconds(Duration(length_us * _US))


def _ms(length_us: int) -> float:
    return round(length_us / 1_000, 3)
