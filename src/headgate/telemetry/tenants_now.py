"""Which tenants have requests waiting and in flight at this moment?

A request waits until it is sent, is in flight while any of its attempts runs, and waits again between two of them. What
arrived before this process watched is not counted.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import AttemptEnded, Event, RequestArrived
from headgate.model.units import Instant, RequestId
from headgate.telemetry.meters import OTHER, REQUESTS_MAX

TENANTS_MAX: Final = 1_000
"""So many are told apart at once; those who have nothing open make room for others, and what is left is `other`."""


class TenantNow:
    __slots__ = ("asked", "in_flight", "name", "queued")

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0
        """Since it has been watched."""
        self.queued = 0
        self.in_flight = 0


class _Open:
    __slots__ = ("running", "tenant")

    def __init__(self, tenant: TenantNow) -> None:
        self.tenant = tenant
        self.running = 0


class TenantsNow:
    """An observer."""

    def __init__(self, *, tenants_max: int = TENANTS_MAX) -> None:
        self._tenants_max = tenants_max
        self._tenants: dict[str, TenantNow] = {}
        self._open: dict[RequestId, _Open] = {}

    def __iter__(self) -> Iterator[TenantNow]:
        return iter(self._tenants.values())

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        if isinstance(event, RequestArrived):
            self._arrived(event)
        elif isinstance(event, AttemptEnded):
            self._attempt_ended(event)
        for command in commands:
            if isinstance(command, Dispatch):
                self._dispatched(command)
            elif isinstance(command, End):
                self._ended(command)

    def _arrived(self, event: RequestArrived) -> None:
        if len(self._open) < REQUESTS_MAX:
            tenant = self._tenant(event.ticket.tenant)
            tenant.asked += 1
            tenant.queued += 1
            self._open[event.ticket.request_id] = _Open(tenant)

    def _dispatched(self, command: Dispatch) -> None:
        if (found := self._open.get(command.request_id)) is not None:
            found.running += 1
            if found.running == 1:
                found.tenant.queued -= 1
                found.tenant.in_flight += 1

    def _attempt_ended(self, event: AttemptEnded) -> None:
        found = self._open.get(event.request_id)
        if found is not None and found.running:
            found.running -= 1
            if not found.running:
                found.tenant.in_flight -= 1
                found.tenant.queued += 1

    def _ended(self, command: End) -> None:
        if (found := self._open.pop(command.request_id, None)) is None:
            return
        if found.running:
            found.tenant.in_flight -= 1
        else:
            found.tenant.queued -= 1

    def _tenant(self, name: str) -> TenantNow:
        if (found := self._tenants.get(name)) is not None:
            return found
        if len(self._tenants) >= self._tenants_max and not self._make_room():
            name = OTHER
        return self._tenants.setdefault(name, TenantNow(name))

    def _make_room(self) -> bool:
        idle = next((each for each in self if not each.queued and not each.in_flight and each.name != OTHER), None)
        if idle is not None:
            del self._tenants[idle.name]
        return idle is not None
