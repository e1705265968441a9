"""`FaultAttribution` that records its verdicts for the reference models in this directory.

`tests/core` tests the verdicts.
"""

from collections.abc import Iterable

from headgate.core.events import AttemptEnded
from headgate.core.request_state import Attempt
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.fault_attribution import FaultAttribution
from headgate.core.scheduler import Scheduler
from headgate.model.fault import FaultOrigin
from headgate.model.ticket import Ticket
from headgate.model.units import EndpointId, Instant


class RecordedBlame(FaultAttribution):
    __slots__ = ("counted_after_all", "origin", "taken_back")

    def __init__(self) -> None:
        super().__init__()
        self.forget_verdicts()

    def forget_verdicts(self) -> None:
        self.origin: FaultOrigin | None = None
        """Origin of the last failure."""
        self.taken_back: EndpointId | None = None
        """Endpoint whose earlier failure is now attributed to the request."""
        self.counted_after_all: list[EndpointRecord] = []
        """Endpoints whose earlier failures now count because another endpoint served the request."""

    def attribute(self, attempt: Attempt, event: AttemptEnded, now: Instant) -> FaultOrigin:
        suspect = self._suspects.get(attempt.ticket.identity)
        self.origin = super().attribute(attempt, event, now)
        if self.origin is FaultOrigin.REQUEST and suspect is not None and suspect.counted:
            self.taken_back = suspect.endpoint.id
        return self.origin

    def is_endpoint_fault(
        self,
        endpoint: EndpointRecord,
        ticket: Ticket,
        origin: FaultOrigin,
        now: Instant,
        *,
        endpoints: Iterable[EndpointRecord],
    ) -> bool:
        if counts := super().is_endpoint_fault(endpoint, ticket, origin, now, endpoints=endpoints):
            self.counted_after_all.append(endpoint)
        return counts


def record_blame(scheduler: Scheduler) -> Scheduler:
    scheduler._state.blame = RecordedBlame()
    return scheduler


def recorded(scheduler: Scheduler) -> RecordedBlame:
    blame = scheduler._state.blame
    assert isinstance(blame, RecordedBlame)
    return blame
