"""How does a gateway talk to the scheduler, wherever that runs?

The door opens a line for each request and follows it: it awaits the next order, carries it
out, and reports what happened. What cannot wait until an order has been carried out comes beside
the line: that an attempt is to stop, or that a second is to be made while the first is silent. A
host may answer at once, in this process, or later, from another one.
"""

from collections.abc import Callable
from typing import Protocol

from headgate.core.admission.limits import Shortage
from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import Event
from headgate.core.summary import Summary
from headgate.model.limits import LimitsLeft
from headgate.model.money import EndpointTime
from headgate.model.ticket import Ticket
from headgate.model.units import TenantId

Aside = Callable[[Abort | Dispatch], None]
"""Takes what comes beside the line. It tells the host nothing before it returns."""


class RequestLine(Protocol):
    async def next(self) -> Dispatch | End:
        """The next order for this request; after `End` there is none."""
        ...

    def close(self) -> Dispatch | None:
        """The door has no more to do with this request. What the scheduler still says of it goes nowhere.

        Gives back an order that was never taken: its place is still to be freed, by an `AttemptEnded`.
        """
        ...


class Host(Protocol):
    def open(self, ticket: Ticket, aside: Aside) -> RequestLine:
        """Brings a request before the scheduler. `aside` is called when an attempt must stop, and with a hedge."""
        ...

    def tell(self, event: Event) -> None:
        """Reports what happened."""
        ...

    def summary(self) -> Summary:
        """The state of things as last known."""
        ...

    def limit_reached(self, tenant: TenantId) -> Shortage | None:
        """The limit that any request of the tenant would exceed now; None if there is none or it is not known here."""
        ...

    def limits_left(self, tenant: TenantId) -> LimitsLeft | None:
        """The remaining rates of the tenant; None if it has no rates or they are not known here."""
        ...

    def take_endpoint_times(self) -> tuple[EndpointTime, ...]:
        """How endpoints have spent their time since this was last asked, as far as it is decided in this process."""
        ...
