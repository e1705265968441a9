"""Node: the logic of one process in a cell, without I/O.

A process can be a gateway, a candidate for scheduler, or both. While it is elected, it is also the scheduler. The node
combines these parts and ensures that the scheduler decides nothing after its lease has ended. `outgoing` returns the
messages to send; the caller chooses when to send them.
"""

from collections.abc import Callable, Sequence

from headgate.core.engine_time import merge_times
from headgate.core.events import BudgetsSynced, FleetEvent, PolicyChanged, SharesAssigned
from headgate.core.summary import Summary
from headgate.hosts.cell.leader.election import Election
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.member.commands import MemberCommand
from headgate.hosts.cell.member.member import Member, MemberEvent
from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import (
    VERSION,
    Epoch,
    Lease,
    MemberEntry,
    MemberHead,
    SchedulerEntry,
    SchedulerHead,
    Share,
    Snapshot,
    SnapshotId,
)
from headgate.hosts.cell.protocol.views import CellView
from headgate.hosts.cell.timing import DEFAULT_BOUNDS, DEFAULT_TIMING, CellBounds, Timing
from headgate.model.message import message
from headgate.model.money import BudgetStatus, EndpointTime
from headgate.model.policy import Policy
from headgate.model.ticket import Ticket
from headgate.model.units import MILLISECOND, Duration, Instant, TenantId, after
from headgate.ports.observer import Observer

_READ_NS_MAX = Duration(200 * MILLISECOND)
"""Maximum time that a new scheduler waits for the last snapshot from the store."""


_WHOLE_SHARE = Share(0, 1)


@message
class Outgoing:
    """Messages for the store."""

    inbox: list[MemberEntry]
    """Entries for the scheduler."""
    outboxes: list[tuple[str, SchedulerEntry]]
    """Entries for members, with the member's name."""
    claim: Claim | None
    """Claim of the lease. The result is passed to `handle_lease`."""
    snapshot: Snapshot | None
    """Snapshot to store unless the store has a newer one. The result is passed to `handle_stored_snapshot`."""
    read_snapshot: bool
    """Whether to read the last snapshot, for `handle_read_snapshot`."""
    release: Epoch | None = None
    """Lease to release after everything else is sent. Returned only once."""


class _LatestSnapshot:
    """Newest snapshot that this process has read, or taken as the scheduler."""

    __slots__ = ("received_at", "snapshot")

    def __init__(self, now: Instant) -> None:
        self.snapshot: Snapshot | None = None
        self.received_at = now

    def keep_if_newer(self, snapshot: Snapshot, now: Instant) -> None:
        kept, new = self.snapshot, snapshot.at
        if kept is None or (new.epoch, new.number) > (kept.at.epoch, kept.at.number):
            self.snapshot, self.received_at = snapshot, now


