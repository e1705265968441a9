"""Valid targets for operator overrides, by verb."""

from collections.abc import Callable, Collection

from headgate.model.policy import Policy
from headgate.model.units import EndpointId


def override_targets(
    policy: Policy, in_force: Callable[[], Policy], endpoints: Callable[[], Collection[EndpointId]], verb: str
) -> Collection[str] | None:
    """Returns the names that the verb may target, or None if this process does not know them.

    `policy` comes from the configuration file. `in_force` also contains the tenants in the database.
    """
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
    """Returns the names of all tenants and of all levels above them in their paths."""
    names: dict[str, None] = {}
    for tenant in policy.tenants:
        steps = tenant.id.split("/")
        names.update(("/".join(steps[:depth]), None) for depth in range(1, len(steps) + 1))
    return names
