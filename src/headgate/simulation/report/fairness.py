"""How evenly are some tenants served?

Jain's index of n values is (Σx)² / (n·Σx²): 1 where all are equal, 1/n where one has everything. What is compared
decides what it says: the index of attainment asks whether everybody gets the same part of what they ask for, that of
engine-seconds whether everybody gets the same amount. A tenant that asks for little lowers only the second.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from headgate.model.units import ClassName, TenantId
from headgate.simulation.report.tally import Tally

_Name = TypeVar("_Name", TenantId, tuple[TenantId, ClassName])

JUDGED_ARRIVALS_MIN: Final = 20
"""A tenant of fewer requests is not called the worst off: chance alone would make it so."""


@dataclass(frozen=True, slots=True)
class Fairness:
    tenants: int
    jain_attainment: float | None
    jain_engine_seconds: float | None
    worst: tuple[TenantId, Tally] | None
    """The least attainment among tenants with enough arrivals to be judged."""

    @classmethod
    def among(cls, tenants: Mapping[TenantId, Tally]) -> "Fairness":
        tallies = tenants.values()
        worst = worst_first(tenants)
        return cls(
            tenants=len(tenants),
            jain_attainment=jain([tally.attainment or 0.0 for tally in tallies]),
            jain_engine_seconds=jain([tally.engine_ps.total() for tally in tallies]),
            worst=worst[0] if worst else None,
        )


def worst_first(tenants: Mapping[_Name, Tally]) -> list[tuple[_Name, Tally]]:
    """Those with enough arrivals to be judged, by attainment; of equals the larger, then by name."""
    judged = [each for each in tenants.items() if each[1].arrivals >= JUDGED_ARRIVALS_MIN]
    return sorted(judged, key=lambda each: (each[1].attainment or 0.0, -each[1].arrivals, each[0]))


def jain(values: Sequence[float]) -> float | None:
    """None where nobody has anything."""
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else None
