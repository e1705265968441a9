"""Measurements for each class, from Prometheus samples.

The samples come from one gateway's metrics page or from a Prometheus server.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

_Key = TypeVar("_Key", str, float)

REQUIRED_SERIES: Final[Mapping[str, tuple[str, ...]]] = {
    "headgate_requests_total": ("class", "outcome"),
    "headgate_requests_admitted_total": ("class",),
    "headgate_requests_degraded_total": ("class",),
    "headgate_objective_requests_total": ("class", "objective"),
    "headgate_objective_good_requests_total": ("class", "objective"),
    "headgate_tokens_total": ("class",),
    "headgate_cost_usd_total": ("class",),
    "headgate_time_to_first_token_seconds_bucket": ("class", "le"),
    "headgate_request_duration_seconds_bucket": ("class", "le"),
}
"""Required series, and the labels by which they are summed."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    series: str
    labels: Mapping[str, str]
    value: float


@dataclass(slots=True)
class ClassMeasurements:
    """Measurements of one class."""

    requests: float = 0.0
    completed: float = 0.0
    admitted: float = 0.0
    degraded: float = 0.0
    eligible: dict[str, float] = field(default_factory=dict[str, float])
    """Number of requests measured against each objective."""
    good: dict[str, float] = field(default_factory=dict[str, float])
    tokens: float = 0.0
    cost_usd: float = 0.0
    ttft_buckets: dict[float, float] = field(default_factory=dict[float, float])
    """Cumulative counts by bucket bound in seconds."""
    duration_buckets: dict[float, float] = field(default_factory=dict[float, float])

    @property
    def degraded_share(self) -> float | None:
        return self.degraded / self.admitted if self.admitted else None

    @property
    def cost_usd_per_1k_tokens(self) -> float | None:
        return 1_000 * self.cost_usd / self.tokens if self.tokens else None

    def good_share(self, objective: str) -> float | None:
        asked = self.eligible.get(objective, 0.0)
        return self.good.get(objective, 0.0) / asked if asked else None


def aggregate(samples: Iterable[MetricSample]) -> dict[str, ClassMeasurements]:
    """Measurements by class. Samples that differ only in their other labels are summed."""
    found: dict[str, ClassMeasurements] = {}
    for sample in samples:
        name = sample.labels.get("class")
        if name is not None and sample.series in REQUIRED_SERIES:
            _add(found.setdefault(name, ClassMeasurements()), sample)
    return found


def _add(of_class: ClassMeasurements, sample: MetricSample) -> None:
    labels, value = sample.labels, sample.value
    match sample.series:
        case "headgate_requests_total":
            of_class.requests += value
            of_class.completed += value if labels.get("outcome") == "completed" else 0.0
        case "headgate_requests_admitted_total":
            of_class.admitted += value
        case "headgate_requests_degraded_total":
            of_class.degraded += value
        case "headgate_objective_requests_total":
            _count(of_class.eligible, labels.get("objective", ""), value)
        case "headgate_objective_good_requests_total":
            _count(of_class.good, labels.get("objective", ""), value)
        case "headgate_tokens_total":
            of_class.tokens += value
        case "headgate_cost_usd_total":
            of_class.cost_usd += value
        case "headgate_time_to_first_token_seconds_bucket":
            _count(of_class.ttft_buckets, float(labels["le"]), value)
        case _:
            _count(of_class.duration_buckets, float(labels["le"]), value)


def _count(counts: dict[_Key, float], key: _Key, value: float) -> None:
    counts[key] = counts.get(key, 0.0) + value


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """Quantile as Prometheus computes it, with linear interpolation between bucket bounds. None if there are no
    samples.
    """
    bounds: Sequence[float] = sorted(buckets)
    if not bounds or not buckets[bounds[-1]]:
        return None
    rank, below, before = share * buckets[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= rank:
            if bound == float("inf"):
                return below
            return below + (bound - below) * (rank - before) / (buckets[bound] - before)
        below, before = bound, buckets[bound]
    return below
