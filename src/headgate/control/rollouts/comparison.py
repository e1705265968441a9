"""Is the candidate worse than the base, and how sure is that after looking many times?

Every look at growing data is another chance of a false alarm. Look number k therefore spends alpha / (k (k + 1)) of the
error probability alpha, which sums to alpha over any number of looks, and every measurement gets an equal part of that.
The bound z = sqrt(2 ln(2 / alpha)) on the deviation of a normal variable is slightly larger than its quantile. Means
are treated as normally distributed, which needs `SAMPLES_MIN` values on each side.
"""

import math
from dataclasses import dataclass
from typing import Final

ALPHA: Final = 0.05
"""Probability that any interval of a step ever misses the true value."""
MEASUREMENTS: Final = 5
"""Number of measurements that share `ALPHA`: TTFT, TPOT, errors, missed targets and cost."""
SAMPLES_MIN: Final = 30


@dataclass(slots=True)
class MeanOfLogs:
    """Number, mean and squared deviations of the logarithms of positive values.

    Latencies and costs vary by factors, so their ratios are compared.
    """

    count: int = 0
    mean: float = 0.0
    deviations: float = 0.0

    def add(self, value: float) -> None:
        if value <= 0:
            return
        self.count += 1
        log = math.log(value)
        before = log - self.mean
        self.mean += before / self.count
        self.deviations += before * (log - self.mean)

    @property
    def variance_of_mean(self) -> float:
        return self.deviations / (self.count - 1) / self.count


@dataclass(frozen=True, slots=True)
class Interval:
    """Estimate with its confidence interval."""

    low: float
    estimate: float
    high: float


def bound(look: int) -> float:
    """Returns the number of standard deviations that an interval spans on each side at this look, from 1."""
    alpha = ALPHA / MEASUREMENTS / (look * (look + 1))
    return math.sqrt(2 * math.log(2 / alpha))


def ratio(base: MeanOfLogs, candidate: MeanOfLogs, look: int) -> Interval | None:
    """Returns the candidate's geometric mean divided by that of the base. None if there are too few values."""
    if min(base.count, candidate.count) < SAMPLES_MIN:
        return None
    difference = candidate.mean - base.mean
    reach = bound(look) * math.sqrt(base.variance_of_mean + candidate.variance_of_mean)
    return Interval(math.exp(difference - reach), math.exp(difference), math.exp(difference + reach))


@dataclass(slots=True)
class Proportion:
    """Number of requests, and of those with some property."""

    count: int = 0
    hits: int = 0

    def add(self, *, hit: bool) -> None:
        self.count += 1
        self.hits += hit


def difference(base: Proportion, candidate: Proportion, look: int) -> Interval | None:
    """Returns the candidate's share minus that of the base, between -1 and 1. None if there are too few requests.

    The interval combines the Wilson intervals of both shares, so it also holds if a share is 0.
    """
    if min(base.count, candidate.count) < SAMPLES_MIN:
        return None
    z = bound(look)
    one, other = _wilson(candidate, z), _wilson(base, z)
    estimate = one.estimate - other.estimate
    below = math.hypot(one.estimate - one.low, other.high - other.estimate)
    above = math.hypot(one.high - one.estimate, other.estimate - other.low)
    return Interval(estimate - below, estimate, estimate + above)


def _wilson(share: Proportion, z: float) -> Interval:
    n, p = share.count, share.hits / share.count
    centre, scale = (p + z * z / (2 * n)), 1 + z * z / n
    reach = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(max(0.0, (centre - reach) / scale), p, min(1.0, (centre + reach) / scale))
