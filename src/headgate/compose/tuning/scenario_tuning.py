"""Tunes the settings of a scenario in simulation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Final

from headgate.compose.planning import WINDOW_NS_MIN, WINDOW_REQUESTS
from headgate.compose.simulation import build_scenario
from headgate.compose.tuning.tunables import ScenarioTunables
from headgate.compose.tuning.variants import ScenarioVariants
from headgate.compose.worker_pool import map_in_workers
from headgate.config.problems import ConfigErrors
from headgate.config.scenarios.settings import ScenarioSettings
from headgate.model.money import NANO_USD_PER_USD, price_at
from headgate.model.units import MINUTE, Duration, Instant
from headgate.planning.cases import CaseResult, Workload, examine, only_window, simulate, sized
from headgate.planning.tuning.result import TuningResult, TuningStep
from headgate.planning.tuning.score import ClassScore, RunScore
from headgate.planning.tuning.search import Changes, TuningCase, TuningSearch, joined
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.error import WorkloadError

HOUR_NS: Final = Duration(60 * MINUTE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    settings: str = "*"
    """Pattern for the paths of the settings that may change."""
    only_rank: bool = False
    """Whether to stop after the first step."""
    seeds: int = 6
    """Number of seeds that confirm a change."""
    first_seed: int = 0
    window_ns: Duration | None = None
    """Length of the busiest window. If None, it is long enough for `WINDOW_REQUESTS`."""
    runs_max: int = 5_000
    processes: int = 1


StepEnded = Callable[[TuningStep, int], None]
"""Is given each step as it ends, with the number of runs so far."""


def tune_scenario(
    variants: ScenarioVariants, options: TuneOptions, step_ended: StepEnded = lambda _step, _runs: None
) -> TuningResult:
    """Raises `WorkloadError` if the scenario cannot be tuned."""
    settings = variants.settings()
    workload = tuned_workload(settings, options)
    tunables = ScenarioTunables(variants, workload.classes, options.settings)
    if not tunables():
        raise WorkloadError(f'no setting matches "{options.settings}"; use a pattern such as "classes.*"')
    runs = VariantRuns(variants, workload, options.processes)
    search = TuningSearch(
        runs,
        tunables,
        settings.objectives,
        seeds=options.seeds,
        first_seed=options.first_seed,
        runs_max=options.runs_max,
        run_count=lambda: runs.count,
    )
    steps: list[TuningStep] = []
    changes: Changes = ()
    for step in search.steps():
        steps.append(step)
        step_ended(step, runs.count)
        if options.only_rank:
            break
        if step.suggestions:
            changes = joined(changes, step.suggestions[0].change)
    overall = search.compare(changes)
    return TuningResult(
        title=settings.title,
        objectives=settings.objectives,
        has_prices=_has_prices(settings),
        window_ns=workload.window_ns,
        span_ns=workload.span_ns,
        steps=tuple(steps),
        changes=changes,
        overall=overall,
        seeds=options.seeds,
        runs=runs.count,
        only_ranked=options.only_rank,
    )


def tuned_workload(settings: ScenarioSettings, options: TuneOptions) -> Workload:
    """Returns the workload with the part to simulate: all of it if something happens at certain times in it."""
    if not settings.objectives:
        raise WorkloadError("the scenario has no objectives; set the share of good requests, such as interactive: 99%")
    if settings.scheduler != "headgate":
        raise WorkloadError(f"scheduler {settings.scheduler} has no settings to tune; use headgate")
    whole = bool(settings.faults or settings.scaling)
    if whole and options.window_ns is not None:
        raise WorkloadError("a scenario with faults or scaling is simulated from its start to its end; omit --window")
    scenario = build_scenario(settings, 0)
    window_ns = scenario.span_ns if whole else options.window_ns or _window_ns(scenario)
    return examine(scenario.arrivals(), settings.policy.pools[0].speed, span_ns=scenario.span_ns, window_ns=window_ns)


def _window_ns(scenario: Scenario) -> Duration:
    count = sum(1 for _ in scenario.arrivals())
    return max(WINDOW_NS_MIN, Duration(min(WINDOW_REQUESTS, count) * scenario.span_ns // max(1, count)))


class VariantRuns:
    """Simulates variants. Variants with equal settings are simulated only once per seed."""

    def __init__(self, variants: ScenarioVariants, workload: Workload, processes: int) -> None:
        self._variants = variants
        self._workload = workload
        self._processes = processes
        self._settings: dict[Changes, ScenarioSettings | None] = {}
        self._known: dict[tuple[str, int], RunScore] = {}

    @property
    def count(self) -> int:
        return len(self._known)

    def __call__(self, cases: Sequence[TuningCase]) -> list[RunScore | None]:
        keys: list[tuple[str, int] | None] = []
        missing: dict[tuple[str, int], ScenarioSettings] = {}
        for case in cases:
            settings = self._settings_of(case.changes)
            # The settings contain mappings, so they have no hash. Their text has all of their values.
            key = None if settings is None else (repr(settings), case.seed)
            keys.append(key)
            if key is not None and settings is not None and key not in self._known:
                missing[key] = settings
        self._known.update(zip(missing, self._scores(missing), strict=True))
        return [None if key is None else self._known[key] for key in keys]

    def _scores(self, missing: Mapping[tuple[str, int], ScenarioSettings]) -> Iterable[RunScore]:
        seeds = [seed for _, seed in missing]
        if self._processes == 1:
            return map(_run, missing.values(), seeds, repeat(self._workload))
        return map_in_workers(self._processes, _run, missing.values(), seeds, repeat(self._workload))

    def _settings_of(self, changes: Changes) -> ScenarioSettings | None:
        if changes not in self._settings:
            try:
                self._settings[changes] = self._variants.settings(changes)
            except ConfigErrors:
                self._settings[changes] = None
        return self._settings[changes]


def _run(settings: ScenarioSettings, seed: int, workload: Workload) -> RunScore:
    if workload.is_shortened:
        settings = replace(settings, engines=sized(settings.engines, ()))
    scenario = build_scenario(settings, seed)
    if workload.is_shortened:
        scenario = only_window(scenario, start=workload.start, window_ns=workload.window_ns)
    result = simulate(scenario)
    return RunScore(
        {
            name: ClassScore(each.arrivals, each.good, each.waiting, each.full_length_share)
            for name, each in result.classes.items()
        },
        _cost(settings, result),
    )


def _cost(settings: ScenarioSettings, result: CaseResult) -> float:
    """Returns the cost in dollars per hour, or the mean number of own engines if no pool has a price."""
    if not _has_prices(settings):
        own = [pool.name for pool in settings.policy.pools if not pool.hosted]
        return sum(result.pools[name].paid_ns for name in own) / result.elapsed_ns
    cost = 0.0
    for pool in settings.policy.pools:
        price, each = price_at(pool.prices, Instant(0)), result.pools[pool.name]
        if price is not None and price.is_per_token:
            cost += each.billed_nano_usd * HOUR_NS / result.window_ns
        elif price is not None:
            cost += price.per_hour * each.paid_ns / result.elapsed_ns
    return cost / NANO_USD_PER_USD


def _has_prices(settings: ScenarioSettings) -> bool:
    return any(each.prices for each in settings.policy.pools)
