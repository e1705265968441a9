"""Valid targets for operator overrides, by verb."""

from collections.abc import Callable, Collection, Iterator

from headgate.model.persistent_map import PersistentMap
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant, below, levels_of, tenant_table
from headgate.model.units import EndpointId, PoolName, TenantId


def override_targets(
    policy: Policy,
    in_force: Callable[[], Policy],
    endpoints: Callable[[], Collection[EndpointId]],
    scaled: Collection[PoolName],
    verb: str,
) -> Collection[str] | None:
    """Returns the names that the verb may target, or None if this process does not know them.

    `policy` comes from the configuration file. `in_force` also contains the tenants in the database. `scaled`
    are the autoscaled pools.
    """
    match verb:
        case "hold":
            return [each.name for each in policy.classes]
        case "pin":
            return [each.name for each in policy.pools]
        case "drain":
            return endpoints()
        case "scale":
            return scaled
        case "throttle":
            return _TenantLevels(tenant_table(in_force().tenants).by_id)
        case _:
            return None


class _TenantLevels:
    """Names of all tenants and of all levels above them in their paths. A lookup does not visit all of them."""

    def __init__(self, tenants: PersistentMap[TenantId, Tenant]) -> None:
        self._tenants = tenants

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str):
            return False
        level = TenantId(name)
        return level in self._tenants or next(iter(below(level, self._tenants)), None) is not None

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys(level for name in self._tenants for level in levels_of(name))

    def __len__(self) -> int:
        return len(self._tenants)
