"""Confidence interval for a ratio or a difference measured in pairs.

Both sides of a pair run one after the other under nearly the same conditions, so the ratio of each pair varies less
than either side. Logarithms make 1.1 and 1/1.1 equally far from 1; their mean follows Student's t-distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import atan, cos, exp, log, pi, sin, sqrt
from statistics import mean, stdev
from typing import Final

CONFIDENCE: Final = 0.95
PAIRS_MIN: Final = 6
"""Minimum number of pairs. With fewer pairs, the interval is not reliable."""
_PRECISION: Final = 1e-9


@dataclass(frozen=True, slots=True)
class DifferenceInterval:
    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RatioInterval:
    estimate: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """The larger of the distances from the ratio to the two bounds, relative to the ratio."""
        return max(self.high / self.estimate, self.estimate / self.low) - 1


def interval_of(ratios: Sequence[float]) -> RatioInterval:
    """Return the interval for at least `PAIRS_MIN` positive ratios."""
    logs = difference_of([log(ratio) for ratio in ratios])
    return RatioInterval(exp(logs.estimate), exp(logs.low), exp(logs.high))


def difference_of(differences: Sequence[float]) -> DifferenceInterval:
    """Return the interval for at least `PAIRS_MIN` differences."""
    centre = mean(differences)
    reach = students_t(len(differences) - 1) * stdev(differences) / sqrt(len(differences))
    return DifferenceInterval(centre, centre - reach, centre + reach)


def students_t(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Two-sided quantile of Student's t-distribution."""
    assert freedom >= PAIRS_MIN - 1
    assert 0 < confidence < 1
    low, high = 0.0, 1.0
    while _within(high, freedom) < confidence:
        low, high = high, 2 * high
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Probability of values from -t to t: a finite series for a whole number of degrees of freedom."""
    angle = atan(t / sqrt(freedom))
    square, odd = cos(angle) ** 2, freedom % 2
    term = total = 0.0 if freedom == 1 else cos(angle) if odd else 1.0
    for step in range(2 + odd, freedom - 1, 2):
        term *= square * (step - 1) / step
        total += term
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
