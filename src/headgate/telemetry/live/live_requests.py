"""Recent slow and failed requests, with the time spent in each stage.

A request is slow if a stage exceeded the budget of its class, or if its duration is above the 99th percentile of recent
requests in its class. Slow and failed requests have separate limits, so that a large number of one kind does not crowd
out the other.
"""

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from headgate.model.outcome import Outcome
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration
from headgate.ports.records import RequestRecord
from headgate.telemetry.stages.stage_times import stage_times

KEPT_MAX: Final = 15
"""Maximum number of slow requests, and of failed requests."""
WAITING_MAX: Final = 2_000
"""Maximum number of queued records. When the queue is full, the oldest records are dropped."""
STAGES_CHECKED_MAX: Final = 200
"""Maximum number of requests per second whose stages are checked. For the rest, only the duration is checked."""
CLASS_SAMPLES_MAX: Final = 200
_CLASS_SAMPLES_MIN: Final = 50
"""Minimum number of requests in a class needed to compute its 99th percentile."""
_CLASSES_MAX: Final = 64

StageBudgets = Mapping[ClassName, Mapping[Stage, Duration]]


class LiveRequests:
    def __init__(self, budgets: StageBudgets) -> None:
        self.budgets = budgets
        self._waiting: deque[RequestRecord] = deque(maxlen=WAITING_MAX)
        self._slow: deque[RequestRecord] = deque(maxlen=KEPT_MAX)
        self._failed: deque[RequestRecord] = deque(maxlen=KEPT_MAX)
        self._durations: dict[ClassName, deque[int]] = {}

    def add(self, record: RequestRecord) -> None:
        # Requests rejected before they were classified are not representative.
        if record.class_name is not None:
            self._waiting.append(record)

    def classify_waiting(self) -> None:
        """Processes the records that have arrived since the last call."""
        usual = {name: _p99(lengths) for name, lengths in self._durations.items()}
        looked_at = 0
        while self._waiting:
            record = self._waiting.popleft()
            name = record.class_name
            assert name is not None
            if record.outcome is not Outcome.COMPLETED:
                self._failed.append(record)
                continue
            length = record.ended_at - record.started_at
            budgets = self.budgets.get(name)
            is_slow = length > (usual.get(name) or length)
            if not is_slow and budgets and length > min(budgets.values()) and looked_at < STAGES_CHECKED_MAX:
                looked_at += 1
                is_slow = _is_over_budget(record, budgets)
            if is_slow:
                self._slow.append(record)
            self._add_duration(name, length)

    def rows(self) -> list[dict[str, object]]:
        """Slow and failed requests, newest first."""
        kept = sorted((*self._slow, *self._failed), key=lambda record: -record.ended_at)
        return [self._row(record) for record in kept]

    def _add_duration(self, name: ClassName, length: int) -> None:
        """Records a duration. If there are too many classes, the least recently used one is dropped, because it may no
        longer be configured.
        """
        lengths = self._durations.pop(name, None) or deque(maxlen=CLASS_SAMPLES_MAX)
        lengths.append(length)
        self._durations[name] = lengths
        if len(self._durations) > _CLASSES_MAX:
            del self._durations[next(iter(self._durations))]

    def _row(self, record: RequestRecord) -> dict[str, object]:
        name = record.class_name
        budgets: Mapping[Stage, Duration] = {} if name is None else self.budgets.get(name, {})
        took = _by_stage(record)
        return {
            "request_id": record.request_id,
            "tenant": record.tenant,
            "class": name,
            "outcome": "internal_error" if record.outcome is None else record.outcome.value,
            "at": datetime.fromtimestamp(record.arrived_at // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "total_ms": _ms(record.ended_at - record.started_at),
            "stages": [
                {"stage": stage.value, "ms": _ms(took[stage]), "budget_ms": _ms_or_none(budgets.get(stage))}
                for stage in Stage
                if stage in took
            ],
        }


def _by_stage(record: RequestRecord) -> dict[Stage, int]:
    took: dict[Stage, int] = {}
    for piece in stage_times(record):
        took[piece.stage] = took.get(piece.stage, 0) + piece.end - piece.begin
    return took


def _is_over_budget(record: RequestRecord, budgets: Mapping[Stage, Duration]) -> bool:
    took = _by_stage(record)
    return any(took.get(stage, 0) > budget for stage, budget in budgets.items())


def _p99(lengths: deque[int]) -> int | None:
    if len(lengths) < _CLASS_SAMPLES_MIN:
        return None
    return sorted(lengths)[len(lengths) * 99 // 100]


def _ms(length: int) -> float:
    return round(length / MILLISECOND, 2)


def _ms_or_none(length: int | None) -> float | None:
    return None if length is None else _ms(length)
