"""Fleet size chosen by the autoscaler at constant load.

Every window of the day has the same mean demand, but with the random variation of a recorded day. The result covers the
second half of the day: the smallest and largest fleet, and the number of endpoint starts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.scaling.compare import KINDS, OURS, PROFILE, USUAL_COLD_START_S, Days
from bench.scaling.demand import Window, demand
from bench.scaling.fluid import run

LOAD_PERCENT = 100
_WINDOWS = 144


@dataclass(frozen=True, slots=True)
class FleetRange:
    least: int
    most: int
    rises: int
    """Total number of endpoints started."""

    @property
    def range(self) -> int:
        return self.most - self.least


def steady_range(window: Window, *, seed: int, target: float = LOAD_PERCENT, kind: str = OURS) -> FleetRange:
    windows = [window] * _WINDOWS
    days = Days("constant", windows, demand(windows, seed=seed))
    first = round(window.work) + 1
    contender = KINDS[kind].make(target, days, 4 * first)
    outcome = run(days.steps, contender, PROFILE, first=first, endpoints_max=4 * first, cold_start_s=USUAL_COLD_START_S)
    return _rest(outcome.ready[len(outcome.ready) // 2 :])


def median_window(windows: Sequence[Window]) -> Window:
    """Window with the median demand."""
    return sorted(windows, key=lambda each: each.work)[len(windows) // 2]


def _rest(ready: Sequence[int]) -> FleetRange:
    rises = sum(max(0, later - earlier) for earlier, later in pairwise(ready))
    return FleetRange(min(ready), max(ready), rises)
