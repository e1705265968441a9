"""How sure is a ratio that was measured in pairs?

Both sides of a pair run one after the other under nearly the same conditions, so the ratio of each pair is steadier
than either side. Logarithms make 1.1 and 1/1.1 equally far from 1; their mean has Student's distribution.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from statistics import NormalDist, mean, stdev

CONFIDENCE = 0.95
PAIRS_MIN = 6
"""Below so many the interval hangs on the luck of the first few, and the approximation below is too rough."""


@dataclass(frozen=True, slots=True)
class Interval:
    ratio: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """The larger distance from the ratio, as a share of it."""
        return max(self.high / self.ratio, self.ratio / self.low) - 1


def interval_of(ratios: Sequence[float]) -> Interval:
    """At least `PAIRS_MIN` ratios, all above zero."""
    logs = [log(ratio) for ratio in ratios]
    centre = mean(logs)
    reach = students_t(len(logs) - 1) * stdev(logs) / sqrt(len(logs))
    return Interval(exp(centre), exp(centre - reach), exp(centre + reach))


def students_t(freedom: int) -> float:
    """The two-sided quantile by its expansion about the normal one, right to three digits from five degrees on."""
    assert freedom >= PAIRS_MIN - 1
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
