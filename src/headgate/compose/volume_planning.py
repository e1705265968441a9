"""Plans a scenario's mix of traffic for given numbers of requests per day."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Final

from headgate.compose.planning import with_traffic, without_faults
from headgate.compose.simulation import build_scenario
from headgate.config.scenarios.settings import ScenarioSettings
from headgate.core.cost import cost_ns
from headgate.model.units import MINUTE, SECOND, ClassName, Duration, Instant, PoolName
from headgate.planning import measured
from headgate.planning.cases import (
    STEPS_PER_WINDOW,
    CaseResult,
    Endpoints,
    Workload,
    examine,
    lowest_attainment,
    only_window,
    simulate,
    sized,
)
from headgate.planning.pool_sizing import size_pools
from headgate.planning.volume_plan import (
    DAY_S,
    CellLoad,
    DayMix,
    SimulatedCell,
    VolumePlan,
    cell_load,
    gateway_request_us,
    volume_plan,
)
from headgate.simulation.options import ServeGenTraffic, TraceTraffic
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.traffic import source_arrivals

PEAK_NS: Final = Duration(10 * MINUTE)
"""Length of the busiest part of the day, unless the scenario is shorter. ServeGen's rates have this resolution."""
SAMPLE_REQUESTS: Final = 100_000
"""Number of requests from which the busiest part of the day is found."""
WINDOW_REQUESTS: Final = 10_000
WINDOW_NS_MIN: Final = Duration(60 * SECOND)
"""A simulated window has this many requests, but is at least this long and at most as long as the busiest part."""
ENDPOINTS_MAX: Final = 2_000
"""Maximum number of endpoints per pool of a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeOptions:
    requests_per_day: tuple[int, ...]
    headroom: float = 0.2
    cell_requests_per_s: float = measured.CELL_REQUESTS_PER_S.value
    core_usd_per_hour: float = 0.05
    window_ns: Duration | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    endpoints_max: int = ENDPOINTS_MAX


def plan_volumes(settings: ScenarioSettings, options: VolumeOptions) -> tuple[DayMix, list[VolumePlan]]:
    """Raises `WorkloadError` if the scenario cannot be planned, and `NoPlan` if no fleet holds its objectives."""
    if not settings.objectives:
        raise WorkloadError("the scenario has no objectives; set the share of good requests, such as interactive: 99%")
    if any(isinstance(each, TraceTraffic) for each in settings.traffic):
        raise WorkloadError("a trace cannot be planned for a number of requests per day; use rate or servegen traffic")
    if hosted := [each.name for each in settings.policy.pools if each.hosted]:
        named = ", ".join(hosted)
        raise WorkloadError(
            f"--requests-per-day cannot plan pools of hosted providers ({named}); remove them, or plan without it"
        )
    settings = without_faults(settings)
    mix = day_mix(settings, options.seeds[0])
    return mix, [_plan_volume(settings, mix, each, options) for each in sorted(set(options.requests_per_day))]


def _plan_volume(settings: ScenarioSettings, mix: DayMix, requests_per_day: int, options: VolumeOptions) -> VolumePlan:
    load = cell_load(mix, requests_per_day, headroom=options.headroom, cell_requests_per_s=options.cell_requests_per_s)
    return volume_plan(
        mix,
        requests_per_day,
        load,
        _size_cell(settings, mix, load, options),
        pools=settings.policy.pools,
        gpus=settings.gpus,
        core_usd_per_hour=options.core_usd_per_hour,
    )


def day_mix(settings: ScenarioSettings, seed: int) -> DayMix:
    """Examines samples of the scenario's traffic, which is a day or a part that repeats.

    Each source of ServeGen traffic has its own peak of engine time. Others are examined together. ServeGen's rates are
    constant for ten minutes, so only these are compared. In other traffic, the busiest part may start at any time.
    """
    parts = [replace(settings, traffic=(each,)) for each in settings.traffic] if _is_servegen(settings) else [settings]
    samples = [_sample(each, seed) for each in parts]
    span_ns = build_scenario(settings, seed).span_ns
    peak_ns = min(PEAK_NS, span_ns)
    steps = 1 if _is_on_grid(settings) else STEPS_PER_WINDOW
    step_ns = max(1, -(-peak_ns // steps))
    requests, gateway_us = defaultdict[int, float](float), defaultdict[int, float](float)
    for factor, arrivals in samples:
        for each in arrivals:
            step = each.at // step_ns
            requests[step] += 1 / factor
            gateway_us[step] += gateway_request_us(each.output_tokens) / factor
    total = sum(requests.values())
    per_mean_request = span_ns / peak_ns / total
    return DayMix(
        requests=total * DAY_S * SECOND / span_ns,
        peaks=tuple(
            _examined(part, arrivals, span_ns, peak_ns, steps).start
            for part, (_, arrivals) in zip(parts, samples, strict=True)
        ),
        peak_ns=peak_ns,
        peak_ratio=_highest(requests, steps) * per_mean_request,
        gateway_peak_us=_highest(gateway_us, steps) * per_mean_request,
        prompt_tokens=sum(sum(each.prompt_tokens for each in some) / factor for factor, some in samples) / total,
        output_tokens=sum(sum(each.output_tokens for each in some) / factor for factor, some in samples) / total,
    )


def _is_on_grid(settings: ScenarioSettings) -> bool:
    """Whether all rates change only at multiples of `PEAK_NS`, so that no other part of the day can be busier."""
    return all(
        isinstance(each, ServeGenTraffic) and each.speed_up == 1 and each.start_ns % PEAK_NS == 0
        for each in settings.traffic
    )


def _highest(values: Mapping[int, float], steps: int) -> float:
    """Returns the highest sum of this many consecutive values."""
    return max(sum(values.get(first + number, 0.0) for number in range(steps)) for first in range(max(values) + 1))


def _examined(
    part: ScenarioSettings, arrivals: Sequence[Arrival], span_ns: Duration, window_ns: Duration, steps: int
) -> Workload:
    """Finds the part's busiest window, by the engine time on the first pool that may serve it."""
    classes = {each.name: each.pools for each in part.policy.classes}
    pools = classes[arrivals[0].service_class]
    speed = next(each.speed for each in part.policy.pools if not pools or each.name in pools)
    return examine(arrivals, speed, span_ns=span_ns, window_ns=window_ns, steps=steps)


