"""How does a member decide when no scheduler answers?

By itself, with a scheduler of its own over its share of everything. What it holds goes on where it is: attempts under
way take up places of the share, and what waits keeps how long it has waited. When a scheduler answers again nothing of
this is handed over but what the member holds; it reports that as it would to any new scheduler.
"""

from collections.abc import Iterable

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import (
    EndpointJoined,
    EndpointLeaving,
    EndpointMeasured,
    EndpointReadied,
    EndpointUnreadied,
    Event,
    FleetEvent,
    PolicyChanged,
    RequestArrived,
)
from headgate.core.scheduler import Scheduler
from headgate.core.summary import Summary
from headgate.hosts.cell.endpoints import KnownEndpoints
from headgate.hosts.cell.held import HeldRequest
from headgate.hosts.cell.messages import Share
from headgate.hosts.cell.shares import own_endpoint, own_policy
from headgate.model.money import EndpointTime
from headgate.model.policy import Policy
from headgate.model.units import EndpointId, Instant

Order = Dispatch | Abort | End


class Island:
    __slots__ = ("_joined", "_scheduler", "share")

    def __init__(self, share: Share) -> None:
        self.share = share
        self._scheduler = Scheduler(counted_by=share.of)
        self._joined: dict[EndpointId, None] = {}
        """Those of which a part is ours: an ordered set."""

    def begin(
        self, policy: Policy, policy_hash: str, endpoints: KnownEndpoints, requests: Iterable[HeldRequest], now: Instant
    ) -> list[Order]:
        """Takes over what is held, in the order in which a new scheduler is told of it."""
        held = list(requests)
        orders = self.change_policy(policy, policy_hash, now)
        for told in endpoints.all():
            orders += self.of_fleet(EndpointJoined(told.endpoint), now)
        for request in held:
            for attempt in request.running.values():
                orders += self.handle(request.runs(attempt, now).report, now)
        for request in held:
            if request.accepted and not request.running and not request.over:
                orders += self.handle(request.waits(now).report, now)
        for told in endpoints.all():
            if told.ready:
                orders += self.of_fleet(EndpointReadied(told.endpoint.id), now)
        for request in held:
            if not request.accepted and not request.running and not request.over:
                request.accepted = True
                orders += self.handle(RequestArrived(request.ticket_left(now)), now)
        return orders

    def change_policy(self, policy: Policy, policy_hash: str, now: Instant) -> list[Order]:
        return self.handle(PolicyChanged(own_policy(self.share, policy), f"{policy_hash} of {self.share.of}"), now)

    def of_fleet(self, event: FleetEvent, now: Instant) -> list[Order]:
        """What was seen of an endpoint, as far as a part of it is ours."""
        match event:
            case EndpointJoined(endpoint):
                own = own_endpoint(self.share, endpoint)
                if own is None:
                    return []
                self._joined[own.id] = None
                return self.handle(EndpointJoined(own), now)
            case EndpointLeaving(endpoint_id):
                self._joined.pop(endpoint_id, None)
            case EndpointReadied(endpoint_id) | EndpointUnreadied(endpoint_id):
                if endpoint_id not in self._joined:
                    return []
            case EndpointMeasured():
                # What the others have there is theirs: it is not to count against our share.
                return []
        return self.handle(event, now)

    def handle(self, event: Event, now: Instant) -> list[Order]:
        commands = self._scheduler.handle(event, now)
        return [each for each in commands if isinstance(each, Dispatch | Abort | End)]

    def next_wakeup(self) -> Instant | None:
        return self._scheduler.next_wakeup()

    def take_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """Of the endpoints' time our part, as of all else."""
        return self._scheduler.take_endpoint_times(now)

    def summary(self) -> Summary:
        return self._scheduler.summary()
