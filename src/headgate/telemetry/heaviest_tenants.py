"""Tenants with the highest weights, kept up to date while few of many tenants change."""

from collections.abc import Collection
from itertools import islice

from headgate.model.persistent_map import PersistentMap
from headgate.model.tenant import Tenant, tenant_table
from headgate.model.units import TenantId


class HeaviestTenants:
    """The tenants of the current policy, ordered by descending weight and then by id."""

    def __init__(self) -> None:
        self._tenants: PersistentMap[TenantId, Tenant] = PersistentMap()
        self._ranked: PersistentMap[tuple[int, TenantId], TenantId] = PersistentMap()

    def change(self, tenants: Collection[Tenant]) -> None:
        """Applies the tenants of a new policy. Only those that differ are visited."""
        before, self._tenants = self._tenants, tenant_table(tenants).by_id
        moved: dict[tuple[int, TenantId], TenantId | None] = {}
        for name, tenant in self._tenants.changes_since(before).items():
            if (known := before.get(name)) is not None:
                moved[-known.weight, name] = None
            if tenant is not None:
                moved[-tenant.weight, name] = name
        self._ranked = self._ranked.updated(moved)

    def first(self, count: int) -> list[TenantId]:
        return list(islice(self._ranked.values(), count))
