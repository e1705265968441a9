"""Capacity plan: the fewest endpoints that hold the objectives, what they cost, and when more are needed.

Every answer comes from simulated runs of the busiest window of the workload. The plan has headroom: it holds the
objectives at more than the workload's traffic. The step curve repeats the search for other traffic, and a bisection
finds the traffic at which the present plan is no longer enough. Outages are simulated at the workload's own traffic, in
a longer window that covers the time until the endpoint is replaced.

Little's law gives a second, independent estimate of the concurrency. In a stable system, the mean number of attempts in
the engines is their rate multiplied by the mean time that an attempt spends there.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from headgate.model.money import NanoUsd, Price, price_at
from headgate.model.policy import Pool, ServiceClass
from headgate.model.units import SECOND, ClassName, Duration, EndpointId, Instant, PoolName
from headgate.planning.cases import (
    CaseResult,
    Endpoints,
    Outage,
    PlanCase,
    PlanVerdict,
    Workload,
    lowest_attainment,
    outage_in,
)
from headgate.planning.search import EndpointSearch, NoPlan, one_fewer
from headgate.planning.zones import Zones, enough_without_a_zone, zone_losses
from headgate.simulation.report.cost import cost_per

DAY_NS: Final = Duration(24 * 60 * 60 * SECOND)
DAYS_PER_MONTH: Final = 30.4375
DAYS_MAX: Final = 36_525
"""Longest prediction: 100 years."""
STEP_PRECISION: Final = 0.05
"""Precision of the traffic at which the next endpoint is needed."""
DOUBLED: Final = 2.0
AUTOSCALED_SPAN_NS_MIN: Final = Duration(600 * SECOND)
"""Minimum duration of a workload for which autoscaling is compared with a fixed fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInput:
    title: str
    pools: tuple[Pool, ...]
    classes: tuple[ServiceClass, ...]
    in_flight_max: Mapping[PoolName, int]
    """Maximum number of requests per endpoint, by pool."""
    objectives: Mapping[ClassName, float]
    """Share of good requests that each class needs."""
    workload: Workload
    pool_window_starts: tuple[Instant, ...] = ()
    """Starts of further simulated windows: those in which other pools are busiest."""
    headroom: float
    """Share of additional traffic for which the objectives must hold, too."""
    multipliers: tuple[float, ...]
    """Traffic of the step curve, relative to the workload."""
    growth_per_month: float | None
    today: date
    cold_starts_ns: tuple[Duration, ...]
    """Times to replace an endpoint. The first one is used in the suggested configuration."""
    zones: Zones
    seeds: tuple[int, ...]
    autoscales: bool
    """Whether to compare a fixed fleet with an autoscaled one."""


