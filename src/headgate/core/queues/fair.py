"""Which tenant goes next at one pool, inside one band?

Each tenant is charged the engine time that was spent on it, divided by its weight; the least charged goes next. What a
request takes is predicted when it goes and trued up when it is known. A tenant that returns after idling starts level
with the least charged one still waiting, so sleeping earns nothing; nor does waiting for what has no room, which keeps
a tenant's place but does not save up others. Charges are kept per pool, since a pool is what tenants compete for:
waiting long for one pool earns no advantage at another.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from headgate.core.counters import TurnsCounter
from headgate.model.units import Duration, PoolName, TenantId

WEIGHT: Final = 100
"""The weight of a tenant of which the policy says nothing."""
IDLE: Final = -1
PASSES: Final = -2
"""What a tenant answers to the turn it is offered, if not what it takes: it no longer waits here, or it waits, but its
head fits nowhere at the moment."""
_HUSKS_TOLERATED: Final = 64


class Turns:
    """The order of the tenants that wait for one pool in one band.

    Whether a tenant still waits is for the band to say; one that does not is taken off the list when its turn comes.
    """

    __slots__ = ("_charged", "_heap", "_level", "_listed", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TenantId]] = []
        """Charge, order among equals, tenant. Holds some that no longer count: they are dropped when they come up."""
        self._listed: dict[TenantId, int] = {}
        """Who waits here, and the order number of the one entry that counts."""
        self._charged: dict[TenantId, int] = {}
        """Everybody who waits here, and those who left with more than the level."""
        self._level = 0
        """The charge at which turns are being taken: only a tenant that was charged too much before has less."""
        self._order = 0

    def list(self, tenant: TenantId) -> None:
        """Notes that the tenant waits here."""
        if tenant not in self._listed:
            self._charged[tenant] = max(self._charged.get(tenant, 0), self._level)
            self._push(tenant)

    def offer(self, ask: Callable[[TenantId], int]) -> bool:
        """Offers one turn to the tenants in their order. Who takes it answers with what it is to be charged."""
        passed: list[tuple[int, TenantId]] = []
        taker: TenantId | None = None
        cost = 0
        while self._heap and taker is None:
            charge, order, tenant = heappop(self._heap)
            if self._listed.get(tenant) != order:
                continue
            cost = ask(tenant)
            if cost == PASSES:
                passed.append((order, tenant))
            elif cost == IDLE:
                self._strike_off(tenant)
            else:
                taker, self._level = tenant, max(self._level, charge)
        for order, tenant in passed:
            if taker is not None:
                # It keeps its place before its equals, and saves up nothing.
                self._charged[tenant] = max(self._charged[tenant], self._level)
            heappush(self._heap, (self._charged[tenant], order, tenant))
        if taker is None:
            return False
        self._charged[taker] += cost
        self._push(taker)
        return True

    def disband(self) -> None:
        """Nobody waits here any more."""
        self._heap.clear()
        for tenant in tuple(self._listed):
            self._strike_off(tenant)

    def settle(self, tenant: TenantId, difference: int) -> None:
        """Charges more or less for what was taken before."""
        if tenant in self._charged:
            self._charged[tenant] += difference
            if tenant in self._listed:
                self._push(tenant)
        elif difference > 0:
            self._charged[tenant] = self._level + difference

    # For a successor

    def counter(self, band: int, pool: PoolName) -> TurnsCounter:
        order = sorted(self._listed, key=lambda each: self._listed[each])
        waiting = tuple((each, self._charged[each]) for each in order)
        others = tuple((each, charge) for each, charge in self._charged.items() if each not in self._listed)
        return TurnsCounter(band, pool, self._level, waiting, others)

    def restore(self, counter: TurnsCounter) -> None:
        """Goes on from there. Who waited is taken to do so still: who does not is struck off when its turn comes."""
        self._level = counter.level
        self._charged = dict(counter.others)
        for tenant, charged in counter.waiting:
            self._charged[tenant] = charged
            self._push(tenant)

    def _push(self, tenant: TenantId) -> None:
        self._order += 1
        self._listed[tenant] = self._order
        heappush(self._heap, (self._charged[tenant], self._order, tenant))
        if len(self._heap) > 2 * len(self._listed) + _HUSKS_TOLERATED:
            self._heap = [(self._charged[each], order, each) for each, order in self._listed.items()]
            heapify(self._heap)
            self._charged = {
                each: charge for each, charge in self._charged.items() if each in self._listed or charge > self._level
            }

    def _strike_off(self, tenant: TenantId) -> None:
        del self._listed[tenant]
        if self._charged[tenant] <= self._level:
            del self._charged[tenant]


def charge(cost: Duration, weight: int) -> int:
    """What a tenant of this weight is charged for so much engine time."""
    return cost * WEIGHT // weight
