"""Does the fleet come to rest where the load is constant?

A day in which every ten minutes ask for the same, by the same chance as in a real one. Told of its second half: between
how few and how many endpoints the fleet moves, and how often one is started.
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
class Rest:
    least: int
    most: int
    rises: int
    """By how many endpoints in all the fleet grew."""

    @property
    def range(self) -> int:
        return self.most - self.least


def at_rest(window: Window, *, seed: int, target: float = LOAD_PERCENT, kind: str = OURS) -> Rest:
    windows = [window] * _WINDOWS
    days = Days("constant", windows, demand(windows, seed=seed))
    first = round(window.work) + 1
    contender = KINDS[kind].make(target, days, 4 * first)
    outcome = run(days.steps, contender, PROFILE, first=first, endpoints_max=4 * first, cold_start_s=USUAL_COLD_START_S)
    return _rest(outcome.ready[len(outcome.ready) // 2 :])


def middling(windows: Sequence[Window]) -> Window:
    """The window of the middle demand."""
    return sorted(windows, key=lambda each: each.work)[len(windows) // 2]


def _rest(ready: Sequence[int]) -> Rest:
    rises = sum(max(0, later - earlier) for earlier, later in pairwise(ready))
    return Rest(min(ready), max(ready), rises)
