"""Authority of a member that has become an island because no scheduler answers.

It runs its own scheduler over its share. Running attempts continue and occupy slots of the share, and queued requests
keep the time they have waited. When a scheduler answers again, the member reports the requests it holds, as it would to
any new scheduler. Nothing else is handed over.
"""

from collections.abc import Iterable

from headgate.core.commands import Abort, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    BudgetsSynced,
    EndpointJoined,
    EndpointLeaving,
    EndpointMetricsReported,
    EndpointNotReady,
    EndpointProbed,
    EndpointReady,
    Event,
    FleetEvent,
    PolicyChanged,
    RequestArrived,
    SharesAssigned,
    TimerFired,
)
from headgate.core.scheduler import Scheduler
from headgate.core.summary import Summary
from headgate.hosts.cell.member.authority import Decision, RequestUpdate, SettingsUpdate
from headgate.hosts.cell.member.held_requests import HeldAttempt, HeldRequest
from headgate.hosts.cell.member.rules import MemberRules
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import FinishedAttempt, FromScheduler, GrantDeclined, SchedulerEntry, Share
from headgate.hosts.cell.protocol.shares import island_endpoint, island_policy
from headgate.model.money import EndpointTime
from headgate.model.policy import Policy
from headgate.model.units import Duration, EndpointId, Instant, PoolName


class IslandAuthority:
    __slots__ = ("_joined", "_scheduler", "_since", "_unknown_endpoints", "share")

    is_island = True
    serial = 0
    leave_acknowledged = True

    def __init__(self, share: Share, now: Instant) -> None:
        self.share = share
        self._since = now
        self._scheduler = Scheduler(scheduler_count=share.total)
        self._joined: dict[EndpointId, None] = {}
        """Endpoints with slots in the share, as an ordered set."""
        self._unknown_endpoints: dict[EndpointId, PoolName] = {}
        """Endpoints known only from running attempts, with the pools named in their dispatches."""

    def begin(
        self, rules: MemberRules, endpoints: KnownEndpoints, requests: Iterable[HeldRequest], now: Instant
    ) -> list[Decision]:
        """Takes over the held requests, in the order in which a new scheduler receives them."""
        held = list(requests)
        for known in rules.reports():
            self._decide(known, now)
        decisions = self._change_policy(rules.policy, rules.hash, now)
        for told in endpoints.updates():
            decisions += self._handle_fleet_event(EndpointJoined(told.endpoint), now)
        for request in held:
            for attempt in request.running.values():
                if attempt.dispatch.endpoint_id not in endpoints.by_id:
                    self._unknown_endpoints[attempt.dispatch.endpoint_id] = attempt.dispatch.pool
                decisions += self._decide(request.running_report(attempt, now).report, now)
        for request in held:
            if request.admitted and not request.running and not request.over:
                decisions += self._decide(request.queued_report(now).report, now)
        for told in endpoints.updates():
            if told.ready:
                decisions += self._handle_fleet_event(EndpointReady(told.endpoint.id), now)
        for request in held:
            if not request.admitted and not request.running and not request.over:
                request.admitted = True
                decisions += self._decide(RequestArrived(request.remaining_ticket(now)), now)
        return decisions

    # Requests

    def open_rejection(self) -> str | None:
        return None

    def open(self, request: HeldRequest, now: Instant) -> list[Decision]:
        request.admitted = True
        return self._decide(RequestArrived(request.ticket), now)

    def handle(self, update: RequestUpdate, now: Instant) -> list[Decision]:
        return self._decide(update.event if isinstance(update, FinishedAttempt) else update, now)

    def report_last_progress(self, attempt: HeldAttempt, now: Instant) -> None:
        """Does nothing, because this scheduler already knows all tokens."""

    def decline(self, declined: GrantDeclined, now: Instant) -> list[Decision]:
        ended = AttemptEnded(declined.request_id, declined.attempt, AttemptEnding.ABORTED, declined.reason)
        return self._decide(ended, now)

    # Policy, budgets and endpoints

    def update_settings(self, update: SettingsUpdate, now: Instant) -> list[Decision]:
        match update:
            case PolicyChanged(policy, policy_hash):
                return self._change_policy(policy, policy_hash, now)
            case BudgetsSynced() | SharesAssigned():
                return self._decide(update, now)
            case _:
                return self._handle_fleet_event(update, now)

    def _change_policy(self, policy: Policy, policy_hash: str, now: Instant) -> list[Decision]:
        return self._decide(
            PolicyChanged(island_policy(self.share, policy), f"{policy_hash} of {self.share.total}"), now
        )

    def _handle_fleet_event(self, event: FleetEvent, now: Instant) -> list[Decision]:
        """Handles an event about an endpoint that has slots in the share."""
        match event:
            case EndpointJoined(endpoint):
                own = island_endpoint(self.share, endpoint)
                if own is None or self._unknown_endpoints.get(own.id, own.pool) != own.pool:
                    return []
                self._joined[own.id] = None
                return self._decide(EndpointJoined(own), now)
            case EndpointLeaving(endpoint_id):
                self._joined.pop(endpoint_id, None)
            case EndpointReady(endpoint_id) | EndpointNotReady(endpoint_id) | EndpointProbed(endpoint_id):
                if endpoint_id not in self._joined:
                    return []
            case EndpointMetricsReported():
                # Attempts of other members must not count against this share.
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

    # Cell scheduler

    def is_lost(self, now: Instant) -> bool:
        return False

    def yields_to(self, stamp: Instant) -> bool:
        """Yields only to a scheduler that knows that this member is an island."""
        return stamp >= self._since

    def restart_session(self, now: Instant) -> None:
        """Does nothing. The report follows when this authority yields."""

    def receive(self, entry: SchedulerEntry, now: Instant) -> list[tuple[Duration, FromScheduler]]:
        return []

    def leave(self, now: Instant) -> None:
        """Does nothing, because there is no scheduler to inform."""

    # Status

    def collect_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        return self._scheduler.pop_endpoint_times(now)

    def summary(self) -> Summary:
        return self._scheduler.summary()
