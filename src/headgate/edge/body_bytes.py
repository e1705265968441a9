"""How much memory may the request bodies of each tenant take?

All bodies together are bounded by `bodies_bytes_max`. A tenant's further requests may take at most `_SHARE` times as
much as is still free, so that one tenant alone fills four fifths of the room and always leaves the rest to others.
"""

from typing import Final

from headgate.model.units import TenantId

_SHARE: Final = 4


class BodyBytes:
    """Bytes of the bodies of all open requests, by tenant."""

    __slots__ = ("_by_tenant", "total")

    def __init__(self) -> None:
        self.total = 0
        self._by_tenant: dict[TenantId, int] = {}

    def open(self, tenant: TenantId) -> "BodyClaim":
        return BodyClaim(self, tenant)

    def of(self, tenant: TenantId) -> int:
        return self._by_tenant.get(tenant, 0)

    def add(self, tenant: TenantId, size: int) -> None:
        self.total += size
        if held := self.of(tenant) + size:
            self._by_tenant[tenant] = held
        else:
            self._by_tenant.pop(tenant, None)


class BodyClaim:
    """Bytes of one request's body."""

    __slots__ = ("_all", "_size", "_tenant")

    def __init__(self, everything: BodyBytes, tenant: TenantId) -> None:
        self._all = everything
        self._tenant = tenant
        self._size = 0

    def has_room(self, size: int, bytes_max: int) -> bool:
        """Whether so many further bytes fit."""
        everything = self._all
        free = bytes_max - everything.total - size
        others = everything.of(self._tenant) - self._size
        return free >= 0 and (not others or others + self._size + size <= _SHARE * free)

    def grow(self, size: int, bytes_max: int) -> bool:
        """Counts so many further bytes if they fit."""
        if not self.has_room(size, bytes_max):
            return False
        self._size += size
        self._all.add(self._tenant, size)
        return True

    def close(self) -> None:
        self._all.add(self._tenant, -self._size)
        self._size = 0
