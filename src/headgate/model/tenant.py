"""Whose request is it?"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headgate.model.limits import Limits
from headgate.model.money import Budget
from headgate.model.units import ClassName, ModelName, TenantId

OTHER_TENANTS: Final = "other"
"""How those are called together that are not told apart; none may be called so itself."""
_NO_LIMITS = Limits()


class Plan(StrEnum):
    """A tenant's commercial level, from the one that gives way first to the one that does so last."""

    FREE = "free"
    STANDARD = "standard"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True)
class Tenant:
    """An account. Empty tuples mean no restriction.

    Its id is a path such as `acme/search/nightly`: organisation, project, key. Limits hold at every level of the path
    that the policy names.
    """

    id: TenantId
    classes: tuple[ClassName, ...] = ()
    models: tuple[ModelName, ...] = ()
    weight: int = 100
    """Its share of what tenants of a band compete for, beside the weights of the others."""
    plan: Plan = Plan.STANDARD
    limits: Limits = _NO_LIMITS
    budgets: tuple[Budget, ...] = ()
    """Like limits they hold at every level of the path."""
