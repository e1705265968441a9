"""Builds a capacity plan from the settings of a scenario."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from itertools import islice, repeat
from typing import Final

from headgate.compose.simulation import build_scenario
from headgate.compose.worker_pool import map_in_workers
from headgate.config.scenarios.settings import ScenarioSettings
from headgate.model.money import price_at
from headgate.model.scaling import ScalingRules
from headgate.model.speed import EngineSpeed
from headgate.model.units import SECOND, ClassName, Duration, EndpointId, Instant, PoolName
from headgate.planning.cases import CaseResult, PlanCase, Workload, examine, only_window, simulate, sized, worst_result
from headgate.planning.length_split import length_splits, with_length_split
from headgate.planning.plan import AUTOSCALED_SPAN_NS_MIN, AlternativeFleet, CapacityPlan, PlanInput, make_plan
from headgate.planning.search import EndpointSearch, PlannedPool
from headgate.planning.zones import Zones
from headgate.simulation.options import Crash, EngineSpec, ScaledPool
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.scenario_traffic import scaled_traffic

WINDOW_NS_MIN: Final = Duration(45 * SECOND)
WINDOW_REQUESTS: Final = 1_500
"""Number of requests in the window, if it is not set and the minimum is long enough for fewer."""
AUTOSCALED_REQUESTS_MAX: Final = 50_000
"""Maximum number of requests in a workload for which autoscaling is simulated."""
COLD_START_NS: Final = Duration(120 * SECOND)
"""Cold start if no pool sets one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    headroom: float = 0.2
    multipliers: tuple[float, ...] = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
    growth_per_month: float | None = None
    window_ns: Duration | None = None
    """Length of the busiest window. If None, it is long enough for `WINDOW_REQUESTS`."""
    cold_starts_ns: tuple[Duration, ...] = ()
    """Times to replace an endpoint. Empty for the cold start of the scenario."""
    alternatives: bool = True
    """Whether to compare the plan with other fleets."""
    seeds: tuple[int, ...] = (0, 1, 2)
    endpoints_max: int = 64
    processes: int = 1
    today: date = field(default_factory=date.today)


def plan_scenario(settings: ScenarioSettings, options: PlanOptions) -> CapacityPlan:
    """Raises `WorkloadError` if the scenario cannot be planned, and `NoPlan` if no fleet holds its objectives."""
    if not settings.objectives:
        raise WorkloadError("the scenario has no objectives; set the share of good requests, such as interactive: 99%")
    if all(each.hosted for each in settings.policy.pools):
        raise WorkloadError("all pools belong to hosted providers, so there is nothing to plan; add a pool of engines")
    runs = _CaseRuns(without_faults(settings), options)
    workload = runs.workload(1.0)
    given = PlanInput(
        title=settings.title,
        pools=settings.policy.pools,
        classes=settings.policy.classes,
        in_flight_max={each.pool: each.in_flight_max for each in reversed(settings.engines)},
        objectives=settings.objectives,
        workload=workload,
        pool_window_starts=tuple(each.start for each in runs.windows(1.0)[1:]),
        headroom=options.headroom,
        multipliers=options.multipliers,
        growth_per_month=options.growth_per_month,
        today=options.today,
        cold_starts_ns=options.cold_starts_ns or (_cold_start_ns(settings),),
        zones=_zones(settings),
        seeds=options.seeds,
        autoscales=workload.span_ns >= AUTOSCALED_SPAN_NS_MIN and workload.arrivals <= AUTOSCALED_REQUESTS_MAX,
    )
    search = _search(runs, settings, options)
    if not options.alternatives:
        return make_plan(given, search)
    return make_plan(given, search, lambda: _alternatives(settings, runs, options))


def _search(runs: "_CaseRuns", settings: ScenarioSettings, options: PlanOptions) -> EndpointSearch:
    return EndpointSearch(
        runs, settings.objectives, _planned_pools(settings), seeds=options.seeds, endpoints_max=options.endpoints_max
    )


def _alternatives(settings: ScenarioSettings, runs: "_CaseRuns", options: PlanOptions) -> list[AlternativeFleet]:
    """Other fleets for the same traffic: those in the scenario, and splits by prompt length."""
    fleets = [(name, without_faults(each)) for name, each in settings.alternatives]
    fleets += _length_splits(settings, runs)
    return [
        AlternativeFleet(name, each.policy.pools, _search(runs.with_fleet(each), each, options))
        for name, each in fleets
    ]


