"""How much memory may the request bodies of each tenant take?

All bodies together are bounded by `bodies_bytes_max`, and those of one tenant by its share of it (`tenant_shares`). If
a tenant has only one body, that body may take all free bytes.
"""

from headgate.edge.tenant_shares import TenantShares, is_within_share
from headgate.model.units import TenantId


class BodyBytes(TenantShares):
    """Total size of the bodies of all open requests, by tenant."""

    __slots__ = ()

    def open(self, tenant: TenantId) -> "BodyClaim":
        return BodyClaim(self, tenant)


class BodyClaim:
    """Size of one request's body."""

    __slots__ = ("_all", "_size", "_tenant")

    def __init__(self, everything: BodyBytes, tenant: TenantId) -> None:
        self._all = everything
        self._tenant = tenant
        self._size = 0

    def has_room(self, size: int, bytes_max: int) -> bool:
        """Whether `size` more bytes fit."""
        everything = self._all
        free = bytes_max - everything.total - size
        held = everything.of(self._tenant)
        return free >= 0 and (held == self._size or is_within_share(held + size, free=free))

    def grow(self, size: int, bytes_max: int) -> bool:
        """Counts `size` more bytes if they fit. Returns whether they do."""
        if not self.has_room(size, bytes_max):
            return False
        self._size += size
        self._all.add(self._tenant, size)
        return True

    def close(self) -> None:
        self._all.add(self._tenant, -self._size)
        self._size = 0
