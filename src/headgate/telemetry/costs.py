"""What did requests cost?

An observer of those who keep books: in a cell the bills of a request come after its end, and only they hear of it then.
"""

from collections.abc import Sequence

from headgate.core.commands import Command, End
from headgate.core.events import Event, RequestArrived
from headgate.model.money import PAYERS, Payer
from headgate.model.units import Instant, RequestId, TenantId
from headgate.telemetry.meters import OTHER, REQUESTS_MAX, Meters


class Costs:
    def __init__(self, meters: Meters, *, requests_max: int = REQUESTS_MAX) -> None:
        self._requests_max = requests_max
        self._meters = meters
        self._tenants: dict[RequestId, TenantId] = {}
        """Whose the requests are that have not ended."""

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        del now
        if isinstance(event, RequestArrived) and len(self._tenants) < self._requests_max:
            self._tenants[event.ticket.request_id] = event.ticket.tenant
        for command in commands:
            if isinstance(command, End):
                tenant = self._tenants.pop(command.request_id, OTHER)
                if command.bills:
                    self._charge(command, tenant)

    def _charge(self, command: End, tenant: str) -> None:
        class_meter, tenant_meter = self._meters.of_class(command.service_class), self._meters.of_tenant(tenant)
        for bill in command.bills:
            nano_usd = bill.input + bill.output + bill.overhead
            class_meter.nano_usd += nano_usd
            if PAYERS[bill.cause] is Payer.TENANT:
                tenant_meter.nano_usd += nano_usd

    @property
    def open_requests(self) -> int:
        return len(self._tenants)