def _is_servegen(settings: ScenarioSettings) -> bool:
    return all(isinstance(each, ServeGenTraffic) for each in settings.traffic)


def _sample(settings: ScenarioSettings, seed: int) -> tuple[float, list[Arrival]]:
    """Returns the factor and the arrivals of thinned traffic with about `SAMPLE_REQUESTS`, or of all of the traffic."""
    factor = 1e-4
    while True:
        try:
            arrivals = list(build_scenario(with_traffic(settings, factor), seed).arrivals())
        except WorkloadError:
            # There may be no request left.
            if factor >= 1:
                raise
            arrivals = []
        if len(arrivals) >= SAMPLE_REQUESTS or factor >= 1:
            return factor, arrivals
        # Aim a little above the number of requests, which is random.
        factor = min(1.0, factor * max(2.0, 1.2 * SAMPLE_REQUESTS / max(100, len(arrivals))))


def _size_cell(settings: ScenarioSettings, mix: DayMix, load: CellLoad, options: VolumeOptions) -> SimulatedCell:
    window_ns = _window_ns(mix, load, options)
    settings = with_traffic(settings, load.traffic)
    scenarios = [_busiest_window(settings, mix, window_ns, seed) for seed in options.seeds]
    known: dict[Endpoints, list[CaseResult]] = {}

    def run(endpoints: Endpoints) -> list[CaseResult]:
        engines = sized(settings.engines, endpoints)
        known[endpoints] = [simulate(replace(each, engines=engines, scaling={})) for each in scenarios]
        return known[endpoints]

    classes = _classes(settings)
    guess = _predicted_engines(settings, scenarios[0], classes)
    endpoints = size_pools(run, classes, settings.objectives, guess=guess, endpoints_max=options.endpoints_max)
    results = known[endpoints]
    return SimulatedCell(
        endpoints=endpoints,
        attainment=lowest_attainment(results),
        requests=results[0].arrivals,
        window_ns=results[0].window_ns,
    )


