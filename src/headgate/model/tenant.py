"""Tenants: accounts with limits, budgets and a share of capacity."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.model.limits import Limits
from headgate.model.money import Budget
from headgate.model.units import ClassName, ModelName, TenantId

OTHER_TENANTS: Final = "other"
"""Name that groups tenants in metrics. No tenant may have this name."""
_NO_LIMITS = Limits()


class Plan(StrEnum):
    """A tenant's commercial plan, in order of ascending priority. Lower plans are degraded first."""

    FREE = "free"
    STANDARD = "standard"
    CRITICAL = "critical"


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
