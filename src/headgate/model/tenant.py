"""Tenants: accounts with limits, budgets and a share of capacity."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from headgate.model.limits import Limits
from headgate.model.money import Budget
from headgate.model.persistent_map import PersistentMap
from headgate.model.units import ClassName, ModelName, TenantId

OTHER_TENANTS: Final = "other"
"""Name that groups tenants in metrics. No tenant may have this name."""
_NO_LIMITS = Limits()


class Plan(StrEnum):
    """A tenant's commercial plan, in order of ascending priority. Lower plans are degraded first."""

    FREE = "free"
    STANDARD = "standard"
    CRITICAL = "critical"


class DataResidency(StrEnum):
    """Where the requests of a tenant or a class may be sent."""

    ANY = "any"
    LOCAL = "local"
    """Only to the operator's own engines, never to a hosted provider."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant's account. Empty tuples mean no restriction.

    The id is a path such as `acme/search/nightly`: organisation, project, key. Limits apply at every level of the path
    that the policy defines.
    """

    id: TenantId
    classes: tuple[ClassName, ...] = ()
    models: tuple[ModelName, ...] = ()
    weight: int = 100
    """The tenant's weight when a priority band is shared fairly."""
    plan: Plan = Plan.STANDARD
    limits: Limits = _NO_LIMITS
    budgets: tuple[Budget, ...] = ()
    """Budgets. Like limits, they apply at every level of the path."""
    data_residency: DataResidency = DataResidency.ANY
    """Where requests may be sent. `LOCAL` applies to all tenants below as well."""


class TenantTable:
    """Immutable collection of tenants, in the order of their ids, of which a changed copy is cheap.

    A policy accepts any collection of tenants. Applying a change takes time in proportion to the change only if the
    policies before and after it contain tables, one of which was made from the other with `PersistentMap.updated`.
    """

    __slots__ = ("by_id",)

    def __init__(self, by_id: PersistentMap[TenantId, Tenant]) -> None:
        self.by_id = by_id

    def __iter__(self) -> Iterator[Tenant]:
        return self.by_id.values()

    def __len__(self) -> int:
        return len(self.by_id)

    def __contains__(self, tenant: object) -> bool:
        return isinstance(tenant, Tenant) and self.by_id.get(tenant.id) == tenant

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TenantTable) and self.by_id == other.by_id

    def __hash__(self) -> int:
        return len(self.by_id)

    def __repr__(self) -> str:
        return f"TenantTable({tuple(self)})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Copying a compiled instance, also into another process, requires it.
        return tenant_table, (tuple(self),)

    def sharing(self, other: "TenantTable") -> "TenantTable":
        """Returns an equal table that shares with the other one what is equal in both."""
        return TenantTable(other.by_id.updated(self.by_id.changes_since(other.by_id)))


def tenant_table(tenants: Collection[Tenant]) -> TenantTable:
    """Returns the tenants as a table. If an id occurs several times, the last tenant counts."""
    return (
        tenants if isinstance(tenants, TenantTable) else TenantTable(PersistentMap({each.id: each for each in tenants}))
    )


def levels_of(tenant: TenantId) -> list[TenantId]:
    """Returns the levels of a tenant's path, outermost first: `acme`, then `acme/search`."""
    steps = tenant.split("/")
    return [TenantId("/".join(steps[:depth])) for depth in range(1, len(steps) + 1)]


def below(tenant: TenantId, tenants: PersistentMap[TenantId, Tenant]) -> Iterable[TenantId]:
    """Returns the tenants below a level of the path."""
    # "0" is the character after "/".
    return tenants.between(TenantId(f"{tenant}/"), TenantId(f"{tenant}0"))
