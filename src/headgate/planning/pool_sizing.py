"""Sizes several pools at the same time.

Each round simulates one fleet and judges every pool by the classes that may use it. Pools that serve different classes
are therefore sized in as many rounds as the slowest of them needs. Large pools are sized with a relative precision.

If pools share a class, a miss does not show which of them is too small, so all of them grow. Afterwards, they are
reduced one after the other, with the others unchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.units import ClassName, PoolName
from headgate.planning.cases import CaseResult, Endpoints
from headgate.planning.search import NoPlan

PRECISION: Final = 0.05
"""Precision of a pool's size. A pool of fewer than 40 endpoints with classes of its own is exact."""
_GROWTH: Final = 1.15
_GROWTH_UNKNOWN: Final = 2.0
"""Growth of a pool that misses its objectives, with and without an estimate of its size."""
_SHRINKAGE: Final = 0.85


@dataclass(slots=True)
class _Bounds:
    size: int
    """Size of the next round."""
    estimated: bool
    missed: int = 0
    """Largest size that missed an objective."""
    held: int | None = None
    """Smallest size that held them."""

    @property
    def is_found(self) -> bool:
        return self.held is not None and self.held - self.missed <= max(1, int(PRECISION * self.held))

    def judge(self, *, held: bool) -> None:
        if held:
            self.held = self.size
            return
        self.missed = max(self.missed, self.size)
        if self.held is not None and self.held <= self.missed:
            # Another pool's size mattered, so this pool's upper bound is not one.
            self.held = None

    def advance(self, most: int) -> None:
        if self.held is None:
            grown = self.size * (_GROWTH if self.estimated else _GROWTH_UNKNOWN)
            self.size = min(most, max(self.missed + 1, round(grown)))
        elif self.is_found:
            self.size = self.held
        elif not self.missed:
            self.size = max(1, min(self.held - 1, round(self.held * _SHRINKAGE)))
        else:
            self.size = (self.missed + self.held) // 2


def size_pools(
    run: Callable[[Endpoints], Sequence[CaseResult]],
    classes: Mapping[PoolName, Sequence[ClassName]],
    objectives: Mapping[ClassName, float],
    *,
    guess: Mapping[PoolName, int],
    endpoints_max: int,
) -> Endpoints:
    """Returns sizes that hold the objectives of all seeds. Raises `NoPlan`.

    `run` simulates a fleet with each seed. `classes` are those that may use each pool.
    """

    def missed(fleet: Mapping[PoolName, int]) -> set[ClassName]:
        results = run(tuple(fleet.items()))
        return {name for result in results for name in objectives if not _holds(result, name, objectives)}

    fleet = _grown(missed, classes, guess, endpoints_max)
    for pool, names in classes.items():
        if any(set(names) & set(others) for other, others in classes.items() if other != pool):
            fleet = _reduced(missed, fleet, pool)
    return tuple(fleet.items())


_Missed = Callable[[Mapping[PoolName, int]], set[ClassName]]
"""Simulates a fleet and returns the classes that miss their objectives."""


def _grown(
    missed: _Missed, classes: Mapping[PoolName, Sequence[ClassName]], guess: Mapping[PoolName, int], endpoints_max: int
) -> dict[PoolName, int]:
    """Sizes all pools at the same time."""
    bounds = {pool: _Bounds(guess.get(pool, 1), estimated=pool in guess) for pool in classes}
    while True:
        fleet = {pool: each.size for pool, each in bounds.items()}
        names = missed(fleet)
        for name in sorted(names):
            _check_growth(fleet, name, [pool for pool in classes if name in classes[pool]], endpoints_max)
        for pool, each in bounds.items():
            each.judge(held=names.isdisjoint(classes[pool]))
        if all(each.is_found and each.size == each.held for each in bounds.values()):
            return fleet
        for each in bounds.values():
            each.advance(endpoints_max)


def _check_growth(
    fleet: Mapping[PoolName, int], name: ClassName, pools: Sequence[PoolName], endpoints_max: int
) -> None:
    """Raises `NoPlan` if no pool of a class that misses its objective can grow."""
    if all(fleet[pool] >= endpoints_max for pool in pools):
        largest = f"no plan: with {endpoints_max} endpoints per pool"
        raise NoPlan(f"{largest}, class {name} on {' and '.join(pools)} misses its objective; raise --endpoints-max")


def _reduced(missed: _Missed, fleet: dict[PoolName, int], pool: PoolName) -> dict[PoolName, int]:
    """Reduces one pool. `fleet` holds all objectives."""
    low = 0
    while fleet[pool] - low > max(1, int(PRECISION * fleet[pool])):
        smaller = {**fleet, pool: (low + fleet[pool]) // 2}
        if missed(smaller):
            low = smaller[pool]
        else:
            fleet = smaller
    return fleet


def _holds(result: CaseResult, name: ClassName, objectives: Mapping[ClassName, float]) -> bool:
    return name not in result.classes or result.classes[name].holds(objectives[name])
