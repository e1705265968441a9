"""Cases that a plan simulates, and what came out of each.

A case is one run: a number of endpoints per pool, a traffic multiplier, a seed, and optionally an outage. Most cases
simulate only the busiest window of the workload, because off-peak traffic does not determine the size of the fleet.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from headgate.core.cost import cost_ns
from headgate.model.outcome import Outcome
from headgate.model.speed import EngineSpeed
from headgate.model.units import MINUTE, SECOND, ClassName, Duration, EndpointId, Instant, PoolName
from headgate.simulation.options import EngineSpec
from headgate.simulation.report.latency_summary import percentile
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.run_observer import FleetSample, PoolAttempts, RequestTrace, RunSummary
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival

Endpoints = tuple[tuple[PoolName, int], ...]
"""Number of endpoints of each planned pool, in policy order."""

WAITING_PPM_MAX: Final = 50_000
"""Maximum share of a window's requests that may still be waiting at its end, in millionths.

More of them mean that the queue grows. A class whose target is as long as the window would not notice.
"""
ALERT_MEAN_NS: Final = Duration(15 * MINUTE)
"""Time over which an alert averages the request rate."""
STEPS_PER_WINDOW: Final = 8
"""Number of steps in which the window is shifted along the workload, per window."""


class PlanVerdict(StrEnum):
    """Whether a fleet holds the objectives."""

    HELD = "held"
    QUEUE_GROWS = "queue grows"
    """Every class has enough good requests so far, but more and more are waiting."""
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class Outage:
    """Endpoints crash at the same time, with all their requests, and are replaced."""

    endpoints: tuple[EndpointId, ...]
    crash_at: Instant
    """Time since the start of the window."""
    away_ns: Duration
    window_ns: Duration

    @property
    def is_complete(self) -> bool:
        """Whether the endpoint is replaced within the window."""
        return self.crash_at + self.away_ns <= self.window_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCase:
    endpoints: Endpoints
    traffic: float = 1.0
    """Factor applied to the workload's request rate."""
    seed: int = 0
    outage: Outage | None = None
    autoscaled: bool = False
    """Whether the complete workload is simulated with the autoscaler, instead of the busiest window without it."""