def _length_splits(settings: ScenarioSettings, runs: "_CaseRuns") -> list[tuple[str, ScenarioSettings]]:
    """Splits of the planned pool. Several planned pools, one for certain lengths, or one of routes are not split."""
    own = [each for each in settings.policy.pools if not each.hosted]
    if len(own) != 1 or own[0].prompt_tokens_min or own[0].prompt_tokens_max is not None:
        return []
    if any(each.routes for each in settings.policy.models):
        return []
    [pool] = own
    found: list[tuple[str, ScenarioSettings]] = []
    for split in length_splits(runs.window_arrivals(), pool.speed):
        policy, engines = with_length_split(settings.policy, settings.engines, pool.name, split)
        fleet = replace(settings, policy=policy, engines=engines, scaling={})
        found.append((f"pool for prompts above {split.prompt_tokens} tokens", fleet))
    return found


def without_faults(settings: ScenarioSettings) -> ScenarioSettings:
    return replace(settings, faults=(), scheduler="headgate")


def _planned_pools(settings: ScenarioSettings) -> list[PlannedPool]:
    """Pools whose size is planned: all but those of hosted providers. An alternative may have none."""
    pools = [each for each in settings.policy.pools if not each.hosted]
    running = Counter(each.pool for each in settings.engines if not each.standby)
    listed = {pool.name: running[pool.name] for pool in pools}
    most = max(listed.values(), default=1)
    prices = {pool.name: price_at(pool.prices, Instant(0)) for pool in pools}
    return [
        PlannedPool(name, count / most, 0 if (price := prices[name]) is None else price.per_hour)
        for name, count in listed.items()
    ]


def _zones(settings: ScenarioSettings) -> Zones:
    hosted = {each.name for each in settings.policy.pools if each.hosted}
    return {pool: names for pool, names in settings.zones.items() if pool not in hosted}


def _cold_start_ns(settings: ScenarioSettings) -> Duration:
    starts = [each.cold_start_ns for each in settings.scaling.values()]
    starts += [each.cold_start_ns for each in settings.engines if each.cold_start_ns]
    return max(starts, default=COLD_START_NS)


def _class_groups(settings: ScenarioSettings) -> list[tuple[frozenset[ClassName], EngineSpeed]]:
    """Classes and speed of each planned pool. Empty if all pools may serve the same classes."""
    found: dict[frozenset[ClassName], EngineSpeed] = {}
    for pool in settings.policy.pools:
        if not pool.hosted:
            classes = [each for each in settings.policy.classes if not each.pools or pool.name in each.pools]
            found.setdefault(frozenset(each.name for each in classes), pool.speed)
    return list(found.items()) if len(found) > 1 else []


