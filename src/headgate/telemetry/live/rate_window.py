"""Rates and percentiles over the last few seconds.

Counters only ever increase. This module keeps one snapshot of them per second and computes differences.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Instant
from headgate.telemetry.histogram import LATENCY_BUCKETS, Histogram
from headgate.telemetry.meter_types import OUTCOME_GROUPS, ClassMeter, ObjectiveKind, OutcomeGroup

RATE_WINDOW_S: Final = 10
"""Window for rates and quantiles, in seconds."""
MINUTE_S: Final = 60
UNSUCCESSFUL: Final = tuple(
    outcome for outcome in Outcome if OUTCOME_GROUPS[outcome] in (OutcomeGroup.REJECTED, OutcomeGroup.FAILED)
)
"""Outcomes that count as unserved. Requests cancelled by the client are excluded."""
_MILLISECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ClassRates:
    arrived_per_s: float
    """Requests received per second, regardless of outcome."""
    completed_per_s: float
    rejected_per_s: float
    """Rejected and failed requests per second, excluding requests cancelled by the client."""
    ttft_ms: Mapping[str, float] | None
    duration_ms: Mapping[str, float] | None
    on_time_percent: float | None
    """Percentage of streams that met the TTFT target; None if there were no streams."""


class _ClassCounts:
    """Counters for one class at one point in time."""

    __slots__ = ("arrived", "completed", "duration_counts", "eligible", "on_time", "ttft_counts", "unsuccessful")

    def __init__(self, meter: ClassMeter) -> None:
        self.completed = meter.requests[Outcome.COMPLETED]
        self.unsuccessful = sum(meter.requests[outcome] for outcome in UNSUCCESSFUL)
        self.arrived = meter.arrived
        self.ttft_counts = _merged_counts(meter.time_to_first_token)
        self.duration_counts = _merged_counts(meter.duration)
        self.eligible = meter.objective_requests[ObjectiveKind.TTFT]
        self.on_time = meter.objective_good[ObjectiveKind.TTFT]


class RateWindow:
    def __init__(self) -> None:
        self._classes: deque[tuple[Instant, dict[str, _ClassCounts]]] = deque(maxlen=RATE_WINDOW_S + 1)
        self._endings: deque[dict[Outcome, int]] = deque(maxlen=MINUTE_S + 1)
        self._tenants: deque[tuple[Instant, dict[str, tuple[int, int]]]] = deque(maxlen=MINUTE_S + 1)

    def add_sample(
        self, now: Instant, classes: Mapping[str, ClassMeter], tenants: Iterable[tuple[str, int, int]]
    ) -> None:
        """Adds the snapshot for this second. `tenants` are tuples of name, requests and cost in nano-dollars."""
        self._classes.append((now, {name: _ClassCounts(meter) for name, meter in classes.items()}))
        self._endings.append(
            {outcome: sum(meter.requests[outcome] for meter in classes.values()) for outcome in Outcome}
        )
        self._tenants.append((now, {name: (asked, nano_usd) for name, asked, nano_usd in tenants}))

    def of_class(self, name: str) -> ClassRates:
        now, pictures = self._classes[-1]
        since, before = self._classes[0]
        new, old = pictures.get(name), before.get(name)
        if new is None or old is None or now <= since:
            return ClassRates(0.0, 0.0, 0.0, None, None, None)
        seconds = (now - since) / SECOND
        judged = new.eligible - old.eligible
        return ClassRates(
            arrived_per_s=_rate(new.arrived - old.arrived, seconds),
            completed_per_s=_rate(new.completed - old.completed, seconds),
            rejected_per_s=_rate(new.unsuccessful - old.unsuccessful, seconds),
            ttft_ms=quantiles_ms(old.ttft_counts, new.ttft_counts),
            duration_ms=quantiles_ms(old.duration_counts, new.duration_counts),
            on_time_percent=round(100 * (new.on_time - old.on_time) / judged, 1) if judged > 0 else None,
        )

    def unsuccessful_outcomes(self) -> list[tuple[Outcome, int, int]]:
        """Outcomes other than completion, each with its count in the last minute and in total."""
        new, old = self._endings[-1], self._endings[0]
        found = [(outcome, max(0, new[outcome] - old[outcome]), new[outcome]) for outcome in Outcome if new[outcome]]
        return [each for each in found if each[0] is not Outcome.COMPLETED]

    def of_tenant(self, name: str) -> tuple[float, float]:
        """Requests per second over the last ten seconds, and dollars per hour over the last minute."""
        now, amounts = self._tenants[-1]
        asked, nano_usd = amounts.get(name, (0, 0))
        recent_at, recent = self._tenants[max(0, len(self._tenants) - 1 - RATE_WINDOW_S)]
        since = self._tenants[0][0]
        if now <= since:
            return 0.0, 0.0
        # Cost incurred before the tenant's first snapshot does not belong to this minute.
        spent = nano_usd - next(each[name][1] for _, each in self._tenants if name in each) if name in amounts else 0
        per_s = _rate(asked - recent.get(name, (0, 0))[0], (now - recent_at) / SECOND)
        return per_s, max(0.0, round(spent / (now - since) * 3600, 4))


def quantiles_ms(old: Sequence[int], new: Sequence[int]) -> dict[str, float] | None:
    """Percentiles of the durations recorded between two snapshots, in milliseconds; None if there are none."""
    added = [max(0, after - before) for before, after in zip(old, new, strict=True)]
    count = sum(added)
    if not count:
        return None
    return {f"p{percent}": _quantile_ms(added, count * percent / 100) for percent in (50, 95, 99)}


def _quantile_ms(added: Sequence[int], rank: float) -> float:
    """Interpolates linearly within a bucket. The last bucket has no upper bound, so its lower bound is returned."""
    below = 0
    for place, count in enumerate(added):
        if count and below + count >= rank:
            low = LATENCY_BUCKETS.bounds[place - 1] if place else 0
            high = LATENCY_BUCKETS.bounds[place] if place < len(LATENCY_BUCKETS.bounds) else low
            return round((low + (high - low) * (rank - below) / count) / _MILLISECOND, 1)
        below += count
    raise AssertionError("the rank exceeds the number of values")


def _merged_counts(histograms: Sequence[Histogram]) -> list[int]:
    return [sum(counts) for counts in zip(*(each.counts for each in histograms), strict=True)]


def _rate(count: int, seconds: float) -> float:
    return max(0.0, round(count / seconds, 2))
