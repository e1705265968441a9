"""Figures of a drill, from the gateways' counters: differences between samples, shares of good requests, percentiles.

A counter is identified by its metric and the labels that the drill distinguishes. Requests count in the phase in which
they end, because the gateway compares a request with its targets when it ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from headgate.engines.metrics_page import read_series
from headgate.model.outcome import Outcome
from headgate.slo.measurements import quantile

CounterKey = tuple[str, str, str]
"""Metric and the values of its two labels. The second is empty if the metric has only one."""
Totals = Mapping[CounterKey, float]

REQUESTS: Final = "headgate_requests_total"
JUDGED: Final = "headgate_objective_requests_total"
GOOD: Final = "headgate_objective_good_requests_total"
TTFT: Final = "headgate_time_to_first_token_seconds_bucket"
INTER_TOKEN: Final = "headgate_inter_token_latency_seconds_bucket"
QUEUE_WAIT: Final = "headgate_queue_wait_seconds_bucket"
RETRIES: Final = "headgate_retries_total"
TOKENS: Final = "headgate_tokens_total"
TENANT_REQUESTS: Final = "headgate_tenant_requests_total"
TARGETS: Final = "headgate_objective_target_ratio"
LOAD: Final = "headgate_demand_to_capacity_ratio"

_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    REQUESTS: ("class", "outcome"),
    JUDGED: ("class", "objective"),
    GOOD: ("class", "objective"),
    TTFT: ("class", "le"),
    INTER_TOKEN: ("class", "le"),
    QUEUE_WAIT: ("class", "le"),
    RETRIES: ("pool", ""),
    TOKENS: ("class", "direction"),
    TENANT_REQUESTS: ("tenant", "result"),
}
_NO_COUNTERS: Final[Mapping[CounterKey, float]] = MappingProxyType({})
_GAUGES: Final[Mapping[str, tuple[str, str]]] = {TARGETS: ("class", "objective"), LOAD: ("pool", "")}
LOST_OUTCOMES: Final = frozenset(
    {
        Outcome.ENGINE_ERROR,
        Outcome.ENGINE_TIMEOUT,
        Outcome.INTERNAL_ERROR,
        Outcome.EVICTED,
        Outcome.DRAINING,
        Outcome.NO_ENDPOINTS,
    }
)
"""Outcomes of requests that failed although the caller did nothing wrong and the fleet was not full."""
_NEUTRAL: Final = frozenset({Outcome.COMPLETED, Outcome.CANCELLED, *LOST_OUTCOMES})


def read_counters(page: bytes) -> dict[CounterKey, float]:
    return _read(page, _COUNTERS)


def read_gauges(page: bytes) -> dict[CounterKey, float]:
    return _read(page, _GAUGES)


def _read(page: bytes, wanted: Mapping[str, tuple[str, str]]) -> dict[CounterKey, float]:
    found: dict[CounterKey, float] = {}
    for metric, (first, second) in wanted.items():
        for labels, value in read_series(page, metric):
            key = (metric, labels.get(first, ""), labels.get(second, ""))
            found[key] = found.get(key, 0.0) + value
    return found


class CounterTotals:
    """Sum of the counters of several gateways. A gateway that restarts does not reduce it."""

    def __init__(self) -> None:
        self._last: dict[str, Mapping[CounterKey, float]] = {}
        self._sum: dict[CounterKey, float] = {}
        self.restarted: set[str] = set()
        """Gateways whose counters started again at 0."""

    def add(self, gateway: str, counters: Mapping[CounterKey, float]) -> None:
        before: Mapping[CounterKey, float] = self._last.get(gateway, _NO_COUNTERS)
        reset = any(counters.get(key, 0.0) < value for key, value in before.items())
        if reset:
            self.restarted.add(gateway)
            before = _NO_COUNTERS
        for key, value in counters.items():
            self._sum[key] = self._sum.get(key, 0.0) + value - before.get(key, 0.0)
        self._last[gateway] = counters

    def snapshot(self) -> Totals:
        return dict(self._sum)


@dataclass(frozen=True, slots=True)
class DrillObjective:
    """Share of a class's requests that must be good."""

    service_class: str
    name: str
    target: float

    @property
    def label(self) -> str:
        return f"{self.service_class} {self.name}"


