"""Member: a gateway in a cell, and its mode.

A gateway owns its requests (`member_requests`) and delegates decisions to one authority (`authority`). The mode
determines which one, and only this module knows the mode:

- *seeking*: no scheduler has answered yet, and the member has not waited long enough to make decisions on its own.
  Requests wait.
- *following*: a scheduler answers. The member reports events to it and carries out its commands.
- *island*: no scheduler has answered for `island_after_ns`. The member makes its own decisions, within its share
  (`island`).

    seeking --answer--> following --silence--> island --answer to the island--> following
    seeking --silence--> island

Seeking and following use the same authority, the session with the scheduler (`remote_authority`). The member starts a
session when it follows a new epoch, stops being an island, or the scheduler requests one. It reports everything it
holds and then sends updates. It ignores entries from other epochs. Everything it sends includes the epoch it follows,
so other schedulers learn of that epoch (`scheduler_connection`).

The maximum age of a grant is computed from the timestamp that its entry returns and how long the scheduler held that
timestamp. A grant that may be too old, or is for an ended request, is declined and never started.

Known weakness: if the scheduler dies before it has acknowledged the admission of a request, the member reports the
request to the next scheduler as an arrival, and the policy may reject it.
"""

from dataclasses import replace

from headgate.core.commands import Abort, End
from headgate.core.engine_time import merge_times
from headgate.core.events import (
    AttemptEnded,
    AttemptsProgressed,
    BudgetsSynced,
    EndpointJoined,
    EndpointLeaving,
    EndpointMetricsReported,
    EndpointNotReady,
    EndpointProbed,
    EndpointReady,
    FirstToken,
    FleetEvent,
    PolicyChanged,
    RequestWithdrawn,
    SharesAssigned,
)
from headgate.core.summary import Summary
from headgate.hosts.cell.member.authority import Authority, SettingsUpdate
from headgate.hosts.cell.member.commands import MemberCommand, ModeChanged
from headgate.hosts.cell.member.held_requests import HeldRequests
from headgate.hosts.cell.member.island import IslandAuthority
from headgate.hosts.cell.member.member_requests import MemberRequests
from headgate.hosts.cell.member.remote_authority import RemoteAuthority
from headgate.hosts.cell.member.rules import MemberRules
from headgate.hosts.cell.member.scheduler_connection import SchedulerConnection
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import (
    VERSION,
    CellVersion,
    EndpointRemoved,
    EndpointUpdate,
    Epoch,
    FromScheduler,
    Grant,
    MemberEntry,
    MemberHead,
    SchedulerEntry,
    SchedulerHead,
    Share,
    SnapshotCoverage,
)
from headgate.hosts.cell.protocol.validation import TIMESTAMP_MAX
from headgate.hosts.cell.protocol.views import MemberMode
from headgate.hosts.cell.timing import DEFAULT_BOUNDS, DEFAULT_TIMING, CellBounds, Timing
from headgate.model.money import EndpointTime
from headgate.model.ticket import Ticket
from headgate.model.units import SECOND, Duration, Instant, RequestId, format_seconds

_WHOLE_SHARE = Share(0, 1)
_AFTER_LEAVE_NS = Duration(3_600 * SECOND)
"""Interval until the next wakeup after the member has left."""
_INCARNATION_STEP = 1 << 20

MemberEvent = (
    FirstToken
    | AttemptsProgressed
    | AttemptEnded
    | RequestWithdrawn
    | FleetEvent
    | PolicyChanged
    | BudgetsSynced
    | SharesAssigned
)