@dataclass(frozen=True, slots=True)
class ClassResult:
    arrivals: int
    good: int
    waiting: int
    """Requests in the queue at the end of the window."""
    full_length_share: float = 1.0
    """Tokens of the completed responses, relative to their full lengths. Caps make it smaller than 1."""

    @property
    def attainment(self) -> float:
        return self.good / self.arrivals if self.arrivals else 1.0

    @property
    def queue_grows(self) -> bool:
        return 1_000_000 * self.waiting > WAITING_PPM_MAX * self.arrivals

    def holds(self, objective: float) -> bool:
        return self.attainment >= objective and not self.queue_grows


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolResult:
    in_flight_mean: float
    """Mean requests in flight in the second half of the window, when the engines have filled up."""
    in_flight_p95: int
    kv_tokens_mean: int
    """Mean tokens in the KV caches, over the same time."""
    kv_tokens_p95: int
    kv_tokens_each: int
    """KV cache size of one endpoint."""
    attempts: PoolAttempts
    """All attempts of the window's requests, including those that failed."""
    paid_ns: Duration
    billed_nano_usd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    window_ns: Duration
    elapsed_ns: Duration
    arrivals: int
    tokens_served: int
    classes: Mapping[ClassName, ClassResult]
    pools: Mapping[PoolName, PoolResult]

    def holds(self, objectives: Mapping[ClassName, float]) -> bool:
        return self.verdict(objectives) is PlanVerdict.HELD

    def verdict(self, objectives: Mapping[ClassName, float]) -> "PlanVerdict":
        judged = [(each, objectives[name]) for name, each in self.classes.items() if name in objectives]
        if any(each.attainment < objective for each, objective in judged):
            return PlanVerdict.MISSED
        return PlanVerdict.HELD if all(each.holds(objective) for each, objective in judged) else PlanVerdict.QUEUE_GROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is known about a workload before it is simulated."""

    start: Instant
    """Start of the busiest window."""
    window_ns: Duration
    span_ns: Duration
    arrivals: int
    """Requests in the complete workload."""
    peak_arrivals: int
    """Requests in the busiest window."""
    peak_work_ns: int
    """Their predicted engine time."""
    highest_mean_per_s: float
    """Highest mean request rate over `ALERT_MEAN_NS`, or the mean of a shorter workload."""
    classes: tuple[ClassName, ...]
    """Classes of the requests, in alphabetical order."""

    @property
    def is_shortened(self) -> bool:
        return self.window_ns < self.span_ns


def examine(
    arrivals: Iterable[Arrival],
    speed: EngineSpeed,
    *,
    span_ns: Duration,
    window_ns: Duration,
    steps: int = STEPS_PER_WINDOW,
) -> Workload:
    """Finds the window with the most predicted engine time, and the highest request rate that an alert sees.

    The window starts at a multiple of its length divided by `steps`.
    """
    window_ns = min(window_ns, span_ns)
    step_ns = max(1, -(-window_ns // steps))
    work: Counter[int] = Counter()
    counts: Counter[int] = Counter()
    classes: set[ClassName] = set()
    recent: deque[Instant] = deque()
    recent_max = 0
    for each in arrivals:
        classes.add(each.service_class)
        recent.append(each.at)
        while recent[0] <= each.at - ALERT_MEAN_NS:
            recent.popleft()
        recent_max = max(recent_max, len(recent))
        bucket = each.at // step_ns
        work[bucket] += cost_ns(speed, each.prompt_tokens, each.output_tokens)
        counts[bucket] += 1
    last = max(0, (span_ns - window_ns) // step_ns)
    sums = [sum(work[first + number] for number in range(steps)) for first in range(last + 1)]
    peak = max(range(len(sums)), key=sums.__getitem__)
    return Workload(
        start=Instant(peak * step_ns),
        window_ns=window_ns,
        span_ns=span_ns,
        arrivals=counts.total(),
        peak_arrivals=sum(counts[peak + number] for number in range(steps)),
        peak_work_ns=sums[peak],
        highest_mean_per_s=recent_max * SECOND / min(span_ns, ALERT_MEAN_NS),
        classes=tuple(sorted(classes)),
    )


def outage_in(workload: Workload, endpoints: tuple[EndpointId, ...], away_ns: Duration) -> Outage:
    """Returns an outage in a window that also covers the recovery, if the workload is long enough.

    Half of the usual window precedes the crash, so that the engines have filled up. The other half, and half of the
    outage's duration, follow the replacement.
    """
    window_ns = min(workload.span_ns, workload.window_ns + 3 * away_ns // 2)
    return Outage(endpoints, Instant(workload.window_ns // 2), away_ns, Duration(window_ns))


def only_window(scenario: Scenario, *, start: Instant, window_ns: Duration) -> Scenario:
    """Returns the scenario with this window as its only traffic, starting at time 0."""
    end = start + window_ns

    def arrivals() -> Iterator[Arrival]:
        for each in scenario.arrivals():
            if each.at >= end:
                return
            if each.at >= start:
                yield replace(each, at=Instant(each.at - start))

    return replace(scenario, arrivals=arrivals, span_ns=window_ns)


def sized(engines: Sequence[EngineSpec], endpoints: Endpoints) -> tuple[EngineSpec, ...]:
    """Returns the engines with this many in each planned pool. Further engines are like the pool's last one."""
    wanted = dict(endpoints)
    found: list[EngineSpec] = []
    for pool in dict.fromkeys(each.pool for each in engines):
        listed = [each for each in engines if each.pool == pool and not each.standby]
        for number in range(wanted.get(pool, len(listed))):
            like = listed[min(number, len(listed) - 1)]
            name = EndpointId(f"{pool}/{number}")
            found.append(replace(like, id=name, starts_at=Instant(0), cold_start_ns=Duration(0)))
    return tuple(found)


def lowest_attainment(results: Sequence[CaseResult]) -> dict[ClassName, float]:
    """Returns the lowest attainment of each class."""
    names = dict.fromkeys(name for each in results for name in each.classes)
    return {name: min(each.classes[name].attainment for each in results if name in each.classes) for name in names}


