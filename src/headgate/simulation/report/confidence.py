"""Confidence interval for a ratio or a difference measured in pairs.

Both sides of a pair run one after the other under nearly the same conditions, so the ratio of each pair varies less
than either side. Logarithms make 1.1 and 1/1.1 equally far from 1; their mean follows Student's t-distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist, mean, stdev
from typing import Final

CONFIDENCE: Final = 0.95
PAIRS_MIN: Final = 6
"""Minimum number of pairs. With fewer pairs, the interval is not reliable and the approximation below is too rough."""


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


def students_t(freedom: int) -> float:
    """Two-sided quantile, expanded around the normal one. Correct to three digits from five degrees of freedom."""
    assert freedom >= PAIRS_MIN - 1
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
