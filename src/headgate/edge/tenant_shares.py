"""How much of a shared resource may one tenant hold?

A tenant that already holds some may hold at most `_SHARE` times the amount that stays free. A single tenant thus gets
at most four fifths, and less as others hold more. The rest always stays free for tenants that hold nothing yet.
"""

from typing import Final

from headgate.model.units import TenantId

_SHARE: Final = 4


class TenantShares:
    """Amounts held, by tenant."""

    __slots__ = ("_by_tenant", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_tenant: dict[TenantId, int] = {}

    def of(self, tenant: TenantId) -> int:
        return self._by_tenant.get(tenant, 0)

    def add(self, tenant: TenantId, amount: int) -> None:
        """Adds `amount`, which may be negative."""
        self.total += amount
        if held := self.of(tenant) + amount:
            self._by_tenant[tenant] = held
        else:
            self._by_tenant.pop(tenant, None)

    def has_room(self, tenant: TenantId, amount: int, *, free: int) -> bool:
        """Whether the tenant may take `amount` more, if `free` is left after that."""
        held = self.of(tenant)
        return free >= 0 and (not held or is_within_share(held + amount, free=free))


def is_within_share(held: int, *, free: int) -> bool:
    """Whether one tenant may hold `held` while `free` is left for all."""
    return held <= _SHARE * free
