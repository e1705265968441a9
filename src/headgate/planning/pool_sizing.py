"""Sizes several pools at the same time.

Each round simulates one fleet and judges every pool by the classes that may use it. Pools that serve different classes
are therefore sized in as many rounds as the slowest of them needs. Large pools are sized with a relative precision.

If pools share a class, a miss does not show which of them is too small, so all of them grow. The fleet that is found
holds the objectives, but a smaller one may hold them, too.
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
    bounds = {pool: _Bounds(guess.get(pool, 1), estimated=pool in guess) for pool in classes}
    while True:
        fleet = tuple((pool, each.size) for pool, each in bounds.items())
        results = run(fleet)
        for pool, each in bounds.items():
            held = all(_holds(result, classes[pool], objectives) for result in results)
            each.judge(held=held)
            if not held and each.size >= endpoints_max:
                raise NoPlan(f"no plan: {endpoints_max} endpoints in {pool} miss an objective; raise --endpoints-max")
        if all(each.is_found and each.size == each.held for each in bounds.values()):
            return fleet
        for each in bounds.values():
            each.advance(endpoints_max)


def _holds(result: CaseResult, names: Sequence[ClassName], objectives: Mapping[ClassName, float]) -> bool:
    judged = [
        (result.classes[name], objectives[name]) for name in names if name in result.classes and name in objectives
    ]
    return all(found.holds(objective) for found, objective in judged)
