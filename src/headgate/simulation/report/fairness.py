"""Fairness among tenants.

Jain's index of n values is (Σx)² / (n·Σx²). It is 1 if all values are equal and 1/n if one tenant has everything. The
index for attainment shows whether all tenants get the same share of their demand. The index for engine-seconds shows
whether all tenants get the same amount. A tenant with low demand lowers only the second index.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from headgate.model.units import ClassName, TenantId
from headgate.simulation.report.tally import RequestTally

_Name = TypeVar("_Name", TenantId, tuple[TenantId, ClassName])

RANKED_ARRIVALS_MIN: Final = 20
"""Minimum number of arrivals for a tenant to be ranked as worst-served. With fewer, the result would be random."""


@dataclass(frozen=True, slots=True)
class Fairness:
    tenants: int
    jain_attainment: float | None
    jain_engine_seconds: float | None
    worst: tuple[TenantId, RequestTally] | None
    """The tenant with the lowest attainment among those with enough arrivals, and its tally."""

    @classmethod
    def of_tenants(cls, tenants: Mapping[TenantId, RequestTally]) -> "Fairness":
        tallies = tenants.values()
        worst = worst_first(tenants)
        return cls(
            tenants=len(tenants),
            jain_attainment=jain_index([tally.attainment or 0.0 for tally in tallies]),
            jain_engine_seconds=jain_index([tally.engine_ps.total() for tally in tallies]),
            worst=worst[0] if worst else None,
        )


def worst_first(tenants: Mapping[_Name, RequestTally]) -> list[tuple[_Name, RequestTally]]:
    """Returns the tenants with enough arrivals, sorted by attainment, then by size (largest first), then by name."""
    judged = [each for each in tenants.items() if each[1].arrivals >= RANKED_ARRIVALS_MIN]
    return sorted(judged, key=lambda each: (each[1].attainment or 0.0, -each[1].arrivals, each[0]))


def jain_index(values: Sequence[float]) -> float | None:
    """Returns Jain's index. None if all values are zero."""
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else None
