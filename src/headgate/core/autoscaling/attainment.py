"""How many requests of a period had a target for the first token, and how many missed it?

Counted by pool. A request that was rejected for lack of capacity has no pool yet: it counts for those that could have
served it.
"""

from headgate.model.units import PoolName

Pools = tuple[PoolName, ...]


class Attainment:
    __slots__ = ("judged", "missed", "rejected")

    def __init__(self) -> None:
        self.judged: dict[PoolName, int] = {}
        """Requests whose first token has come."""
        self.missed: dict[PoolName, int] = {}
        """Those of them whose first token came after the target."""
        self.rejected: dict[Pools, int] = {}
        """Requests that were rejected for lack of capacity, by the pools that could serve them."""

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
