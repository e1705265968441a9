"""Whose large body is read next?

Tenants take turns by the bytes that were read for them (start-time fair queueing): the tenant with the fewest bytes
goes next, so a tenant that sends many bodies delays only its own. Within one tenant the smallest body goes first.
"""

import heapq
from typing import Any, Final, Generic, Protocol, TypeVar

from headgate.model.units import TenantId

TENANTS_KEPT_MAX: Final = 1_000
"""Tenants without a waiting body whose last turn is remembered."""


class Sized(Protocol):
    @property
    def size(self) -> int: ...

    def __lt__(self, other: Any, /) -> bool: ...


_Item = TypeVar("_Item", bound=Sized)


class Turns(Generic[_Item]):
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
            # An idle tenant accumulates no credit.
            self._next_at[tenant] = max(self._now, self._next_at.get(tenant, 0))
        heapq.heappush(self._waiting[tenant], item)

    def pop(self) -> _Item:
        """Removes and returns the next item. There must be one."""
        tenant = min(self._waiting, key=self._next_at.__getitem__)
        item = heapq.heappop(self._waiting[tenant])
        self._now = self._next_at[tenant]
        self._next_at[tenant] += item.size
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._forget()
        return item

    def clear(self) -> list[_Item]:
        """Removes all items and returns them."""
        items = [item for waiting in self._waiting.values() for item in waiting]
        self._waiting.clear()
        return items

    def _forget(self) -> None:
        """Drops tenants whose turn has passed, and above the bound the tenants with the earliest turns."""
        if len(self._next_at) - len(self._waiting) <= self._tenants_kept_max:
            return
        idle = sorted((at, tenant) for tenant, at in self._next_at.items() if tenant not in self._waiting)
        for at, tenant in idle:
            if at > self._now and len(self._next_at) - len(self._waiting) <= self._tenants_kept_max:
                break
            del self._next_at[tenant]
