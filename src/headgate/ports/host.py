"""Interface between a gateway and its scheduler, which may run in this process or in another.

The gateway opens a command channel for each request. It waits for the next command, carries it out and reports the
result. Commands that cannot wait, such as an abort or a hedge while the first attempt is running, are passed to a
callback. A host may deliver commands immediately from this process, or later from another one.
"""

from collections.abc import Callable
from typing import Protocol

from headgate.core.admission.limits import QuotaShortage
from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import Event
from headgate.core.summary import Summary
from headgate.model.limits import LimitsLeft
from headgate.model.money import EndpointTime
from headgate.model.ticket import Ticket
from headgate.model.units import TenantId
from headgate.ports.observer import Observer

InterruptHandler = Callable[[Abort | Dispatch], None]
"""Receives aborts and hedges outside the command channel. Must not report events to the host before it returns."""


class CommandChannel(Protocol):
    async def next(self) -> Dispatch | End:
        """Returns the next command for this request. `End` is the last one."""
        ...

    def close(self) -> Dispatch | None:
        """Closes the channel. Later commands for this request are dropped.

        Returns a command that was not received. The caller must free its slot with an `AttemptEnded` event.
        """
        ...


class Host(Protocol):
    def open(self, ticket: Ticket, on_interrupt: InterruptHandler) -> CommandChannel:
        """Submits a request to the scheduler. `on_interrupt` is called with aborts and hedges."""
        ...

    def report(self, event: Event) -> None:
        """Reports an event."""
        ...

    def add_observer(self, observer: Observer) -> Callable[[], None]:
        """Adds an observer of this process's requests, which costs time on every event. Returns a function that
        removes it.
        """
        ...

    def summary(self) -> Summary:
        """Returns the last known state."""
        ...

    def limit_reached(self, tenant: TenantId) -> QuotaShortage | None:
        """Returns the limit that any request from the tenant would exceed now.

        None if there is no such limit or it is not known in this process.
        """
        ...

    def limits_left(self, tenant: TenantId) -> LimitsLeft | None:
        """Returns the tenant's remaining rate limits. None if it has none or they are not known in this process."""
        ...

    def collect_endpoint_times(self) -> tuple[EndpointTime, ...]:
        """Returns how the endpoints that this process schedules have spent their time since the last call."""
        ...