def worst_result(results: Sequence[CaseResult]) -> CaseResult:
    """Returns the first result, with the worst of each class and the highest p95 of each pool."""
    first, *others = results
    if not others:
        return first
    names = dict.fromkeys(name for each in results for name in each.classes)
    return replace(
        first,
        classes={
            name: _worst_class([each.classes[name] for each in results if name in each.classes]) for name in names
        },
        pools={
            name: replace(pool, in_flight_p95=max(each.pools[name].in_flight_p95 for each in results))
            for name, pool in first.pools.items()
        },
    )


def _worst_class(results: Sequence[ClassResult]) -> ClassResult:
    """Returns the lowest attainment, together with the longest queue."""
    worst = min(results, key=lambda each: each.attainment)
    shares = [-(-each.waiting * worst.arrivals // each.arrivals) for each in results if each.arrivals]
    return replace(worst, waiting=max(shares, default=0))


def simulate(scenario: Scenario) -> CaseResult:
    report = _CaseReport(scenario)
    VirtualHost(scenario, report, samples=200).run()
    return report.result()


class _CaseReport:
    """A `RunObserver` that collects a case's result."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._report = SimulationReport(scenario)
        self._attempts = {each.name: PoolAttempts() for each in scenario.policy.pools}
        self._waiting: dict[ClassName, int] = {}
        self._tokens: Counter[ClassName] = Counter()
        self._full_tokens: Counter[ClassName] = Counter()

    def request_ended(self, story: RequestTrace) -> None:
        for pool, some in story.attempts_by_pool.items():
            self._attempts[pool].merge(some)
        if story.outcome is Outcome.COMPLETED:
            self._tokens[story.service_class] += story.output_tokens
            self._full_tokens[story.service_class] += story.full_output_tokens
        self._report.request_ended(story)

    def sample_taken(self, sample: FleetSample) -> None:
        if sample.at <= self._scenario.span_ns:
            self._waiting = sample.queued
        self._report.sample_taken(sample)

    def run_ended(self, ending: RunSummary) -> None:
        self._report.run_ended(ending)

    def result(self) -> CaseResult:
        report, total = self._report, self._report.total.tally
        return CaseResult(
            window_ns=self._scenario.span_ns,
            elapsed_ns=Duration(report.run_summary.at),
            arrivals=total.arrivals,
            tokens_served=total.tokens_served,
            classes={
                name: ClassResult(
                    group.tally.arrivals, group.tally.good, self._waiting.get(name, 0), self._full_length_share(name)
                )
                for name, group in report.classes.items()
            },
            pools={each.name: self._pool(each.name) for each in self._scenario.policy.pools},
        )

    def _full_length_share(self, name: ClassName) -> float:
        full = self._full_tokens[name]
        return self._tokens[name] / full if full else 1.0

    def _pool(self, pool: PoolName) -> PoolResult:
        report = self._report
        engines = [(account, course) for account, course in report.engines if account.pool == pool]
        specs = [each for each in self._scenario.engines if each.pool == pool]
        sizes = [each.profile.kv_blocks * each.profile.block_tokens for each in specs]
        half_ns = self._scenario.span_ns // 2
        places = [place for place, at in enumerate(report.time_series.at) if half_ns <= at <= self._scenario.span_ns]
        in_flight = sorted(sum(course.in_flight[place] for _, course in engines) for place in places) or [0]
        held = sorted(
            sum(round(course.kv_used[place] * size) for (_, course), size in zip(engines, sizes, strict=True))
            for place in places
        ) or [0]
        return PoolResult(
            in_flight_mean=sum(in_flight) / len(in_flight),
            in_flight_p95=percentile(in_flight, 95),
            kv_tokens_mean=sum(held) // len(held),
            kv_tokens_p95=percentile(held, 95),
            kv_tokens_each=min(sizes, default=0),
            attempts=self._attempts[pool],
            paid_ns=Duration(sum(account.paid_ns for account, _ in engines)),
            billed_nano_usd=report.billed_nano_usd[pool],
        )
