"""How much engine time waits, and whose is it?"""

from typing import Final

from headgate.core.queues.fair import WEIGHT
from headgate.core.state import Kind, Request
from headgate.model.units import Duration, PoolName, TenantId

_NOBODY: Final[dict[TenantId, int]] = {}


class Work:
    """By band and tenant, of requests that may use the same pools.

    Long prompts, which wait for their lane, are apart from the others, which do not wait for them.
    """

    __slots__ = ("_bands", "_tenants")

    def __init__(self) -> None:
        self._bands: dict[Kind, int] = {}
        self._tenants: dict[Kind, dict[TenantId, int]] = {}

    def add(self, request: Request) -> None:
        key = request.kind
        self._bands[key] = self._bands.get(key, 0) + request.cost_ns
        tenants = self._tenants.setdefault(key, {})
        tenants[request.account] = tenants.get(request.account, 0) + request.cost_ns

    def take(self, request: Request) -> None:
        key = request.kind
        self._bands[key] -= request.cost_ns
        tenants = self._tenants[key]
        tenants[request.account] -= request.cost_ns
        if not tenants[request.account]:
            del tenants[request.account]
            if not tenants:
                del self._tenants[key], self._bands[key]

    def by_pools_and_band(self) -> dict[tuple[tuple[PoolName, ...], int], int]:
        total: dict[tuple[tuple[PoolName, ...], int], int] = {}
        for (pools, band, _), work in self._bands.items():
            total[pools, band] = total.get((pools, band), 0) + work
        return total

    def before(self, pools: tuple[PoolName, ...], band: int) -> Duration:
        """What waits in the bands that go first."""
        total = 0
        for (places, number, _), work in self._bands.items():
            if number < band and places == pools:
                total += work
        return Duration(total)

    def in_band(self, pools: tuple[PoolName, ...], band: int) -> Duration:
        return Duration(self._bands.get((pools, band, False), 0) + self._bands.get((pools, band, True), 0))

    def is_over_share(self, request: Request, weight: int) -> bool:
        """Whether its tenant, of this weight, has more waiting than others of its band have on the mean."""
        key = request.kind
        tenants = self._tenants.get(key, _NOBODY)
        own = tenants.get(request.account, 0)
        return own > 0 and own * len(tenants) * WEIGHT > self._bands[key] * weight

    def beside(self, request: Request) -> dict[TenantId, int]:
        """What waits in its band of its own kind, by tenant."""
        return self._tenants.get(request.kind, _NOBODY)

    def all_beside(self, request: Request) -> Duration:
        """The same, of all tenants together."""
        return Duration(self._bands.get(request.kind, 0))