@dataclass(frozen=True, slots=True)
class PlannedPoolCost:
    pool: PoolName
    hourly: NanoUsd
    """Cost of the endpoints per day."""
    tokens: NanoUsd
    """Cost of the tokens per day, for a token price."""

    @property
    def total(self) -> NanoUsd:
        return NanoUsd(self.hourly + self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCost:
    """Cost of one day at the workload's mean rate."""

    pools: tuple[PlannedPoolCost, ...]
    requests: int
    tokens: int

    @property
    def total(self) -> NanoUsd:
        return NanoUsd(sum(each.total for each in self.pools))

    @property
    def per_request(self) -> NanoUsd | None:
        return cost_per(self.total, self.requests)

    @property
    def per_1m_tokens(self) -> NanoUsd | None:
        return cost_per(1_000_000 * self.total, self.tokens)


@dataclass(frozen=True, slots=True)
class CurveStep:
    """One point of the step curve."""

    traffic: float
    peak_per_s: float
    endpoints: Endpoints
    cost: PlannedCost


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A fleet in unusual conditions, at the workload's own traffic."""

    name: str
    endpoints: Endpoints
    attainment: Mapping[ClassName, float]
    """Lowest attainment over all seeds."""
    verdict: PlanVerdict
    """Worst verdict over all seeds."""
    window_ns: Duration
    """Simulated part of the workload."""
    outage: Outage | None


@dataclass(frozen=True, slots=True)
class LittlesLaw:
    """Concurrency and KV need according to Little's law and in the simulation, over all planned pools."""

    rate_per_s: float
    """Attempts per second."""
    engine_s_mean: float
    """Mean time of an attempt."""
    concurrency: float
    kv_tokens: float
    simulated_concurrency: float
    simulated_concurrency_p95: int
    simulated_kv_tokens: int
    simulated_kv_tokens_p95: int
    kv_tokens_available: int


@dataclass(frozen=True, slots=True)
class Autoscaled:
    """An autoscaled fleet over the complete workload, compared with a fixed one."""

    endpoints_mean: float
    attainment: Mapping[ClassName, float]
    verdict: PlanVerdict
    cost_per_day: NanoUsd
    fixed_cost_per_day: NanoUsd


@dataclass(frozen=True, slots=True)
class AlternativeFleet:
    """A fleet to search with the same traffic and objectives."""

    name: str
    pools: tuple[Pool, ...]
    search: EndpointSearch


@dataclass(frozen=True, slots=True)
class Alternative:
    """The fewest endpoints of another fleet that hold the objectives with the plan's headroom."""

    name: str
    endpoints: Endpoints | None
    """None if no number of them holds the objectives."""
    cost: PlannedCost | None
    problem: str = ""
    """Why there are no endpoints."""


@dataclass(frozen=True, slots=True)
class ZoneReserve:
    """Endpoints with which the objectives still hold after the loss of any zone, without further headroom."""

    endpoints: Endpoints
    cost: PlannedCost


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityPlan:
    given: PlanInput
    endpoints: Endpoints
    endpoints_without_headroom: Endpoints
    attainment: Mapping[ClassName, float]
    """Lowest attainment over all seeds, at the workload's own traffic."""
    cost: PlannedCost
    curve: tuple[CurveStep, ...]
    next_step: float | None
    """Traffic, relative to the workload, at which more endpoints are needed. None if beyond the curve."""
    doubled: CurveStep
    what_if: tuple[WhatIf, ...]
    alternatives: tuple[Alternative, ...]
    zone_reserve: ZoneReserve | None
    """None if no pool has zones, or if one has all of its endpoints in one zone."""
    littles_law: LittlesLaw
    autoscaled: Autoscaled | None
    in_flight_p95: Mapping[PoolName, int]
    """Requests in flight in each pool."""
    cases: int
    """Number of simulated runs."""

    @property
    def next_step_days(self) -> float | None:
        """Days until the next step, at the given growth. None without growth, or if they are beyond `DAYS_MAX`."""
        growth = self.given.growth_per_month
        if self.next_step is None or not growth or growth <= 0:
            return None
        days = DAYS_PER_MONTH * math.log(self.next_step) / math.log1p(growth)
        return days if days <= DAYS_MAX else None

    @property
    def next_step_date(self) -> date | None:
        days = self.next_step_days
        return None if days is None else self.given.today + timedelta(days=math.floor(days))


def make_plan(
    given: PlanInput, search: EndpointSearch, alternatives: Callable[[], Sequence[AlternativeFleet]] = tuple
) -> CapacityPlan:
    """Raises `NoPlan` if no fleet holds the objectives. The alternatives are only examined if there is a plan."""
    return _Planner(given, search, alternatives).plan()


def peak_per_s(workload: Workload, traffic: float = 1.0) -> float:
    return traffic * workload.peak_arrivals * SECOND / workload.window_ns


def requests_per_day(workload: Workload, traffic: float = 1.0) -> int:
    return round(traffic * workload.arrivals * DAY_NS / workload.span_ns)


class _Planner:
    def __init__(
        self, given: PlanInput, search: EndpointSearch, alternatives: Callable[[], Sequence[AlternativeFleet]]
    ) -> None:
        self._given = given
        self._search = search
        self._alternatives = alternatives

    def plan(self) -> CapacityPlan:
        given = self._given
        curve = self._curve()
        [present] = [each for each in curve if each.traffic == 1.0]
        [doubled] = [each for each in curve if each.traffic == DOUBLED]
        fleets = self._alternatives()
        without_headroom = self._without_headroom(present.endpoints)
        results = self._search.seed_results(present.endpoints, 1.0)
        return CapacityPlan(
            given=given,
            endpoints=present.endpoints,
            endpoints_without_headroom=without_headroom,
            attainment=lowest_attainment(results),
            cost=present.cost,
            curve=curve,
            next_step=self._next_step(present, curve),
            doubled=doubled,
            what_if=tuple(self._what_if(present.endpoints)),
            alternatives=tuple(map(self._alternative, fleets)),
            zone_reserve=self._zone_reserve(without_headroom),
            littles_law=self._littles_law(present.endpoints, results[0]),
            autoscaled=self._autoscaled(present.endpoints) if given.autoscales else None,
            in_flight_p95={
                pool: max(each.pools[pool].in_flight_p95 for each in results) for pool, _ in present.endpoints
            },
            cases=self._search.cases + sum(each.search.cases for each in fleets),
        )

    # The fleet and its cost

    def _curve(self) -> tuple[CurveStep, ...]:
        """Returns a step for each multiplier, in ascending order. Each one starts from the one before."""
        given, found = self._given, list[CurveStep]()
        endpoints: Endpoints | None = None
        for traffic in sorted({1.0, DOUBLED, *given.multipliers}):
            needed = traffic * (1 + given.headroom)
            work = needed * given.workload.peak_work_ns / given.workload.window_ns
            endpoints = self._search.fewest(needed, at_least=endpoints, guess=math.ceil(work))
            [result] = self._search.results([PlanCase(endpoints=endpoints, traffic=needed, seed=given.seeds[0])])
            cost = self._cost(given.pools, endpoints, traffic, result)
            found.append(CurveStep(traffic, peak_per_s(given.workload, traffic), endpoints, cost))
        return tuple(found)

    def _without_headroom(self, endpoints: Endpoints) -> Endpoints:
        if not self._given.headroom:
            return endpoints
        return self._search.fewest(1.0, guess=max(count for _, count in endpoints))

    def _cost(self, pools: Sequence[Pool], endpoints: Endpoints, traffic: float, result: CaseResult) -> PlannedCost:
        """Returns the cost of a day. Tokens and bills per request are those of the busiest window."""
        counts, requests = dict(endpoints), requests_per_day(self._given.workload, traffic)
        found: list[PlannedPoolCost] = []
        for pool in pools:
            price = price_at(pool.prices, Instant(0))
            if price is None:
                continue
            hourly, tokens = 0, 0
            if price.is_per_token:
                tokens = _scaled(result.pools[pool.name].billed_nano_usd, requests, result.arrivals)
            else:
                hourly = counts.get(pool.name, 0) * price.of_time(DAY_NS)
            found.append(PlannedPoolCost(pool.name, NanoUsd(hourly), NanoUsd(tokens)))
        tokens_per_day = _scaled(result.tokens_served, requests, result.arrivals)
        return PlannedCost(pools=tuple(found), requests=requests, tokens=tokens_per_day)

    def _next_step(self, present: CurveStep, curve: Sequence[CurveStep]) -> float | None:
        """Returns the traffic from which on the present plan has too little headroom."""
        low = max(each.traffic for each in curve if each.endpoints == present.endpoints)
        high = min((each.traffic for each in curve if each.traffic > low), default=None)
        if high is None:
            return None
        while high - low > STEP_PRECISION:
            middle = round((low + high) / 2, 4)
            if self._search.holds(present.endpoints, middle * (1 + self._given.headroom)):
                low = middle
            else:
                high = middle
        return low

    # Checks

    def _what_if(self, endpoints: Endpoints) -> list[WhatIf]:
        losses = zone_losses(endpoints, self._given.zones)
        found = [self._case(f"{pool} loses an endpoint", fewer) for pool, fewer in one_fewer(endpoints)]
        found += [self._case(f"{_zone(each.zones)} is lost: {_taken(each.lost)}", each.left) for each in losses]
        crashes = [(f"an endpoint of {pool}", (EndpointId(f"{pool}/0"),)) for pool, _ in endpoints]
        crashes += [(_zone(each.zones), each.endpoints) for each in losses]
        for name, crashed in crashes:
            for away_ns in self._given.cold_starts_ns:
                outage = outage_in(self._given.workload, crashed, away_ns)
                found.append(self._case(f"{name} is replaced in {away_ns / SECOND:g} s", endpoints, outage))
        return found

    def _case(self, name: str, endpoints: Endpoints, outage: Outage | None = None) -> WhatIf:
        cases = [PlanCase(endpoints=endpoints, seed=seed, outage=outage) for seed in self._given.seeds]
        results = self._search.results(cases)
        verdicts = {each.verdict(self._given.objectives) for each in results}
        verdict = max(verdicts, key=list(PlanVerdict).index)
        return WhatIf(name, endpoints, lowest_attainment(results), verdict, results[0].window_ns, outage)

    def _alternative(self, fleet: AlternativeFleet) -> Alternative:
        needed, seed = 1 + self._given.headroom, self._given.seeds[0]
        work = needed * self._given.workload.peak_work_ns / self._given.workload.window_ns
        try:
            endpoints = fleet.search.fewest(needed, guess=math.ceil(work))
        except NoPlan as problem:
            return Alternative(fleet.name, None, None, str(problem))
        [result] = fleet.search.results([PlanCase(endpoints=endpoints, traffic=needed, seed=seed)])
        return Alternative(fleet.name, endpoints, self._cost(fleet.pools, endpoints, 1.0, result))

    def _zone_reserve(self, needed: Endpoints) -> ZoneReserve | None:
        zones = self._given.zones
        if not zones or any(len(names) < 2 for names in zones.values()):
            return None
        endpoints = enough_without_a_zone(needed, zones)
        [result] = self._search.results([PlanCase(endpoints=needed, seed=self._given.seeds[0])])
        return ZoneReserve(endpoints, self._cost(self._given.pools, endpoints, 1.0, result))

    def _littles_law(self, endpoints: Endpoints, result: CaseResult) -> LittlesLaw:
        pools = [(result.pools[pool], count) for pool, count in endpoints]
        attempts = sum(pool.attempts.count for pool, _ in pools)
        engine_ns = sum(pool.attempts.engine_ns for pool, _ in pools)
        return LittlesLaw(
            rate_per_s=attempts * SECOND / result.window_ns,
            engine_s_mean=engine_ns / SECOND / max(1, attempts),
            concurrency=engine_ns / result.window_ns,
            kv_tokens=sum(pool.attempts.kv_token_ns for pool, _ in pools) / result.window_ns,
            simulated_concurrency=sum(pool.in_flight_mean for pool, _ in pools),
            simulated_concurrency_p95=sum(pool.in_flight_p95 for pool, _ in pools),
            simulated_kv_tokens=sum(pool.kv_tokens_mean for pool, _ in pools),
            simulated_kv_tokens_p95=sum(pool.kv_tokens_p95 for pool, _ in pools),
            kv_tokens_available=sum(pool.kv_tokens_each * count for pool, count in pools),
        )

    def _autoscaled(self, endpoints: Endpoints) -> Autoscaled:
        case = PlanCase(endpoints=endpoints, seed=self._given.seeds[0], autoscaled=True)
        [result] = self._search.results([case])
        prices = {each.name: price_at(each.prices, Instant(0)) or Price() for each in self._given.pools}
        paid_ns = {pool: result.pools[pool].paid_ns for pool, _ in endpoints}
        scaled = sum(_scaled(prices[pool].of_time(paid), DAY_NS, result.elapsed_ns) for pool, paid in paid_ns.items())
        return Autoscaled(
            endpoints_mean=sum(paid_ns.values()) / result.elapsed_ns,
            attainment=lowest_attainment([result]),
            verdict=result.verdict(self._given.objectives),
            cost_per_day=NanoUsd(scaled),
            fixed_cost_per_day=NanoUsd(sum(count * prices[pool].of_time(DAY_NS) for pool, count in endpoints)),
        )


def _zone(names: Sequence[str]) -> str:
    return f"zone {', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else f"zone {names[0]}"


def _taken(lost: Endpoints) -> str:
    return ", ".join(f"{count} of {pool}" for pool, count in lost if count)


def _scaled(amount: int, part: int, whole: int) -> int:
    return (2 * amount * part + whole) // (2 * whole) if whole else 0