class Node:
    def __init__(
        self,
        name: str,
        incarnation: int,
        now: Instant,
        fresh_id: Callable[[], str],
        *,
        timing: Timing = DEFAULT_TIMING,
        bounds: CellBounds = DEFAULT_BOUNDS,
        share: Share = _WHOLE_SHARE,
        candidate: bool = True,
        serves: bool = True,
        observers: Sequence[Observer] = (),
        version: int = VERSION,
    ) -> None:
        """`observers` see only the decisions of this process as the cell's scheduler.

        With an earlier `version`, the node sends only what that version sends.
        """
        self._version = version
        self._timing, self._bounds, self._observers = timing, bounds, tuple(observers)
        self.member = Member(
            name, incarnation, now, timing=timing, bounds=bounds, share=share, serves=serves, version=version
        )
        self.leader: Leader | None = None
        self._election = Election(timing, fresh_id) if candidate else None
        self._rules = PolicyChanged(Policy(), "")
        self._budgets: BudgetsSynced | None = None
        self._latest = _LatestSnapshot(now)
        self._read_at: Instant | None = None
        """Time at which a snapshot was last read."""
        self._elected_at: Instant | None = None
        """Time at which this process was elected, if its scheduler has not started yet."""
        self._read_answered = False
        self._release: Epoch | None = None
        self._pending_endpoint_times: tuple[EndpointTime, ...] = ()
        """Endpoint times of earlier schedulers in this process that have not been collected yet."""
        self._led_at = now
        """Last time at which this process was known to be the scheduler."""
        self._final_snapshot: Snapshot | None = None
        """Final snapshot of a scheduler that has stepped down."""

    # Events of this process

    def open(self, ticket: Ticket, now: Instant) -> list[MemberCommand]:
        return self.member.open(ticket, now)

    def handle(self, event: MemberEvent, now: Instant) -> list[MemberCommand]:
        leader = self._current_leader(now)
        if isinstance(event, PolicyChanged):
            self._rules = event
        if isinstance(event, BudgetsSynced):
            self._budgets = event
        if leader is not None and isinstance(event, PolicyChanged | BudgetsSynced | SharesAssigned | FleetEvent):
            leader.handle(event, now)
        return self.member.handle(event, now)

    def tick(self, now: Instant) -> list[MemberCommand]:
        leader = self._current_leader(now)
        if leader is not None:
            leader.tick(now)
        orders = self.member.tick(now)
        if leader is not None and self._should_apply_staged(leader, now):
            orders += self.member.rules.apply_staged()
        return orders

    # Policy changes

    def stage(self, policy_hash: str, now: Instant) -> list[MemberCommand]:
        """Stages a policy. `PolicyAgreed` is returned when all members have read it and this process must apply it."""
        orders = self.member.stage(policy_hash, now)
        leader = self._current_leader(now)
        if leader is not None and self._should_apply_staged(leader, now):
            orders += self.member.rules.apply_staged()
        return orders

    def _should_apply_staged(self, leader: Leader, now: Instant) -> bool:
        """Returns whether this process's scheduler, and with it the cell, should apply the staged policy."""
        since = self.member.rules.staged_since()
        if since is None or leader.gathering:
            return False
        late = now >= after(since, self._timing.stage_ns_max)
        return late or leader.all_have_policy(self.member.rules.staged_hash)

    # Shutdown

    def step_down(self, now: Instant, *, until: Instant | None = None) -> bool:
        """Steps down as scheduler and candidate or, with `until`, if it decides, until then. Returns whether it did."""
        leader = self._current_leader(now)
        decided = leader is not None and not leader.gathering
        if self._election is None or (until is not None and not decided):
            return False
        self._release = self._election.step_down(now) if until is None else self._election.pause(now, until)
        self._final_snapshot = None if leader is None else leader.final_snapshot(now)
        if leader is not None:
            self._save_endpoint_times(leader, now)
        self._election = None if until is None else self._election
        self.leader = self._elected_at = None
        return decided

    def lose_name(self, now: Instant) -> None:
        """Stops participating in the cell because another process has taken this name."""
        self.step_down(now)
        self.member.lost_name = True

    def leave(self, now: Instant) -> None:
        """Leaves the cell. Must be called after the last request has ended."""
        self.step_down(now)
        self.member.leave(now)

    @property
    def has_left(self) -> bool:
        """Whether the departure has been acknowledged, or there is no scheduler to acknowledge it."""
        return self.member.has_left and self._release is None

    # Messages from other processes

    def from_scheduler(self, entry: SchedulerEntry, now: Instant) -> list[MemberCommand]:
        if self._election is not None:
            self._election.observe_epoch(entry.head.epoch)
            self._current_leader(now)
        return self.member.receive(entry, now)

    def from_member(self, entry: MemberEntry, now: Instant) -> None:
        if self._election is not None and entry.head.followed_epoch is not None:
            self._election.observe_epoch(entry.head.followed_epoch)
        if (leader := self._current_leader(now)) is not None:
            leader.receive(entry, now)

    def reject_member_entry(self, head: MemberHead, reason: str, now: Instant) -> None:
        """Rejects an invalid entry from a member."""
        if (leader := self._current_leader(now)) is not None:
            leader.reject_entry(head, reason, now)

    def reject_scheduler_entry(self, head: SchedulerHead, now: Instant) -> None:
        """Rejects an invalid entry from a scheduler."""
        self.member.reject_entry(head, now)

    def drop_session(self, member: str | None, reason: str, now: Instant) -> None:
        """Drops the session of an entry that cannot be encoded. It was for `member`, or for the scheduler if None."""
        if member is None:
            self.member.reject_entry(None, now)
        elif (leader := self._current_leader(now)) is not None:
            leader.fencing.drop_session(member, reason, now)

    def pop_rejections(self) -> list[str]:
        """Returns the rejections by this process's scheduler since the last call, for the log."""
        return [] if self.leader is None else self.leader.fencing.pop_rejections()

    def handle_lease(self, claim: Claim, lease: Lease, now: Instant) -> None:
        if self._election is not None and not self._election.is_paused(now):
            self._election.handle_lease(claim, lease, now)
            self._current_leader(now)
        elif lease.epoch == claim.epoch:
            self._release = claim.epoch  # The claim was sent before this process stepped down.

    def handle_stored_snapshot(self, at: SnapshotId, kept: SnapshotId, now: Instant) -> None:
        """Handles the result of writing the snapshot `at`. If `kept` is newer, our epoch is too low."""
        if self._election is not None and kept != at:
            self._election.observe_snapshot_epoch(kept.epoch, is_leader=False)
        if (leader := self._current_leader(now)) is not None and kept == at:
            leader.snapshot_stored(at, now)

    def handle_read_snapshot(self, snapshot: Snapshot | None, now: Instant) -> None:
        """Handles a snapshot from the store, which may be missing or older than one that was read before."""
        self._read_answered = True
        if snapshot is None:
            return
        # Must be the first step, because a scheduler that has waited for this snapshot starts from it.
        self._latest.keep_if_newer(snapshot, now)
        if self._election is not None:
            self._election.observe_snapshot_epoch(snapshot.at.epoch, is_leader=self.leader is not None)
            self._current_leader(now)

    # Scheduler role

    @property
    def is_leader(self) -> bool:
        return self.leader is not None

    def _current_leader(self, now: Instant) -> Leader | None:
        """Returns the scheduler if this process is the scheduler now."""
        epoch = self._election.holds(now) if self._election is not None else None
        if self.leader is not None and self.leader.epoch != epoch:
            # The lease ended at an unknown time, so endpoint times are counted only up to when it was last known to be
            # valid.
            self._save_endpoint_times(self.leader, self._led_at)
            self.leader = None
        if epoch is None:
            self._elected_at = None
        elif self.leader is None:
            if self._elected_at is None:
                self._elected_at, self._read_at, self._read_answered = now, None, False
            if self._read_answered or now >= after(self._elected_at, _READ_NS_MAX):
                self._elected_at = None
                self.leader = Leader(
                    epoch,
                    self._rules,
                    self.member.endpoints,
                    self._latest.snapshot,
                    now,
                    snapshot_age_ns=Duration(now - self._latest.received_at),
                    timing=self._timing,
                    bounds=self._bounds,
                    observers=self._observers,
                    budgets=self._budgets,
                    version=self._version,
                    shares=self.member.rules.shares,
                )
        if self.leader is not None:
            self._led_at = now
        return self.leader

    def _save_endpoint_times(self, leader: Leader, until: Instant) -> None:
        self._pending_endpoint_times = merge_times(
            (*self._pending_endpoint_times, *leader.collect_endpoint_times(until))
        )

    # Outgoing messages

    def outgoing(self, now: Instant) -> Outgoing:
        leader = self._current_leader(now)
        claim = self._election.next_claim(now) if self._election is not None else None
        read = self._reads_snapshots and now >= self._read_due(now)
        if read:
            self._read_at = now
        write, self._final_snapshot = self._final_snapshot if leader is None else leader.take_snapshot(now), None
        if write is not None:
            # A scheduler does not read snapshots. It starts from this one if it is elected again and the store has lost
            # it.
            self._latest.keep_if_newer(write, now)
        release, self._release = self._release, None
        inbox, outboxes = self.member.outgoing(now), [] if leader is None else leader.outgoing(now)
        return Outgoing(inbox, outboxes, claim, write, read, release)

    @property
    def _reads_snapshots(self) -> bool:
        """Whether this process reads snapshots. Candidates do, and so does a scheduler until its first read is done."""
        return self._election is not None and (self.leader is None or not self._read_answered)

    def _read_due(self, now: Instant) -> Instant:
        return now if self._read_at is None else after(self._read_at, self._timing.snapshot_ns)

    def next_wakeup(self, now: Instant) -> Instant:
        """Returns when to call `tick` and `outgoing` next if no event occurs before then."""
        if self._release is not None:
            return now
        soonest = self.member.next_wakeup()
        if self._election is not None:
            soonest = min(soonest, self._election.next_wakeup(now))
            if self._reads_snapshots:
                soonest = min(soonest, self._read_due(now))
        if self._elected_at is not None:
            soonest = min(soonest, after(self._elected_at, _READ_NS_MAX))
        if self.leader is None:
            return soonest
        if (since := self.member.rules.staged_since()) is not None and not self.leader.gathering:
            ready = self.leader.all_have_policy(self.member.rules.staged_hash)
            soonest = min(soonest, now if ready else after(since, self._timing.stage_ns_max))
        return min(soonest, self.leader.next_wakeup())

    # Status

    def view(self, now: Instant) -> CellView:
        member, leader = self.member, self._current_leader(now)
        return CellView(
            mode=member.mode,
            epoch=member.followed_epoch,
            is_leader=leader is not None,
            share=member.island_share or member.share,
            unacknowledged=member.unacknowledged,
            held_requests=member.held,
            unsettled_requests=member.unsettled,
            staged_hash=member.rules.staged_hash,
            is_gathering=leader is not None and leader.gathering,
            lowest_version=member.lowest_version,
            members={} if leader is None else leader.members(),
        )

    def collect_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """Returns how endpoints have spent their time since the last call, for the part this process scheduled.

        If a scheduler cannot reach an island, both count its share, so the sum exceeds the actual time.
        """
        leader, untaken = self._current_leader(now), self._pending_endpoint_times
        self._pending_endpoint_times = ()
        times = () if leader is None or leader.gathering else leader.collect_endpoint_times(now)
        return merge_times((*untaken, *times, *self.member.collect_endpoint_times(now)))

    def budgets_left(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetStatus, ...] | None:
        """Returns the state of budgets for the whole cell, or None if another process knows it."""
        leader = self._current_leader(now)
        return None if leader is None or leader.gathering else leader.budgets_left(now, tenant)

    def summary(self) -> Summary:
        """Returns the most complete summary: of the cell's scheduler, of the island, or of the member."""
        if self.leader is not None and not self.leader.gathering:
            return self.leader.summary()
        return self.member.summary()
