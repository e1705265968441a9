"""Cost of each business unit so far today.

A business unit is the value of the metadata key that the policy's `unit` names, for example a customer or a document.
Costs are counted separately for each tenant and reset every day.
"""

from typing import Final

from headgate.core.rules import Rules
from headgate.model.ticket import Ticket
from headgate.model.units import TenantId

UNITS_MAX: Final = 100_000
"""Maximum number of business units in memory. When it is reached, the least recently used unit is dropped."""


class BusinessUnit:
    """Cost of one business unit today: the amount spent by finished requests and the amount reserved by open ones."""

    __slots__ = ("reserved", "spent")

    def __init__(self) -> None:
        self.spent = self.reserved = 0


class BusinessUnits:
    __slots__ = ("_by_name", "units_max")

    def __init__(self, *, units_max: int = UNITS_MAX) -> None:
        self.units_max = units_max
        self._by_name: dict[tuple[TenantId, str], BusinessUnit] = {}
        """Units by tenant and name, least recently used first."""

    def get(self, tenant: TenantId, name: str) -> BusinessUnit:
        """Returns the unit of this name, creating it if needed, and marks it as most recently used."""
        key = (tenant, name)
        unit = self._by_name.pop(key, None)
        if unit is None:
            unit = BusinessUnit()
            if len(self._by_name) >= self.units_max:
                del self._by_name[next(iter(self._by_name))]
        self._by_name[key] = unit
        return unit

    def begin_day(self) -> None:
        for unit in self._by_name.values():
            unit.spent = 0


def unit_name(ticket: Ticket, rules: Rules) -> str | None:
    """Returns the business unit in the request's metadata."""
    return next((value for key, value in ticket.metadata if key == rules.policy.unit_key), None)
