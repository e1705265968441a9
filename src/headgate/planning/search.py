"""Which number of endpoints is the fewest that holds the objectives?

The search assumes that more endpoints never do worse. It first looks for the smallest fleet in which all pools grow
together, and then reduces one pool after the other, the most expensive first. The result cannot be reduced: removing an
endpoint from any pool makes the run with at least one of the seeds miss an objective.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headgate.model.units import ClassName, PoolName
from headgate.planning.cases import CaseResult, Endpoints, PlanCase

RunCases = Callable[[Sequence[PlanCase]], Sequence[CaseResult]]
"""Simulates several cases, possibly at the same time."""

ENDPOINTS_MAX: Final = 64
"""Maximum number of endpoints per pool that the search tries."""


class NoPlan(Exception):
    """No number of endpoints holds the objectives. The message names the objective that is missed."""


@dataclass(frozen=True, slots=True)
class PlannedPool:
    name: PoolName
    share: float
    """Endpoints of this pool per endpoint of the largest pool, while all pools grow together."""
    per_hour: int
    """Price of an endpoint in nano-dollars."""


class EndpointSearch:
    """Searches with the given seeds. Each case is simulated only once."""

    def __init__(
        self,
        run: RunCases,
        objectives: Mapping[ClassName, float],
        pools: Sequence[PlannedPool],
        *,
        seeds: Sequence[int],
        endpoints_max: int = ENDPOINTS_MAX,
    ) -> None:
        self._run = run
        self._objectives = objectives
        self._pools = pools
        self._seeds = seeds
        self._endpoints_max = endpoints_max
        self._known: dict[PlanCase, CaseResult] = {}

    @property
    def cases(self) -> int:
        """Number of cases simulated so far."""
        return len(self._known)

    def results(self, cases: Sequence[PlanCase]) -> list[CaseResult]:
        missing = [each for each in dict.fromkeys(cases) if each not in self._known]
        self._known.update(zip(missing, self._run(missing), strict=True))
        return [self._known[each] for each in cases]

    def seed_results(self, endpoints: Endpoints, traffic: float) -> list[CaseResult]:
        """Returns the result for each seed."""
        return self.results([PlanCase(endpoints=endpoints, traffic=traffic, seed=seed) for seed in self._seeds])

    def holds(self, endpoints: Endpoints, traffic: float) -> bool:
        """Returns whether the objectives are held for every seed."""
        [first] = self.results([PlanCase(endpoints=endpoints, traffic=traffic, seed=self._seeds[0])])
        if not first.holds(self._objectives):
            return False
        return all(each.holds(self._objectives) for each in self.seed_results(endpoints, traffic))

    def fewest(self, traffic: float, *, at_least: Endpoints | None = None, guess: int = 1) -> Endpoints:
        """Returns the fewest endpoints for this traffic. Raises `NoPlan`.

        `at_least` is the result for less traffic, of which more traffic needs at least as much.
        """
        floor = dict(at_least or ((each.name, 1) for each in self._pools))
        size = self._smallest(lambda count: self.holds(self._grown(count, floor), traffic), guess)
        if size is None:
            raise NoPlan(self._missed_objective(self._grown(self._endpoints_max, floor), traffic))
        found = dict(self._grown(size, floor))
        if len(self._pools) == 1:
            return self._ordered(found)
        for pool in sorted(self._pools, key=lambda each: (-each.per_hour, each.name)):
            found[pool.name] = self._reduced(pool.name, found, floor[pool.name], traffic)
        return self._ordered(found)

    def _grown(self, count: int, floor: Mapping[PoolName, int]) -> Endpoints:
        return tuple(
            (each.name, min(self._endpoints_max, max(floor[each.name], -int(-count * each.share // 1))))
            for each in self._pools
        )

    def _smallest(self, holds: Callable[[int], bool], guess: int) -> int | None:
        """Returns the smallest count that holds, up to the maximum. The guess only saves steps."""
        low, high, step = 0, min(max(1, guess), self._endpoints_max), 1
        while not holds(high):
            if high == self._endpoints_max:
                return None
            low, high, step = high, min(high + step, self._endpoints_max), 2 * step
        step = 1
        while low < high - 1:
            # Below a guess that holds, the answer is probably near.
            middle = max(low + 1, high - step) if low == 0 else (low + high) // 2
            step *= 2
            low, high = (low, middle) if holds(middle) else (middle, high)
        return high

    def _reduced(self, pool: PoolName, found: Mapping[PoolName, int], least: int, traffic: float) -> int:
        """Returns the fewest endpoints of this pool, with the other pools unchanged."""
        low, high = least - 1, found[pool]
        while low < high - 1:
            middle = (low + high) // 2
            smaller = self._ordered({**found, pool: middle})
            low, high = (low, middle) if self.holds(smaller, traffic) else (middle, high)
        return high

    def _ordered(self, counts: Mapping[PoolName, int]) -> Endpoints:
        return tuple((each.name, counts[each.name]) for each in self._pools)

    def _missed_objective(self, endpoints: Endpoints, traffic: float) -> str:
        margin, name, attainment = min(
            (each.classes[name].attainment - objective, name, each.classes[name].attainment)
            for each in self.seed_results(endpoints, traffic)
            for name, objective in self._objectives.items()
            if name in each.classes
        )
        fleet = f"no plan: with {self._endpoints_max} endpoints per pool"
        if not self._pools:
            waits = ", and more and more requests are waiting" if margin >= 0 else ""
            return f"no plan: with the providers' pools, {attainment:.1%} of class {name} are good{waits}"
        if margin >= 0:
            return f"{fleet}, more and more requests are waiting; raise --endpoints-max"
        return (
            f"{fleet}, {attainment:.1%} of class {name} are good, but its objective is {self._objectives[name]:.1%}; "
            "lower the objective, relax its callers' targets, or raise --endpoints-max"
        )


def one_fewer(endpoints: Endpoints) -> Iterator[tuple[PoolName, Endpoints]]:
    """Yields each pool that could lose an endpoint, and the fleet without it."""
    for pool, count in endpoints:
        if count > 1:
            yield pool, tuple((name, each - (name == pool)) for name, each in endpoints)
