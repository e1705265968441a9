"""Counts requests with a time-to-first-token target in each period, and how many of them missed it.

Counts are per pool. A request rejected for lack of capacity has no pool yet, so it is counted for the pools that could
have served it.
"""

from headgate.model.units import PoolName

Pools = tuple[PoolName, ...]


class Attainment:
    __slots__ = ("judged", "missed", "rejected")

    def __init__(self) -> None:
        self.judged: dict[PoolName, int] = {}
        """Requests with a target whose first token has arrived."""
        self.missed: dict[PoolName, int] = {}
        """Requests whose first token arrived later than the target."""
        self.rejected: dict[Pools, int] = {}
        """Requests rejected for lack of capacity, by the pools that could have served them."""

    def first_token(self, pool: PoolName, requests: int, *, in_time: bool) -> None:
        self.judged[pool] = self.judged.get(pool, 0) + requests
        if not in_time:
            self.missed[pool] = self.missed.get(pool, 0) + requests

    def reject(self, pools: Pools, requests: int) -> None:
        self.rejected[pools] = self.rejected.get(pools, 0) + requests

    def clear(self) -> None:
        self.judged.clear()
        self.missed.clear()
        self.rejected.clear()
