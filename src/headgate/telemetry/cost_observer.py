"""Observer that totals request costs by class and tenant, for a gateway in a cell.

In a cell, this observer is notified that a request has ended only once the bills have arrived, and other observers are
notified earlier. Without a cell, the bills are in the command that ends the request, and `meters.py` counts them.
"""

from collections.abc import Sequence

from headgate.core.commands import Command, End
from headgate.core.events import Event, RequestArrived
from headgate.model.units import Instant, RequestId, TenantId
from headgate.telemetry.meters import OTHER, REQUESTS_MAX, Meters


class CostObserver:
    def __init__(self, meters: Meters, *, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self._meters = meters
        self._tenants: dict[RequestId, TenantId] = {}
        """Tenants of open requests."""

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        del now
        if type(event) is RequestArrived and len(self._tenants) < self._requests_max:
            self._tenants[event.ticket.request_id] = event.ticket.tenant
        for command in commands:
            if type(command) is End:
                tenant = self._tenants.pop(command.request_id, OTHER)
                if command.bills:
                    self._meters.count_bills(command, tenant)

    @property
    def open_requests(self) -> int:
        return len(self._tenants)
