"""Which requests were slow or failed of late, and where did their time go?

Slow is what took longer in a stage than the budget of its class allows, or longer in all than all but a hundredth of
the last of its class. Of both kinds the newest few are kept, so that a flood of the one does not hide the other.
"""

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from headgate.model.outcome import Outcome
from headgate.model.stage import Stage
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration
from headgate.ports.records import RequestRecord
from headgate.telemetry.stages.times import stage_times

KEPT_MAX: Final = 15
"""Of each kind."""
WAITING_MAX: Final = 2_000
"""Records that wait to be looked at; beyond them the oldest are passed over."""
STAGES_LOOKED_AT_MAX: Final = 200
"""In a second, so that a busy gateway does not stop for it; of what comes beyond them only the whole time counts."""
LAST_OF_CLASS: Final = 200
_LAST_MIN: Final = 50
"""Before so many are known, none is slow for its class."""
_CLASSES_MAX: Final = 64

StageBudgets = Mapping[ClassName, Mapping[Stage, Duration]]


class LiveRequests:
    def __init__(self, budgets: StageBudgets) -> None:
        self.budgets = budgets
        self._waiting: deque[RequestRecord] = deque(maxlen=WAITING_MAX)
        self._slow: deque[RequestRecord] = deque(maxlen=KEPT_MAX)
        self._failed: deque[RequestRecord] = deque(maxlen=KEPT_MAX)
        self._lengths: dict[ClassName, deque[int]] = {}

    def take(self, record: RequestRecord) -> None:
        # What was turned away before it had a class says nothing of the time that requests take.
        if record.class_name is not None:
            self._waiting.append(record)

    def look(self) -> None:
        """Sorts what has come since the last time."""
        usual = {name: _hundredth(lengths) for name, lengths in self._lengths.items()}
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
            if not is_slow and budgets and length > min(budgets.values()) and looked_at < STAGES_LOOKED_AT_MAX:
                looked_at += 1
                is_slow = _over(record, budgets)
            if is_slow:
                self._slow.append(record)
            self._remember(name, length)

    def shown(self) -> list[dict[str, object]]:
        """The newest first."""
        kept = sorted((*self._slow, *self._failed), key=lambda record: -record.ended_at)
        return [self._shown(record) for record in kept]

    def _remember(self, name: ClassName, length: int) -> None:
        """The class that was longest without one is let go where there are too many: it may have been removed."""
        lengths = self._lengths.pop(name, None) or deque(maxlen=LAST_OF_CLASS)
        lengths.append(length)
        self._lengths[name] = lengths
        if len(self._lengths) > _CLASSES_MAX:
            del self._lengths[next(iter(self._lengths))]

    def _shown(self, record: RequestRecord) -> dict[str, object]:
        name = record.class_name
        budgets: Mapping[Stage, Duration] = {} if name is None else self.budgets.get(name, {})
        took = _by_stage(record)
        return {
            "request_id": record.request_id,
            "tenant": record.tenant,
            "class": name,
            "outcome": "mistake" if record.outcome is None else record.outcome.value,
            "at": datetime.fromtimestamp(record.arrived // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
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


def _over(record: RequestRecord, budgets: Mapping[Stage, Duration]) -> bool:
    took = _by_stage(record)
    return any(took.get(stage, 0) > budget for stage, budget in budgets.items())


def _hundredth(lengths: deque[int]) -> int | None:
    if len(lengths) < _LAST_MIN:
        return None
    return sorted(lengths)[len(lengths) * 99 // 100]


def _ms(length: int) -> float:
    return round(length / MILLISECOND, 2)


def _ms_or_none(length: int | None) -> float | None:
    return None if length is None else _ms(length)
