"""Random choice of classes and tenants by weight."""

from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from pathlib import Path
from random import Random

from headgate.simulation.options import Shares
from headgate.simulation.workload.error import WorkloadError
from headgate.simulation.workload.trace_files import read_trace


class WeightedDraw:
    """Draws names in proportion to their weights."""

    def __init__(self, shares: Shares, rng: Random) -> None:
        if not shares or any(weight < 0 for _, weight in shares) or not any(weight > 0 for _, weight in shares):
            raise WorkloadError(
                f"invalid weights {dict(shares)}; none may be negative and at least one must be above 0"
            )
        self._names = [name for name, weight in shares if weight > 0]
        self._bounds = list(accumulate(weight for _, weight in shares if weight > 0))
        self._rng = rng

    def next(self) -> str:
        if len(self._names) == 1:
            return self._names[0]
        place = bisect_right(self._bounds, self._rng.random() * self._bounds[-1])
        # The product may round up to the last bound.
        return self._names[min(place, len(self._names) - 1)]


def has_tenants(path: Path) -> bool:
    """Returns whether any row of a trace has a tenant."""
    return any(row.tenant is not None for row in read_trace(path))


def tenant_shares(path: Path) -> Shares:
    """Returns each tenant's share of a trace, in descending order."""
    counts = Counter(row.tenant for row in read_trace(path) if row.tenant is not None)
    if not counts:
        raise WorkloadError(f"{path} has no tenants; use a trace with a tenant or client column")
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return tuple((name, count / counts.total()) for name, count in ordered)
