"""Fair queueing among the tenants of one priority band in one pool.

Each tenant is charged the engine time of its requests divided by its weight, and the tenant with the lowest charge goes
next. The charge for a request is estimated when the request is sent and corrected when the actual time is known.

Idle tenants do not accumulate credit: a tenant that returns starts with the charge of the least charged waiting tenant.
A tenant whose requests fit nowhere at the moment does not accumulate credit either, but it keeps its position among
tenants with the same charge. Charges are kept per pool, because tenants compete for pools: a long wait for one pool
gives no advantage in another.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from headgate.core.counters import FairQueueCounter
from headgate.model.units import Duration, PoolName, TenantId

DEFAULT_WEIGHT: Final = 100
"""Default weight of a tenant."""
IDLE: Final = -1
PASSED: Final = -2
"""What `ask` returns in `FairQueue.offer` if there is no charge. IDLE: the tenant has no queued requests. PASSED: it
has queued requests, but none of them fits at the moment."""
_STALE_ENTRIES_MAX: Final = 64


class FairQueue:
    """Order of the tenants that wait for one pool in one band.

    Only the band knows whether a tenant still has queued requests. A tenant without queued requests is removed at its
    next turn.
    """

    __slots__ = ("_charged", "_entries", "_heap", "_level", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TenantId]] = []
        """Heap of (charge, order number, tenant). Stale entries are dropped when they reach the top."""
        self._entries: dict[TenantId, int] = {}
        """Waiting tenants, with the order number of their current heap entry."""
        self._charged: dict[TenantId, int] = {}
        """Charges of waiting tenants, and of others whose charge is above the level."""
        self._level = 0
        """Charge of the tenants that are being served. Only previously overcharged tenants can be below it."""
        self._order = 0

    def add(self, tenant: TenantId) -> None:
        """Adds a tenant that has queued requests."""
        if tenant not in self._entries:
            charged = self._charged.get(tenant, 0)
            self._charged[tenant] = charged if charged > self._level else self._level
            self._push(tenant)

    def offer(self, ask: Callable[[TenantId], int]) -> bool:
        """Offers one turn to the tenants in order. `ask` returns the charge if the tenant accepts the turn."""
        passed: list[tuple[int, TenantId]] = []
        taker: TenantId | None = None
        cost = 0
        while self._heap and taker is None:
            charge, order, tenant = heappop(self._heap)
            if self._entries.get(tenant) != order:
                continue
            cost = ask(tenant)
            if cost == PASSED:
                passed.append((order, tenant))
            elif cost == IDLE:
                self._remove(tenant)
            else:
                taker = tenant
                if charge > self._level:
                    self._level = charge
        for order, tenant in passed:
            if taker is not None:
                # The tenant keeps its position among equal charges but does not accumulate credit.
                self._charged[tenant] = max(self._charged[tenant], self._level)
            heappush(self._heap, (self._charged[tenant], order, tenant))
        if taker is None:
            return False
        self._charged[taker] += cost
        self._push(taker)
        return True

    def is_empty(self) -> bool:
        """Whether no tenant waits, or waited under an earlier scheduler."""
        return not self._entries

    def charge_alone(self, tenant: TenantId, cost: int) -> None:
        """Charges a tenant for a turn in an empty queue.

        Same as `add`, an `offer` that the tenant accepts, and `clear`.
        """
        charged = self._charged.get(tenant, 0)
        if charged > self._level:
            self._level = charged
        if cost:
            self._charged[tenant] = self._level + cost
        else:
            self._charged.pop(tenant, None)

    def clear(self) -> None:
        """Removes all tenants, because no requests are queued."""
        self._heap.clear()
        for tenant in self._entries:
            if self._charged[tenant] <= self._level:
                del self._charged[tenant]
        self._entries.clear()

    def settle(self, tenant: TenantId, difference: int) -> None:
        """Corrects a tenant's charge for earlier work."""
        if tenant in self._charged:
            self._charged[tenant] += difference
            if tenant in self._entries:
                self._push(tenant)
        elif difference > 0:
            self._charged[tenant] = self._level + difference

    # Handover between schedulers

    def counter(self, band: int, pool: PoolName) -> FairQueueCounter:
        order = sorted(self._entries, key=lambda each: self._entries[each])
        waiting = tuple((each, self._charged[each]) for each in order)
        others = tuple((each, charge) for each, charge in self._charged.items() if each not in self._entries)
        return FairQueueCounter(band, pool, self._level, waiting, others)

    def restore(self, counter: FairQueueCounter) -> None:
        """Restores the charges. Tenants that no longer have queued requests are removed at their next turn."""
        self._level = counter.level
        self._charged = dict(counter.others)
        for tenant, charged in counter.waiting:
            self._charged[tenant] = charged
            self._push(tenant)

    def _push(self, tenant: TenantId) -> None:
        self._order = order = self._order + 1
        self._entries[tenant] = order
        heappush(self._heap, (self._charged[tenant], order, tenant))
        if len(self._heap) > 2 * len(self._entries) + _STALE_ENTRIES_MAX:
            self._heap = [(self._charged[each], order, each) for each, order in self._entries.items()]
            heapify(self._heap)
            self._charged = {
                each: charge for each, charge in self._charged.items() if each in self._entries or charge > self._level
            }

    def _remove(self, tenant: TenantId) -> None:
        del self._entries[tenant]
        if self._charged[tenant] <= self._level:
            del self._charged[tenant]


def charge(cost: Duration, weight: int) -> int:
    """Returns the charge for this much engine time, for a tenant of this weight."""
    return cost * DEFAULT_WEIGHT // weight
