"""What have the requests of one unit of business cost today, and what may they cost yet?

A unit is whatever the policy's `unit` names in a request's metadata, such as a customer or a document. What it has cost
is counted for each tenant apart, and begins anew with each day.
"""

from typing import Final

from headgate.core.rules import Rules
from headgate.model.ticket import Ticket
from headgate.model.units import TenantId

UNITS_MAX: Final = 100_000
"""Of so many units of business it is known what they have cost; beyond them the one that has been quiet longest is
forgotten."""


class BusinessUnit:
    """What the requests of one unit of business have cost today, and may cost yet."""

    __slots__ = ("reserved", "spent")

    def __init__(self) -> None:
        self.spent = self.reserved = 0


class BusinessUnits:
    __slots__ = ("_by_name", "units_max")

    def __init__(self, *, units_max: int = UNITS_MAX) -> None:
        self.units_max = units_max
        self._by_name: dict[tuple[TenantId, str], BusinessUnit] = {}
        """The one that was quiet longest comes first."""

    def named(self, tenant: TenantId, name: str) -> BusinessUnit:
        """The unit of this name, which from here on is the one that spoke last."""
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
    """The unit that a request names in its metadata."""
    return next((value for key, value in ticket.metadata if key == rules.policy.unit), None)
