"""Explains a request from its stored record, and reports how its time was spent."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, SECOND, Duration, Instant, format_seconds
from headgate.telemetry.decision_history import HistorySnapshot, RequestHistory
from headgate.telemetry.explanation import explain
from headgate.telemetry.records.row import AttemptRow, RecordRow, context_events_of, history_of, stages_of
from headgate.telemetry.stages.stage_budget import ClassStageBudget, stage_breakdown

_US: Final = 1_000
"""Nanoseconds per microsecond."""


def explain_row(row: RecordRow, neighbours: Sequence[RequestHistory], *, incomplete: bool) -> dict[str, object]:
    """Like `explain`, but for a stored row.

    `neighbours` are histories of concurrent requests; `incomplete` is true if there were more of them.
    """
    over = Instant(row.key.arrived_at + row.key.total_us * _US)
    history = history_of(row)
    if history is None:
        return _explain_without_history(row)
    ejections, policies = context_events_of(row)
    until = over if incomplete else Instant(0)
    return explain(HistorySnapshot(history, tuple(neighbours), tuple(ejections), tuple(policies), until), over)


def _explain_without_history(row: RecordRow) -> dict[str, object]:
    """Explanation of a request that has no history, because it was never scheduled or its history was evicted."""
    key, length = row.key, _duration_text(row.key.total_us)
    whose = f"tenant {key.tenant}" if key.tenant else "unknown tenant"
    scheduled = bool(row.attempts or row.waited_us or row.held_us)
    where = "" if scheduled else " before scheduling"
    ended = f"ended{where} after {length} with {key.outcome or 'no outcome'}"
    waited = [f"waited {_duration_text(row.waited_us)}"] if row.waited_us >= _US else []
    clauses = [*waited, *(_attempt_clause(each) for each in row.attempts), ended]
    why = f": {row.reason}" if row.reason else ""
    forgotten = " Its history was evicted before it was written; this summary uses its record." if scheduled else ""
    return {
        "request_id": key.request_id,
        "tenant": key.tenant,
        "model": row.model,
        "class": key.service_class or None,
        "outcome": key.outcome or None,
        "arrived_at": timestamp(key.arrived_at),
        "summary": f"{key.request_id} ({whose}) {'; '.join(clauses)}{why}.{forgotten}",
        "steps": [
            {"at_ms": 0.0, "kind": "arrived", "event": "arrived", "reason": ""},
            *_attempt_steps(row),
            {
                "at_ms": _ms(key.total_us),
                "kind": "ended",
                "event": f"ended: {key.outcome}",
                "reason": row.reason,
                "outcome": key.outcome,
                "attempts": len(row.attempts),
            },
        ],
    }


def _attempt_clause(tried: AttemptRow) -> str:
    hedge = " as a hedge" if tried.hedge else ""
    how = f" ({tried.ending}{f': {tried.detail}' if tried.detail else ''})" if tried.ending else ""
    return f"was sent to {tried.endpoint}{hedge}{how}"


def _attempt_steps(row: RecordRow) -> Iterator[dict[str, object]]:
    """One step for the queue and one for each attempt, at the start of its first stage."""
    if row.waited_us >= _US:
        began = min((each.begin_us for each in row.stages if each.stage == Stage.QUEUE), default=0)
        waited = {"kind": "queued", "event": "queued", "reason": "", "waited_ms": _ms(row.waited_us)}
        yield {"at_ms": _ms(began), **waited}
    for tried in row.attempts:
        began = min((each.begin_us for each in row.stages if each.attempt == tried.number), default=row.key.total_us)
        yield {
            "at_ms": _ms(began),
            "kind": "dispatched",
            "event": f"{'hedged to' if tried.hedge else 'sent to'} {tried.endpoint}",
            "reason": ": ".join(each for each in (tried.ending, tried.detail) if each),
            "endpoint": tried.endpoint,
            "pool": tried.pool,
            "attempt": tried.number,
            "hedge": tried.hedge,
        }


def timing(row: RecordRow, budget: ClassStageBudget) -> dict[str, object]:
    """Stages of a finished request, with its class's time budgets."""
    spent = stage_breakdown(stages_of(row), budget, stream=row.stream, outcome=row.key.outcome, unit=_US)
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
                "duration_ms": _ms(each.end_us - each.begin_us),
            }
            for each in row.stages
        ],
        "caller_stages": [{"stage": name, "duration_ms": _ms(length)} for name, length in row.caller_stages],
        "budget": _budget_json(budget),
        "over_budget": [stage.value for stage in spent.over_budget],
        "missed_targets": {target.value: stage.value for target, stage in spent.missed_targets.items()},
    }


def search_entry(row: RecordRow, budget: ClassStageBudget) -> dict[str, object]:
    """A request as a search result."""
    key = row.key
    return {
        "request_id": key.request_id,
        "tenant": key.tenant or None,
        "class": key.service_class or None,
        "model": row.model or None,
        "outcome": key.outcome or None,
        "arrived_at": timestamp(key.arrived_at),
        "reason": row.reason,
        **timing(row, budget),
    }


def _budget_json(budget: ClassStageBudget) -> Mapping[str, object]:
    return {
        "stages": {stage.value: length / MILLISECOND for stage, length in budget.stages.items()},
        "ttft_ms": None if budget.ttft_ns is None else budget.ttft_ns / MILLISECOND,
        "duration_ms": None if budget.duration_ns is None else budget.duration_ns / MILLISECOND,
    }


def timestamp(at: int) -> str:
    return datetime.fromtimestamp(at / SECOND, UTC).isoformat(timespec="milliseconds")


def _duration_text(length_us: int) -> str:
    return f"{length_us // _US} ms" if length_us < 1_000_000 else format_seconds(Duration(length_us * _US))


def _ms(length_us: int) -> float:
    return round(length_us / 1_000, 3)
