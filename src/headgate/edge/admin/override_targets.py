"""The names that an operator's override may be about, by its verb."""

from collections.abc import Callable, Collection

from headgate.model.policy import Policy
from headgate.model.units import EndpointId


def override_targets(
    policy: Policy, in_force: Callable[[], Policy], endpoints: Callable[[], Collection[EndpointId]], verb: str
) -> Collection[str] | None:
    """`policy` is the file's, `in_force` adds the database's tenants. None if the names are not known here."""
    match verb:
        case "hold":
            return [each.name for each in policy.classes]
        case "pin":
            return [each.name for each in policy.pools]
        case "drain":
            return endpoints()
        case "throttle":
            return _levels(in_force())
        case _:
            return None


def _levels(policy: Policy) -> Collection[str]:
    """Every tenant by name, and every level above one."""
    names: dict[str, None] = {}
    for tenant in policy.tenants:
        steps = tenant.id.split("/")
        names.update(("/".join(steps[:depth]), None) for depth in range(1, len(steps) + 1))
    return names