def _window_ns(mix: DayMix, load: CellLoad, options: VolumeOptions) -> Duration:
    if options.window_ns is not None:
        return min(mix.peak_ns, options.window_ns)
    return Duration(min(mix.peak_ns, max(WINDOW_NS_MIN, round(WINDOW_REQUESTS * SECOND / load.requests_per_s))))


def _busiest_window(settings: ScenarioSettings, mix: DayMix, window_ns: Duration, seed: int) -> Scenario:
    """The cell's scenario, limited to the busiest window within the busiest part of the day.

    Its requests are drawn once, because every round needs them.
    """
    if _is_servegen(settings):
        settings = _from_peaks(settings, mix)
        scenario = build_scenario(settings, seed)
        sources = [list(each) for each in source_arrivals(settings.traffic, seed=seed)]
    else:
        scenario = build_scenario(settings, seed)
        scenario = only_window(scenario, start=mix.peaks[0], window_ns=mix.peak_ns)
        sources = [list(scenario.arrivals())]
    windows = [_only_busiest(settings, each, mix.peak_ns, window_ns) for each in sources if each]
    arrivals = sorted(chain.from_iterable(windows), key=attrgetter("at"))
    if not arrivals:
        raise WorkloadError("no request arrives in the busiest part of the day; plan more requests per day")
    return replace(scenario, arrivals=lambda: iter(arrivals), span_ns=window_ns)


def _from_peaks(settings: ScenarioSettings, mix: DayMix) -> ScenarioSettings:
    """Starts each source of ServeGen traffic at its peak, so that the requests before it need not be drawn."""
    traffic = tuple(
        replace(
            each,
            start_ns=Duration(each.start_ns + round(start * each.speed_up)),
            duration_ns=Duration(round(mix.peak_ns * each.speed_up)),
        )
        for each, start in zip(settings.traffic, mix.peaks, strict=True)
        if isinstance(each, ServeGenTraffic)
    )
    return replace(settings, traffic=traffic, duration_ns=mix.peak_ns)


def _only_busiest(
    settings: ScenarioSettings, arrivals: Sequence[Arrival], span_ns: Duration, window_ns: Duration
) -> list[Arrival]:
    """The requests of the busiest window, which starts at time 0."""
    start = _examined(settings, arrivals, span_ns, window_ns, STEPS_PER_WINDOW).start
    return [replace(each, at=Instant(each.at - start)) for each in arrivals if start <= each.at < start + window_ns]


def _predicted_engines(
    settings: ScenarioSettings, scenario: Scenario, classes: Mapping[PoolName, Sequence[ClassName]]
) -> dict[PoolName, int]:
    """Predicts the number of engines of each pool from its engine time, which only saves simulated rounds."""
    arrivals = list(scenario.arrivals())
    speeds = {each.name: each.speed for each in settings.policy.pools}
    work = {
        pool: sum(
            cost_ns(speeds[pool], each.prompt_tokens, each.output_tokens)
            for each in arrivals
            if each.service_class in names
        )
        for pool, names in classes.items()
    }
    return {pool: max(1, math.ceil(cost / scenario.span_ns)) for pool, cost in work.items()}


def _classes(settings: ScenarioSettings) -> dict[PoolName, list[ClassName]]:
    """Classes with an objective that may use each planned pool."""
    return {
        pool.name: [
            each.name
            for each in settings.policy.classes
            if each.name in settings.objectives and (not each.pools or pool.name in each.pools)
        ]
        for pool in settings.policy.pools
        if not pool.hosted
    }
