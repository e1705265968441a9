"""Queued engine time by pool set, band and tenant."""

from typing import Final

from headgate.core.queues.fair_queue import DEFAULT_WEIGHT
from headgate.core.request_state import Request, WorkKey
from headgate.core.routing.shared_engines import PoolGroups
from headgate.model.units import Duration, PoolName, TenantId

_NO_TENANTS: Final[dict[TenantId, int]] = {}


class QueuedWork:
    """Estimated engine time of queued requests, by kind (pools, band, long or not) and tenant.

    Requests with long prompts wait for the long lane and are counted separately, because other requests do not wait for
    them. Pools that share engines count as one pool.
    """

    __slots__ = ("_bands", "_groups", "_tenants")

    def __init__(self, groups: PoolGroups) -> None:
        self._groups = groups
        self._bands: dict[WorkKey, int] = {}
        self._tenants: dict[WorkKey, dict[TenantId, int]] = {}

    def _pools(self, pools: tuple[PoolName, ...]) -> tuple[PoolName, ...]:
        """Returns the pools with each group represented by its first pool."""
        groups = self._groups
        return tuple(dict.fromkeys(groups[name][0] if name in groups else name for name in pools)) if groups else pools

    def _key(self, request: Request) -> WorkKey:
        pools, band, long = request.work_key
        return self._pools(pools), band, long

    def add(self, request: Request) -> None:
        key = self._key(request) if self._groups else request.work_key
        account, cost_ns = request.account, request.cost_ns
        tenants = self._tenants.get(key)
        if tenants is None:
            self._tenants[key], self._bands[key] = {account: cost_ns}, cost_ns
            return
        self._bands[key] += cost_ns
        tenants[account] = tenants.get(account, 0) + cost_ns

    def remove(self, request: Request) -> None:
        key = self._key(request) if self._groups else request.work_key
        account, cost_ns = request.account, request.cost_ns
        tenants = self._tenants[key]
        left = tenants[account] - cost_ns
        if left:
            tenants[account] = left
        elif len(tenants) == 1:
            del self._tenants[key], self._bands[key]
            return
        else:
            del tenants[account]
        self._bands[key] -= cost_ns

    def by_pools_and_band(self) -> dict[tuple[tuple[PoolName, ...], int], int]:
        total: dict[tuple[tuple[PoolName, ...], int], int] = {}
        for (pools, band, _), work in self._bands.items():
            total[pools, band] = total.get((pools, band), 0) + work
        return total

    def ahead_of_band(self, pools: tuple[PoolName, ...], band: int) -> Duration:
        """Returns the queued engine time in higher-priority bands."""
        total, pools = 0, self._pools(pools)
        for (places, number, _), work in self._bands.items():
            if number < band and places == pools:
                total += work
        return Duration(total)

    def in_band(self, pools: tuple[PoolName, ...], band: int) -> Duration:
        pools = self._pools(pools)
        return Duration(self._bands.get((pools, band, False), 0) + self._bands.get((pools, band, True), 0))

    def is_over_share(self, request: Request, weight: int) -> bool:
        """Whether the request's tenant has more than its weighted share of the queued work of this kind."""
        key = self._key(request) if self._groups else request.work_key
        tenants = self._tenants.get(key, _NO_TENANTS)
        own = tenants.get(request.account, 0)
        return own > 0 and own * len(tenants) * DEFAULT_WEIGHT > self._bands[key] * weight

    def peers_by_tenant(self, request: Request) -> dict[TenantId, int]:
        """Returns the queued engine time of the request's kind, by tenant."""
        key = self._key(request) if self._groups else request.work_key
        return self._tenants.get(key, _NO_TENANTS)

    def peers_total(self, request: Request) -> Duration:
        """Returns the total queued engine time of the request's kind."""
        return Duration(self._bands.get(self._key(request) if self._groups else request.work_key, 0))
