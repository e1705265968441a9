"""How often, and how long, of late?

What is counted only ever grows. Here its values of the last seconds are kept, one picture a second, and what happened
meanwhile is the difference between two of them.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Instant
from headgate.telemetry.counts import ENDED, ClassMeter, Ended, Objective
from headgate.telemetry.histogram import LATENCY, Histogram

RATES_S: Final = 10
"""Rates and quantiles are of so many seconds."""
MINUTE_S: Final = 60
UNSERVED: Final = tuple(outcome for outcome in Outcome if ENDED[outcome] in (Ended.REFUSED, Ended.FAILED))
"""Whoever left by itself was not left unserved."""
_MILLISECOND: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ClassRates:
    per_s: float
    """Asked for at this gateway, whatever became of it."""
    completed_per_s: float
    refused_per_s: float
    """Refused or failed; whoever left by itself is not in it."""
    ttft_ms: Mapping[str, float] | None
    duration_ms: Mapping[str, float] | None
    in_time_percent: float | None
    """Of streams, those whose first token came within the target; None where there was none to judge."""


class _Class:
    """What was counted of one class at one moment."""

    __slots__ = ("asked", "completed", "firsts", "in_time", "judged", "refused", "totals")

    def __init__(self, meter: ClassMeter) -> None:
        self.completed = meter.requests[Outcome.COMPLETED]
        self.refused = sum(meter.requests[outcome] for outcome in UNSERVED)
        self.asked = meter.asked
        self.firsts = _together(meter.to_first_token)
        self.totals = _together(meter.total)
        self.judged = meter.objective_requests[Objective.TTFT]
        self.in_time = meter.objective_good[Objective.TTFT]


class Window:
    def __init__(self) -> None:
        self._classes: deque[tuple[Instant, dict[str, _Class]]] = deque(maxlen=RATES_S + 1)
        self._endings: deque[dict[Outcome, int]] = deque(maxlen=MINUTE_S + 1)
        self._spent: deque[tuple[Instant, dict[str, tuple[int, int]]]] = deque(maxlen=MINUTE_S + 1)

    def take(self, now: Instant, classes: Mapping[str, ClassMeter], tenants: Iterable[tuple[str, int, int]]) -> None:
        """The picture of this second; of tenants how much each asked for and spent, in billionths of a dollar."""
        self._classes.append((now, {name: _Class(meter) for name, meter in classes.items()}))
        self._endings.append(
            {outcome: sum(meter.requests[outcome] for meter in classes.values()) for outcome in Outcome}
        )
        self._spent.append((now, {name: (asked, nano_usd) for name, asked, nano_usd in tenants}))

    def of_class(self, name: str) -> ClassRates:
        now, pictures = self._classes[-1]
        since, before = self._classes[0]
        new, old = pictures.get(name), before.get(name)
        if new is None or old is None or now <= since:
            return ClassRates(0.0, 0.0, 0.0, None, None, None)
        seconds = (now - since) / SECOND
        judged = new.judged - old.judged
        return ClassRates(
            per_s=_rate(new.asked - old.asked, seconds),
            completed_per_s=_rate(new.completed - old.completed, seconds),
            refused_per_s=_rate(new.refused - old.refused, seconds),
            ttft_ms=quantiles_ms(old.firsts, new.firsts),
            duration_ms=quantiles_ms(old.totals, new.totals),
            in_time_percent=round(100 * (new.in_time - old.in_time) / judged, 1) if judged > 0 else None,
        )

    def endings(self) -> list[tuple[Outcome, int, int]]:
        """Each way to end but completion that there was: how often in the last minute, and in all."""
        new, old = self._endings[-1], self._endings[0]
        found = [(outcome, max(0, new[outcome] - old[outcome]), new[outcome]) for outcome in Outcome if new[outcome]]
        return [each for each in found if each[0] is not Outcome.COMPLETED]

    def of_tenant(self, name: str) -> tuple[float, float]:
        """What it asked for in a second of the last ten, and what it spent in dollars an hour in the last minute."""
        now, amounts = self._spent[-1]
        asked, nano_usd = amounts.get(name, (0, 0))
        recent_at, recent = self._spent[max(0, len(self._spent) - 1 - RATES_S)]
        since = self._spent[0][0]
        if now <= since:
            return 0.0, 0.0
        # What it had spent before it was first seen is not of this minute.
        spent = nano_usd - next(each[name][1] for _, each in self._spent if name in each) if name in amounts else 0
        per_s = _rate(asked - recent.get(name, (0, 0))[0], (now - recent_at) / SECOND)
        return per_s, max(0.0, round(spent / (now - since) * 3600, 4))


def quantiles_ms(old: Sequence[int], new: Sequence[int]) -> dict[str, float] | None:
    """Of what was added to a histogram of durations, in milliseconds; None where nothing was."""
    added = [max(0, after - before) for before, after in zip(old, new, strict=True)]
    count = sum(added)
    if not count:
        return None
    return {f"p{percent}": _quantile_ms(added, count * percent / 100) for percent in (50, 95, 99)}


def _quantile_ms(added: Sequence[int], rank: float) -> float:
    """Inside of a bucket values are taken to lie evenly; beyond the last bound nothing is known but that."""
    below = 0
    for place, count in enumerate(added):
        if count and below + count >= rank:
            low = LATENCY.bounds[place - 1] if place else 0
            high = LATENCY.bounds[place] if place < len(LATENCY.bounds) else low
            return round((low + (high - low) * (rank - below) / count) / _MILLISECOND, 1)
        below += count
    raise AssertionError("a rank is within what was counted")


def _together(histograms: Sequence[Histogram]) -> list[int]:
    return [sum(counts) for counts in zip(*(each.counts for each in histograms), strict=True)]


def _rate(count: int, seconds: float) -> float:
    return max(0.0, round(count / seconds, 2))
