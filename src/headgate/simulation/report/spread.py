"""How are many durations spread?

Every value is kept, eight bytes each, so percentiles are exact: the nearest rank, a value that did occur.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PERCENTILES: Final = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Spread:
    """The percentiles of some durations, in nanoseconds."""

    count: int
    total: int
    at: dict[int, int]
    """Percentile -> value."""
    most: int

    @classmethod
    def of(cls, durations_ns: Sequence[int]) -> "Spread | None":
        """None where there are none."""
        if not durations_ns:
            return None
        ordered = sorted(durations_ns)
        at = {each: percentile(ordered, each) for each in PERCENTILES}
        return cls(len(ordered), sum(ordered), at, ordered[-1])

    @property
    def mean(self) -> float:
        return self.total / self.count


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The least value that at least `percent` in a hundred do not exceed."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(rank, 1) - 1]


def nanoseconds() -> "array[int]":
    return array("q")