class Member:
    def __init__(
        self,
        name: str,
        incarnation: int,
        now: Instant,
        *,
        timing: Timing = DEFAULT_TIMING,
        bounds: CellBounds = DEFAULT_BOUNDS,
        share: Share = _WHOLE_SHARE,
        serves: bool = True,
        version: int = VERSION,
    ) -> None:
        """`share` applies until a scheduler assigns a share.

        A process with `serves` false holds no requests and needs no share.
        """
        self.name = name
        self.incarnation = incarnation
        self.mode = MemberMode.SEEKING
        self.endpoints = KnownEndpoints()
        self.rules = MemberRules(now)
        self._serves, self._version = serves, version
        self.lowest_version = version
        """Lowest protocol version in the cell, as far as this process knows."""
        self._held = HeldRequests(unsettled_max=bounds.unsettled_max)
        self._connection = SchedulerConnection(self._held, now, timing=timing, bounds=bounds)
        self._remote = RemoteAuthority(self._connection, self._held, self.rules, self.endpoints, share=share)
        self._authority: Authority = self._remote
        self._requests = MemberRequests(self._held, self._authority, held_max=bounds.held_max)
        self._pending_endpoint_times: tuple[EndpointTime, ...] = ()
        """Endpoint times from the last period as an island that have not been collected yet."""
        self._leaving = False
        self.lost_name = False
        """Whether another process has taken this name. If so, this member sends and reads nothing and acts alone."""

    # Events of this process

    def open(self, ticket: Ticket, now: Instant) -> list[MemberCommand]:
        """Opens a request."""
        return self._requests.open(replace(ticket, gateway=self.name), now)

    def handle(self, event: MemberEvent, now: Instant) -> list[MemberCommand]:
        """Handles an event about a request, an endpoint or the policy."""
        match event:
            case FirstToken():
                return self._requests.first_token(event, now)
            case AttemptsProgressed():
                return self._requests.progressed(event, now)
            case AttemptEnded():
                return self._requests.attempt_ended(event, now)
            case RequestWithdrawn():
                return self._requests.withdrawn(event, now)
            case PolicyChanged():
                self.rules.change(event)
                self._connection.urgent = True
            case BudgetsSynced():
                self.rules.budgets = event
            case SharesAssigned():
                self.rules.shares = event
            case EndpointJoined(endpoint):
                self.endpoints.apply_event(event)
                event = EndpointJoined(self.endpoints.by_id[endpoint.id])
            case (
                EndpointReady() | EndpointNotReady() | EndpointMetricsReported() | EndpointProbed() | EndpointLeaving()
            ):
                self.endpoints.apply_event(event)
        return self._update_settings(event, now)

    def _update_settings(self, news: SettingsUpdate, now: Instant) -> list[MemberCommand]:
        return self._requests.perform(self._authority.update_settings(news, now), now)

    def tick(self, now: Instant) -> list[MemberCommand]:
        """Makes the decisions that are due."""
        if self._authority.is_lost(now):
            return self._become_island(now)
        return self._requests.perform(self._authority.tick(now), now)

    def next_wakeup(self) -> Instant:
        """Returns when to call `tick` and `outgoing` next if no event occurs before then."""
        if self.has_left:
            return self._connection.after_last_entry(_AFTER_LEAVE_NS)
        return self._connection.next_wakeup(self._authority.next_wakeup())

    def leave(self, now: Instant) -> None:
        """Announces that this process holds no requests and is leaving."""
        assert not self.held, f"{self.name} must not leave while it holds {self.held} requests"
        self._leaving = True
        self._authority.leave(now)

    @property
    def has_left(self) -> bool:
        """Whether the departure has been acknowledged, or there is no scheduler to acknowledge it."""
        return self._leaving and (self.lost_name or self._authority.leave_acknowledged)

    # Policy changes

    def stage(self, policy_hash: str, now: Instant) -> list[MemberCommand]:
        """Stages a policy that this process has read, to be applied when all members have read it."""
        self._connection.urgent = True
        agreed = self.rules.stage(policy_hash, now)
        return [*agreed, *(self.rules.apply_staged() if self._authority.is_island else ())]

    # Modes

    def _become_island(self, now: Instant) -> list[MemberCommand]:
        """Switches to island mode because no scheduler answers. The next scheduler gets a report."""
        silence, share = format_seconds(Duration(now - self._connection.answered_at)), self.share
        self._remote.suspend()
        self._connection.urgent = True
        island = IslandAuthority(share, now)
        reason = f"no scheduler has responded for {silence}; using share {share.rank + 1} of {share.total}"
        changed = self._change_mode(MemberMode.ISLAND, island, reason)
        decisions = island.begin(self.rules, self.endpoints, self._held.requests.values(), now)
        return [changed, *self._requests.perform(decisions, now), *self.rules.apply_staged()]

    def _on_answer(self, now: Instant) -> list[MemberCommand]:
        """Handles an answer from a scheduler, which makes the decisions for all held requests from now on."""
        match self.mode:
            case MemberMode.FOLLOWING:
                return []
            case MemberMode.SEEKING:
                return [self._follow()]
            case MemberMode.ISLAND:
                self._pending_endpoint_times = merge_times(self.collect_endpoint_times(now))
                changed = self._follow()
                self._remote.restart_session(now)
                if self._leaving:
                    self._remote.leave(now)
                return [changed]

    def _follow(self) -> ModeChanged:
        number = self.followed_epoch.number if self.followed_epoch is not None else 0
        return self._change_mode(MemberMode.FOLLOWING, self._remote, f"the scheduler of epoch {number} is responding")

    def _change_mode(self, mode: MemberMode, authority: Authority, reason: str) -> ModeChanged:
        self.mode, self._authority = mode, authority
        self._requests.authority = authority
        return ModeChanged(mode, reason)

    # Messages from the scheduler

    def receive(self, entry: SchedulerEntry, now: Instant) -> list[MemberCommand]:
        head = entry.head
        if self.lost_name or not self._follows(head, now):
            return []
        out: list[MemberCommand] = [*self.rules.scheduler_applies(head.policy_hash)]
        if self.incarnation < head.incarnation < TIMESTAMP_MAX - 2 * _INCARNATION_STEP:
            # This machine's clock was set back between two starts of this process. This start is the later one.
            self.incarnation = _incarnation_after(head.incarnation, self.incarnation)
            self._authority.restart_session(now)
        if head.incarnation != self.incarnation or head.echo is None:
            return out
        if self._connection.record_answer(head, head.echo, now):
            if not self._authority.yields_to(head.echo.stamp):
                return out
            out += self._on_answer(now)
        for age_ns, message in self._authority.receive(entry, now):
            out += self._apply(message, age_ns, now)
        return out

    def reject_entry(self, head: SchedulerHead | None, now: Instant) -> None:
        """Rejects an invalid entry from the scheduler: starts a new session, or ignores the scheduler for a while.

        If there is no head, one of this member's own entries could not be encoded. That case is handled in the same
        way.
        """
        ours = head is None or (head.epoch == self.followed_epoch and head.incarnation == self.incarnation)
        if ours and (head is None or head.session == self._connection.session):
            self._connection.record_invalid_entry(now)
            self._authority.restart_session(now)

    def _follows(self, head: SchedulerHead, now: Instant) -> bool:
        """Returns whether the member follows this epoch. A higher epoch replaces the followed one."""
        epoch = head.epoch
        if epoch == self.followed_epoch:
            return True
        if self._connection.outranks(epoch):
            return False
        self._connection.follow(epoch, head.version)
        # A scheduler of an earlier version does not report the lowest version.
        self.lowest_version = min(self._version, head.version)
        self.rules.forget_scheduler_policy()
        self._authority.restart_session(now)
        return True

    def _apply(self, message: FromScheduler, age_ns: Duration, now: Instant) -> list[MemberCommand]:
        match message:
            case Grant():
                return self._apply_grant(message, age_ns, now)
            case Abort() | End():
                return self._requests.apply(message, None, now)
            case EndpointUpdate() | EndpointRemoved():
                self.endpoints.apply_update(message)
            case Share():
                self._remote.share = message
            case SnapshotCoverage(serial):
                self._held.mark_covered(serial)
            case CellVersion(version):
                self.lowest_version = version
        return []

    def _apply_grant(self, granted: Grant, age_ns: Duration, now: Instant) -> list[MemberCommand]:
        why = self._requests.start_rejection(granted.dispatch)
        if why is None and age_ns > granted.start_within_ns:
            why = (
                f"the grant may be {format_seconds(age_ns)} old; the limit is {format_seconds(granted.start_within_ns)}"
            )
        if why is None:
            return self._requests.apply(granted.dispatch, granted.dispatch_snapshot, now)
        return self._requests.decline(granted.dispatch, why, now)

    # Outgoing messages

    def outgoing(self, now: Instant) -> list[MemberEntry]:
        """Returns the entries for the scheduler. Empty if nothing is due."""
        taken = self._connection.pop_entry(now)
        if taken is None or self.has_left or self.lost_name:
            return []
        first, messages = taken
        return [MemberEntry(self._head(first, now), messages)]

    def _head(self, first: int, now: Instant) -> MemberHead:
        talk = self._connection
        return MemberHead(
            self.name,
            self.incarnation,
            talk.followed_epoch,
            self._authority.is_island,
            talk.session,
            talk.outbound.base,
            talk.outbound.first,
            first,
            talk.inbound.last_received,
            now,
            talk.echo(now),
            self._authority.share,
            self.rules.hash,
            self._serves,
            self._version,
            staged_hash=self.rules.staged_hash,
        )

    # Status

    @property
    def followed_epoch(self) -> Epoch | None:
        """Epoch that this member follows, or would follow."""
        return self._connection.followed_epoch

    @property
    def share(self) -> Share:
        """Share last assigned by a scheduler."""
        return self._remote.share

    @property
    def island_share(self) -> Share | None:
        """Share that this member uses as an island. None if it is not an island."""
        return self._authority.share if self._authority.is_island else None

    @property
    def held(self) -> int:
        """Number of open requests, and of ended requests with attempts that are still running."""
        return len(self._held.requests)

    @property
    def unsettled(self) -> int:
        return len(self._held.unsettled)

    def unsettled_ids(self) -> tuple[RequestId, ...]:
        return tuple(self._held.unsettled)

    @property
    def unacknowledged(self) -> int:
        return len(self._connection.outbound)

    def unacknowledged_ns(self, now: Instant) -> Duration:
        """Returns the age of the oldest unacknowledged message."""
        return self._connection.outbound.oldest_ns(now)

    def collect_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """Returns how endpoints spent this member's share of their time while it was an island."""
        untaken, self._pending_endpoint_times = self._pending_endpoint_times, ()
        return untaken + self._authority.collect_endpoint_times(now)

    def summary(self) -> Summary:
        return self._authority.summary()


def _incarnation_after(latest: int, own: int) -> int:
    """Returns a later incarnation that keeps the low bits of the process's own.

    Two processes that use the name of a third one therefore choose different incarnations.
    """
    return (latest // _INCARNATION_STEP + 1) * _INCARNATION_STEP + own % _INCARNATION_STEP
