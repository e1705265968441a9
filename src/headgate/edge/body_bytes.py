"""How much memory may the request bodies of each tenant take?

All bodies together are bounded by `bodies_bytes_max`, and those of one tenant by its share of it (`tenant_shares`). The
only body of a tenant may take all the room that is free.
"""

from headgate.edge.tenant_shares import TenantShares, is_within_share
from headgate.model.units import TenantId


class BodyBytes(TenantShares):
    """Bytes of the bodies of all open requests, by tenant."""

    __slots__ = ()

    def open(self, tenant: TenantId) -> "BodyClaim":
        return BodyClaim(self, tenant)


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
        held = everything.of(self._tenant)
        return free >= 0 and (held == self._size or is_within_share(held + size, free=free))

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