class _CaseRuns:
    """Simulates cases, in several processes if allowed."""

    def __init__(self, settings: ScenarioSettings, options: PlanOptions) -> None:
        self._settings = settings
        self._options = options
        self._groups = _class_groups(settings)
        own = [each for each in settings.policy.pools if not each.hosted]
        self._speed = (own or settings.policy.pools)[0].speed
        self._workloads: dict[tuple[float, Duration | None], Workload] = {}
        self._windows: dict[tuple[float, Duration | None], tuple[Workload, ...]] = {}

    def with_fleet(self, settings: ScenarioSettings) -> "_CaseRuns":
        """Runs on another fleet, with the same windows."""
        runs = _CaseRuns(settings, self._options)
        runs._workloads, runs._speed = self._workloads, self._speed
        return runs

    def window_arrivals(self) -> list[Arrival]:
        """The requests of the busiest window, for the first seed."""
        scenario, peak = build_scenario(self._settings, self._options.seeds[0]), self.workload(1.0)
        return list(only_window(scenario, start=peak.start, window_ns=peak.window_ns).arrivals())

    def workload(self, traffic: float, window_ns: Duration | None = None) -> Workload:
        """The workload at this traffic, with a window of this or the usual length, found with the first seed."""
        key = traffic, window_ns
        if key not in self._workloads:
            scenario = build_scenario(with_traffic(self._settings, traffic), self._options.seeds[0])
            self._workloads[key] = examine(
                scenario.arrivals(),
                self._speed,
                span_ns=scenario.span_ns,
                window_ns=window_ns or self._window_ns(scenario),
            )
        return self._workloads[key]

    def windows(self, traffic: float, window_ns: Duration | None = None) -> tuple[Workload, ...]:
        """The workload with its busiest window, and with those of pools that have classes of their own."""
        key = traffic, window_ns
        if key not in self._windows:
            first = self.workload(traffic, window_ns)
            found = {first.start: first}
            for names, speed in self._groups:
                start = self._busiest_start(traffic, first, names, speed)
                found.setdefault(start, replace(first, start=start))
            self._windows[key] = tuple(found.values())
        return self._windows[key]

    def _busiest_start(
        self, traffic: float, first: Workload, names: Collection[ClassName], speed: EngineSpeed
    ) -> Instant:
        scenario = build_scenario(with_traffic(self._settings, traffic), self._options.seeds[0])
        arrivals = (each for each in scenario.arrivals() if each.service_class in names)
        return examine(arrivals, speed, span_ns=scenario.span_ns, window_ns=first.window_ns).start

    def __call__(self, cases: Sequence[PlanCase]) -> list[CaseResult]:
        """A case has the worst result of its windows."""
        windows = [self._case_windows(each) for each in cases]
        runs = [(case, each) for case, some in zip(cases, windows, strict=True) for each in some]
        results = iter(self._run_all([case for case, _ in runs], [workload for _, workload in runs]))
        return [worst_result(list(islice(results, len(some)))) for some in windows]

    def _case_windows(self, case: PlanCase) -> tuple[Workload, ...]:
        if case.autoscaled:
            return (self.workload(case.traffic),)
        return self.windows(case.traffic, None if case.outage is None else case.outage.window_ns)

    def _run_all(self, cases: Sequence[PlanCase], workloads: Sequence[Workload]) -> list[CaseResult]:
        run: Callable[[PlanCase, Workload], CaseResult] = partial(_run_case, self._settings)
        processes = min(self._options.processes, len(cases))
        if processes <= 1:
            return [run(case, workload) for case, workload in zip(cases, workloads, strict=True)]
        return map_in_workers(processes, _run_case, repeat(self._settings), cases, workloads)

    def _window_ns(self, scenario: Scenario) -> Duration:
        if self._options.window_ns is not None:
            return self._options.window_ns
        # The mean rate is only a first guess at the peak, but the window only has to be long enough.
        first = next(iter(self._workloads.values()), None)
        if first is not None:
            return first.window_ns
        count = sum(1 for _ in scenario.arrivals())
        return max(WINDOW_NS_MIN, Duration(min(WINDOW_REQUESTS, count) * scenario.span_ns // count))


def _run_case(settings: ScenarioSettings, case: PlanCase, workload: Workload) -> CaseResult:
    engines = sized(settings.engines, case.endpoints)
    scaling: dict[PoolName, ScaledPool] = {}
    if case.autoscaled:
        engines, scaling = _autoscaled(settings, case, engines)
    settings = replace(with_traffic(settings, case.traffic), engines=engines, scaling=scaling)
    scenario = build_scenario(settings, case.seed)
    if not case.autoscaled:
        scenario = only_window(scenario, start=workload.start, window_ns=workload.window_ns)
    if case.outage is not None:
        outage = case.outage
        crashes = tuple(Crash(each, outage.crash_at, outage.away_ns) for each in outage.endpoints)
        scenario = replace(scenario, faults=crashes)
    return simulate(scenario)


def _autoscaled(
    settings: ScenarioSettings, case: PlanCase, engines: tuple[EngineSpec, ...]
) -> tuple[tuple[EngineSpec, ...], dict[PoolName, ScaledPool]]:
    """Returns the engines, of which one per pool runs at the start, and the rules of each planned pool."""
    counts = dict(case.endpoints)
    first = {EndpointId(f"{pool}/0") for pool in counts}
    usual = ScaledPool(ScalingRules(), COLD_START_NS)
    scaling: dict[PoolName, ScaledPool] = {}
    for pool, count in counts.items():
        known = settings.scaling.get(pool, usual)
        least = {name: min(count, getattr(known.rules, name)) for name in ("endpoints_min", "warm_endpoints_min")}
        scaling[pool] = replace(known, rules=replace(known.rules, endpoints_max=count, **least))
    return tuple(replace(each, standby=each.pool in counts and each.id not in first) for each in engines), scaling


def with_traffic(settings: ScenarioSettings, factor: float) -> ScenarioSettings:
    return replace(settings, traffic=tuple(scaled_traffic(each, factor) for each in settings.traffic))
