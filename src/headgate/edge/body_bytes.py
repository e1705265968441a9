"""Memory limits for request bodies, in total and per tenant.

`total_body_bytes_max` limits the total size of all bodies. Each tenant may use its share of it (`tenant_shares`). A
tenant's only body may use all the free bytes.
"""

from headgate.edge.tenant_shares import TenantShares, is_within_share
from headgate.model.units import TenantId


class BodyBytes(TenantShares):
    """Total size of the bodies of all open requests, by tenant."""

    __slots__ = ()

    def open(self, tenant: TenantId) -> "BodyClaim":
        return BodyClaim(self, tenant)


class BodyClaim:
    """Bytes reserved for one request body."""

    __slots__ = ("_size", "_tenant", "_total")

    def __init__(self, everything: BodyBytes, tenant: TenantId) -> None:
        self._total = everything
        self._tenant = tenant
        self._size = 0

    def has_room(self, size: int, bytes_max: int) -> bool:
        """Returns whether `size` more bytes fit."""
        everything = self._total
        free = bytes_max - everything.total - size
        if free < 0:
            return False
        held = everything.of(self._tenant)
        return held == self._size or is_within_share(held + size, free=free)

    def grow(self, size: int, bytes_max: int) -> bool:
        """Reserves `size` more bytes if they fit. Returns whether they fit."""
        everything, tenant = self._total, self._tenant
        # A tenant without any other body may use all the free bytes.
        if (everything.of(tenant) or everything.total + size > bytes_max) and not self.has_room(size, bytes_max):
            return False
        self._size += size
        everything.add(tenant, size)
        return True

    def close(self) -> None:
        self._total.add(self._tenant, -self._size)
        self._size = 0
