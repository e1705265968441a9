"""Duration statistics.

All values are kept, at eight bytes each, so that percentiles are exact. Percentiles use the nearest-rank method, so
each is a measured value.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PERCENTILES: Final = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Count, sum, percentiles and maximum of durations in nanoseconds."""

    count: int
    sum_ns: int
    percentiles: dict[int, int]
    """Values by percentile."""
    max_ns: int

    @classmethod
    def of(cls, durations_ns: Sequence[int]) -> "LatencySummary | None":
        """Computes the statistics of these durations. Returns None if there are none."""
        if not durations_ns:
            return None
        ordered = sorted(durations_ns)
        at = {each: percentile(ordered, each) for each in PERCENTILES}
        return cls(len(ordered), sum(ordered), at, ordered[-1])

    @property
    def mean(self) -> float:
        return self.sum_ns / self.count


def percentile(ordered: Sequence[int], percent: int) -> int:
    """Returns the smallest value v such that at least `percent` percent of the values are at most v."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(rank, 1) - 1]


def empty_durations() -> "array[int]":
    return array("q")