def objectives_of(gauges: Mapping[CounterKey, float]) -> tuple[DrillObjective, ...]:
    return tuple(
        DrillObjective(service_class, name, target)
        for (metric, service_class, name), target in gauges.items()
        if metric == TARGETS
    )


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """What happened between two samples."""

    seconds: float
    increase: Totals

    @classmethod
    def between(cls, first: Totals, last: Totals, seconds: float) -> "PhaseFigures":
        return cls(seconds, {key: value - first.get(key, 0.0) for key, value in last.items()})

    def judged(self, objective: DrillObjective) -> int:
        return round(self.increase.get((JUDGED, objective.service_class, objective.name), 0.0))

    def attained(self, objective: DrillObjective) -> float | None:
        """Share of good requests. None if no request was judged."""
        judged = self.judged(objective)
        good = self.increase.get((GOOD, objective.service_class, objective.name), 0.0)
        return good / judged if judged else None

    def outcomes(self, service_class: str | None = None) -> dict[str, int]:
        """Number of finished requests by outcome, of one class or all."""
        found: dict[str, int] = {}
        for (metric, of_class, outcome), value in self.increase.items():
            if metric == REQUESTS and service_class in (None, of_class) and round(value):
                found[outcome] = found.get(outcome, 0) + round(value)
        return found

    @property
    def requests(self) -> int:
        return sum(self.outcomes().values())

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds if self.seconds > 0 else 0.0

    @property
    def lost(self) -> int:
        return sum(count for outcome, count in self.outcomes().items() if outcome in LOST_OUTCOMES)

    @property
    def rejected(self) -> int:
        return sum(count for outcome, count in self.outcomes().items() if outcome not in _NEUTRAL)

    @property
    def retries(self) -> int:
        return round(self.total(RETRIES))

    def total(self, metric: str, *, first: str | None = None, second: str | None = None) -> float:
        return sum(
            value
            for (name, label, other), value in self.increase.items()
            if name == metric and first in (None, label) and second in (None, other)
        )

    def quantile_s(self, metric: str, share: float, service_class: str | None = None) -> float | None:
        buckets: dict[float, float] = {}
        for (name, of_class, bound), value in self.increase.items():
            if name == metric and service_class in (None, of_class):
                buckets[float(bound)] = buckets.get(float(bound), 0.0) + value
        return quantile(buckets, share)


def met(objectives: Iterable[DrillObjective], figures: PhaseFigures) -> bool:
    """Whether no objective is below its target. An objective without requests is not."""
    shares = ((figures.attained(each), each.target) for each in objectives)
    return all(share is None or share >= target for share, target in shares)


@dataclass(frozen=True, slots=True)
class TimedTotals:
    at_s: float
    totals: Totals


def recovered_after_s(
    samples: Sequence[TimedTotals], objectives: Sequence[DrillObjective], *, since_s: float, window_s: float
) -> float | None:
    """Time since `since_s` until the requests of the last `window_s` met all objectives again, and for good.

    0 if the objectives were met all the time. None if they are still missed at the end.
    """
    last_miss: float | None = None
    first_good: float | None = None
    start = 0
    for number, sample in enumerate(samples):
        if sample.at_s < since_s:
            continue
        while start < number and samples[start + 1].at_s <= sample.at_s - window_s:
            start += 1
        window = PhaseFigures.between(samples[start].totals, sample.totals, sample.at_s - samples[start].at_s)
        if not met(objectives, window):
            last_miss, first_good = sample.at_s, None
        elif first_good is None:
            first_good = sample.at_s
    if last_miss is None:
        return 0.0
    return None if first_good is None else first_good - since_s
