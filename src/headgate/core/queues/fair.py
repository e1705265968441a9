"""Which tenant goes next at one pool, inside one band?

The tenant that has been served least often goes next, which is round robin among those that
wait. A tenant that returns after idling starts level with the least served one still waiting,
so sleeping earns nothing; nor does waiting for what has no room, which keeps a tenant's place
for one turn but does not save up others. Counts are kept per pool, since a pool is what tenants
compete for: waiting long for one pool earns no advantage at another.
"""

from collections.abc import Callable
from enum import Enum
from heapq import heappop, heappush

from headgate.model.units import TenantId


class Answer(Enum):
    """What a tenant does with the turn it is offered."""

    TAKES = 1
    PASSES = 2
    """It waits, but its head fits nowhere at the moment: it keeps its place and earns nothing."""
    IDLE = 3
    """It no longer waits here."""


class Turns:
    """The order of the tenants that wait for one pool in one band.

    Whether a tenant still waits is for the band to say; one that does not is taken off the
    list when its turn comes.
    """

    __slots__ = ("_heap", "_level", "_listed", "_order")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, TenantId]] = []
        """One entry per listed tenant: turns taken, order among equals, tenant."""
        self._listed: set[TenantId] = set()
        self._level = 0
        """The count at which turns are being taken: only a tenant that had to pass has less."""
        self._order = 0

    def list(self, tenant: TenantId) -> None:
        """Notes that the tenant waits here."""
        if tenant not in self._listed:
            self._listed.add(tenant)
            self._push(self._level, tenant)

    def offer(self, ask: Callable[[TenantId], Answer]) -> bool:
        """Offers one turn to the tenants in their order; true if one of them took it."""
        passed: list[tuple[int, int, TenantId]] = []
        taken = False
        while self._heap and not taken:
            entry = heappop(self._heap)
            count, _, tenant = entry
            answer = ask(tenant)
            if answer is Answer.TAKES:
                self._level = max(self._level, count)
                self._push(self._level + 1, tenant)
                taken = True
            elif answer is Answer.PASSES:
                passed.append(entry)
            else:
                self._listed.remove(tenant)
        for entry in passed:
            heappush(self._heap, entry)
        return taken

    def _push(self, count: int, tenant: TenantId) -> None:
        self._order += 1
        heappush(self._heap, (count, self._order, tenant))
