"""Whose, or which, is the next request, where only shares are known?"""

from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from pathlib import Path
from random import Random

from headgate.simulation.workload.problem import Problem
from headgate.simulation.workload.traces import read_trace

Shares = tuple[tuple[str, float], ...]
"""Names and weights, which need not add up to anything."""


class Draw:
    """One name after another, each as often as its weight says."""

    def __init__(self, shares: Shares, chance: Random) -> None:
        if not shares or any(weight < 0 for _, weight in shares) or not any(weight > 0 for _, weight in shares):
            raise Problem(f"shares {dict(shares)} name nobody; give each name a weight, at least one of them above 0")
        self._names = [name for name, weight in shares if weight > 0]
        self._bounds = list(accumulate(weight for _, weight in shares if weight > 0))
        self._chance = chance

    def next(self) -> str:
        if len(self._names) == 1:
            return self._names[0]
        place = bisect_right(self._bounds, self._chance.random() * self._bounds[-1])
        # The product may round up to the last bound itself.
        return self._names[min(place, len(self._names) - 1)]


def names_tenants(path: Path) -> bool:
    """Whether any row of a trace says whose it is."""
    return any(row.tenant is not None for row in read_trace(path))


def client_shares(path: Path) -> Shares:
    """How often each tenant occurs in a trace, the most frequent first."""
    counts = Counter(row.tenant for row in read_trace(path) if row.tenant is not None)
    if not counts:
        raise Problem(f"{path} names no tenants; take shares from a trace with a column tenant or client")
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return tuple((name, count / counts.total()) for name, count in ordered)
