"""Per-tenant shares of a limited resource, such as connections or body memory.

A tenant that already uses some of the resource may use at most `_SHARE` times the amount that remains free. A single
tenant can therefore use at most four fifths, and less if other tenants use more. Some of it therefore always remains
free for tenants that are not using any yet.
"""

from typing import Final

from headgate.model.units import TenantId

_SHARE: Final = 4


class TenantShares:
    """Amounts in use, by tenant."""

    __slots__ = ("_by_tenant", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_tenant: dict[TenantId, int] = {}

    def of(self, tenant: TenantId) -> int:
        return self._by_tenant.get(tenant, 0)

    def add(self, tenant: TenantId, amount: int) -> None:
        """Adds `amount` to the tenant's use. Negative amounts reduce it."""
        self.total += amount
        if held := self._by_tenant.get(tenant, 0) + amount:
            self._by_tenant[tenant] = held
        else:
            self._by_tenant.pop(tenant, None)

    def has_room(self, tenant: TenantId, amount: int, *, free: int) -> bool:
        """Returns whether the tenant may use `amount` more, given that `free` would be left afterwards."""
        held = self.of(tenant)
        return free >= 0 and (not held or is_within_share(held + amount, free=free))


def is_within_share(held: int, *, free: int) -> bool:
    """Returns whether one tenant may use `held` while `free` is left for all."""
    return held <= _SHARE * free
