"""Fair queue of bodies to parse.

Tenants take turns according to the bytes parsed for them (start-time fair queueing). The tenant with the fewest bytes
goes next, so a tenant that sends many bodies delays only its own. Within one tenant, the smallest body goes first.
"""

import heapq
from typing import Any, Final, Generic, Protocol, TypeVar

from headgate.model.units import TenantId

TENANTS_KEPT_MAX: Final = 1_000
"""Maximum number of tenants with no waiting body whose last turn is remembered."""


class Sized(Protocol):
    @property
    def size(self) -> int: ...

    def __lt__(self, other: Any, /) -> bool: ...


_Item = TypeVar("_Item", bound=Sized)


class FairBodyQueue(Generic[_Item]):
    """Waiting bodies by tenant, ordered by size within one tenant."""

    def __init__(self, tenants_kept_max: int = TENANTS_KEPT_MAX) -> None:
        self._waiting: dict[TenantId, list[_Item]] = {}
        self._next_at: dict[TenantId, int] = {}
        """Virtual time of each tenant's next turn, in bytes."""
        self._now = 0
        """Virtual time of the last turn."""
        self._tenants_kept_max = tenants_kept_max

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def push(self, tenant: TenantId, item: _Item) -> None:
        if tenant not in self._waiting:
            self._waiting[tenant] = []
            # Idle tenants do not accumulate credit.
            self._next_at[tenant] = max(self._now, self._next_at.get(tenant, 0))
        heapq.heappush(self._waiting[tenant], item)

    def pop(self) -> _Item:
        """Removes and returns the next item. The queue must not be empty."""
        tenant = min(self._waiting, key=self._next_at.__getitem__)
        item = heapq.heappop(self._waiting[tenant])
        self._now = self._next_at[tenant]
        self._next_at[tenant] += item.size
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._prune()
        return item

    def clear(self) -> list[_Item]:
        """Removes all items and returns them."""
        items = [item for waiting in self._waiting.values() for item in waiting]
        self._waiting.clear()
        return items

    def _prune(self) -> None:
        """Drops idle tenants whose turn has passed. If too many remain, also drops those with the earliest turns."""
        if len(self._next_at) - len(self._waiting) <= self._tenants_kept_max:
            return
        idle = sorted((at, tenant) for tenant, at in self._next_at.items() if tenant not in self._waiting)
        for at, tenant in idle:
            if at > self._now and len(self._next_at) - len(self._waiting) <= self._tenants_kept_max:
                break
            del self._next_at[tenant]
