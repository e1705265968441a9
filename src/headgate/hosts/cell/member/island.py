"""How does a member decide when no scheduler answers?

By itself, with a scheduler of its own over its share of everything. What it holds goes on where it is: attempts under
way take up places of the share, and what waits keeps how long it has waited. When a scheduler answers again nothing of
this is handed over but what the member holds; it reports that as it would to any new scheduler.
"""

from collections.abc import Iterable

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    BudgetsTold,
    EndpointJoined,
    EndpointLeaving,
    EndpointMeasured,
    EndpointReadied,
    EndpointUnreadied,
    Event,
    FleetEvent,
    PolicyChanged,
    RequestArrived,
    TimerFired,
)
from headgate.core.scheduler import Scheduler
from headgate.core.summary import Summary
from headgate.hosts.cell.member.authority import Decision, RequestNews, SettingNews
from headgate.hosts.cell.member.held import HeldRequest
from headgate.hosts.cell.member.rules import MemberRules
from headgate.hosts.cell.protocol.endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Declined, Ended, FromScheduler, SchedulerEntry, Share
from headgate.hosts.cell.protocol.shares import own_endpoint, own_policy
from headgate.model.money import EndpointTime
from headgate.model.policy import Policy
from headgate.model.units import Duration, EndpointId, Instant, PoolName


class IslandAuthority:
    __slots__ = ("_ghosts", "_joined", "_scheduler", "_since", "share")

    alone = True
    serial = 0
    knows_of_leaving = True

    def __init__(self, share: Share, now: Instant) -> None:
        self.share = share
        self._since = now
        self._scheduler = Scheduler(counted_by=share.of)
        self._joined: dict[EndpointId, None] = {}
        """Endpoints of which a part belongs to the share: an ordered set."""
        self._ghosts: dict[EndpointId, PoolName] = {}
        """Endpoints known only from attempts in flight, with the pools named in their dispatch orders."""

    def begin(
        self, rules: MemberRules, endpoints: KnownEndpoints, requests: Iterable[HeldRequest], now: Instant
    ) -> list[Decision]:
        """Take over what is held, in the order in which a new scheduler is told of it."""
        held = list(requests)
        if rules.budgets is not None:
            self._decide(rules.budgets, now)
        decisions = self._change_policy(rules.policy, rules.hash, now)
        for told in endpoints.all():
            decisions += self._of_fleet(EndpointJoined(told.endpoint), now)
        for request in held:
            for attempt in request.running.values():
                if attempt.order.endpoint_id not in endpoints.by_id:
                    self._ghosts[attempt.order.endpoint_id] = attempt.order.pool
                decisions += self._decide(request.runs(attempt, now).report, now)
        for request in held:
            if request.accepted and not request.running and not request.over:
                decisions += self._decide(request.waits(now).report, now)
        for told in endpoints.all():
            if told.ready:
                decisions += self._of_fleet(EndpointReadied(told.endpoint.id), now)
        for request in held:
            if not request.accepted and not request.running and not request.over:
                request.accepted = True
                decisions += self._decide(RequestArrived(request.ticket_left(now)), now)
        return decisions

    # Requests

    def full(self) -> str | None:
        return None

    def open(self, request: HeldRequest, now: Instant) -> list[Decision]:
        request.accepted = True
        return self._decide(RequestArrived(request.ticket), now)

    def handle(self, news: RequestNews, now: Instant) -> list[Decision]:
        return self._decide(news.event if isinstance(news, Ended) else news, now)

    def decline(self, declined: Declined, now: Instant) -> list[Decision]:
        ended = AttemptEnded(declined.request_id, declined.attempt, AttemptEnding.ABORTED, declined.reason)
        return self._decide(ended, now)

    # Policy, budgets and endpoints

    def tell(self, news: SettingNews, now: Instant) -> list[Decision]:
        match news:
            case PolicyChanged(policy, policy_hash):
                return self._change_policy(policy, policy_hash, now)
            case BudgetsTold():
                return self._decide(news, now)
            case _:
                return self._of_fleet(news, now)

    def _change_policy(self, policy: Policy, policy_hash: str, now: Instant) -> list[Decision]:
        return self._decide(PolicyChanged(own_policy(self.share, policy), f"{policy_hash} of {self.share.of}"), now)

    def _of_fleet(self, event: FleetEvent, now: Instant) -> list[Decision]:
        """Pass on an event of an endpoint of which a part belongs to the share."""
        match event:
            case EndpointJoined(endpoint):
                own = own_endpoint(self.share, endpoint)
                if own is None or self._ghosts.get(own.id, own.pool) != own.pool:
                    return []
                self._joined[own.id] = None
                return self._decide(EndpointJoined(own), now)
            case EndpointLeaving(endpoint_id):
                self._joined.pop(endpoint_id, None)
            case EndpointReadied(endpoint_id) | EndpointUnreadied(endpoint_id):
                if endpoint_id not in self._joined:
                    return []
            case EndpointMeasured():
                # What other members have there must not count against this share.
                return []
        return self._decide(event, now)

    def _decide(self, event: Event, now: Instant) -> list[Decision]:
        commands = self._scheduler.handle(event, now)
        return [each for each in commands if isinstance(each, Dispatch | Abort | End)]

    # Time

    def tick(self, now: Instant) -> list[Decision]:
        wakeup = self._scheduler.next_wakeup()
        return self._decide(TimerFired(), now) if wakeup is not None and wakeup <= now else []

    def next_wakeup(self) -> Instant | None:
        return self._scheduler.next_wakeup()

    # The scheduler of the cell

    def is_lost(self, now: Instant) -> bool:
        return False

    def yields_to(self, stamp: Instant) -> bool:
        """Only to a scheduler that has heard that this member is an island."""
        return stamp >= self._since

    def restart(self, now: Instant) -> None:
        """There is no session; the report follows when this authority yields."""

    def receive(self, entry: SchedulerEntry, now: Instant) -> list[tuple[Duration, FromScheduler]]:
        return []

    def leave(self, now: Instant) -> None:
        """Nobody is there to be told."""

    # Observation

    def take_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        return self._scheduler.take_endpoint_times(now)

    def summary(self) -> Summary:
        return self._scheduler.summary()
