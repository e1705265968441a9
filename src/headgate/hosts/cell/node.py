"""What does one process of a cell do?

It may be a gateway, a candidate to be the scheduler, or both, and while it is elected it is the scheduler too. This
joins the parts, and sees to it that nothing is decided when the lease is over. What is to be carried to others is asked
for with `outgoing`; who carries it decides how much goes at once.
"""

from collections.abc import Callable, Sequence

from headgate.core.engine_time import together
from headgate.core.events import BudgetsTold, FleetEvent, PolicyChanged
from headgate.core.summary import Summary
from headgate.hosts.cell.leader.election import Election
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.member.member import Member, MemberEvent
from headgate.hosts.cell.member.orders import Order
from headgate.hosts.cell.protocol.lease import Claim
from headgate.hosts.cell.protocol.messages import (
    Epoch,
    Lease,
    MemberEntry,
    MemberHead,
    SchedulerEntry,
    SchedulerHead,
    Share,
    Snapshot,
    Snapshots,
)
from headgate.hosts.cell.protocol.views import View
from headgate.hosts.cell.timing import USUAL_BOUNDS, USUAL_TIMING, Bounds, Timing
from headgate.model.message import message
from headgate.model.money import BudgetLeft, EndpointTime
from headgate.model.policy import Policy
from headgate.model.ticket import Ticket
from headgate.model.units import MILLISECOND, Duration, Instant, TenantId, after
from headgate.ports.observer import Observer

_READ_NS_MAX = Duration(200 * MILLISECOND)
"""A new scheduler waits no longer than this for the store to give it the last snapshot."""


_ALONE = Share(0, 1)


@message
class Outgoing:
    """What is to be carried to others."""

    inbox: list[MemberEntry]
    """For whoever is the scheduler."""
    outboxes: list[tuple[str, SchedulerEntry]]
    """For each of these members."""
    claim: Claim | None
    """To be asked of the store; the answer goes to `lease_answered`."""
    write: Snapshot | None
    """To be put where no newer one is; that it is there is told to `snapshot_kept`."""
    read: bool
    """Whether the last snapshot is to be read, for `snapshot_read`."""
    release: Epoch | None = None
    """The lease that is to be given up, after all else is carried; this is said once."""


class _Latest:
    """The newest snapshot that a process has read, or made as the scheduler."""

    __slots__ = ("came_at", "snapshot")

    def __init__(self, now: Instant) -> None:
        self.snapshot: Snapshot | None = None
        self.came_at = now

    def keep_if_newer(self, snapshot: Snapshot, now: Instant) -> None:
        kept, new = self.snapshot, snapshot.at
        if kept is None or (new.epoch, new.number) > (kept.at.epoch, kept.at.number):
            self.snapshot, self.came_at = snapshot, now


class Node:
    def __init__(
        self,
        name: str,
        incarnation: int,
        now: Instant,
        fresh_id: Callable[[], str],
        *,
        timing: Timing = USUAL_TIMING,
        bounds: Bounds = USUAL_BOUNDS,
        share: Share = _ALONE,
        candidate: bool = True,
        serves: bool = True,
        observers: Sequence[Observer] = (),
    ) -> None:
        """`observers` see what is decided here as the scheduler of the cell, and nothing else."""
        self._timing, self._bounds, self._observers = timing, bounds, tuple(observers)
        self.member = Member(
            name,
            incarnation,
            now,
            timing=timing,
            bounds=bounds,
            share=share,
            serves=serves,
        )
        self.leader: Leader | None = None
        self._election = Election(timing, fresh_id) if candidate else None
        self._rules = PolicyChanged(Policy(), "")
        self._budgets: BudgetsTold | None = None
        self._latest = _Latest(now)
        self._read_at: Instant | None = None
        """When the store was asked for it."""
        self._elected_at: Instant | None = None
        """Since when an election is won whose scheduler has yet to begin."""
        self._read_answered = False
        self._release: Epoch | None = None
        self._untaken: tuple[EndpointTime, ...] = ()
        """How endpoints spent their time under earlier schedulers here, as far as nobody has asked."""
        self._led_at = now
        """When this process was last known to be the scheduler."""
        self._legacy: Snapshot | None = None
        """What a scheduler that has resigned leaves to the next one."""

    # What happens here

    def open(self, ticket: Ticket, now: Instant) -> list[Order]:
        return self.member.open(ticket, now)

    def tell(self, event: MemberEvent, now: Instant) -> list[Order]:
        leader = self._leader(now)
        if isinstance(event, PolicyChanged):
            self._rules = event
        if isinstance(event, BudgetsTold):
            self._budgets = event
        if leader is not None and isinstance(event, PolicyChanged | BudgetsTold | FleetEvent):
            leader.tell(event, now)
        return self.member.tell(event, now)

    def tick(self, now: Instant) -> list[Order]:
        leader = self._leader(now)
        if leader is not None:
            leader.tick(now)
        orders = self.member.tick(now)
        if leader is not None and self._agrees(leader, now):
            orders += self.member.rules.agree()
        return orders

    # A change of rules

    def stage(self, policy_hash: str, now: Instant) -> list[Order]:
        """The rules of this hash have been read here. `PolicyAgreed` says when to go by them.

        That is when all members have read them, and the scheduler first. What is agreed on is told as `PolicyChanged`.
        """
        orders = self.member.stage(policy_hash, now)
        leader = self._leader(now)
        if leader is not None and self._agrees(leader, now):
            orders += self.member.rules.agree()
        return orders

    def _agrees(self, leader: Leader, now: Instant) -> bool:
        """Whether it is time for the scheduler of this process, and so for all, to go by what was read here."""
        since = self.member.rules.waiting_since()
        if since is None or leader.gathering:
            return False
        late = now >= after(since, self._timing.stage_ns_max)
        return late or leader.all_are_ready_for(self.member.rules.staged)

    # Going

    def resign(self, now: Instant) -> None:
        """Gives up being the scheduler at once, and is no candidate from then on."""
        if self._election is None:
            return
        leader, self._release = self._leader(now), self._election.give_up(now)
        self._legacy = None if leader is None else leader.last_snapshot(now)
        if leader is not None:
            self._keep_times(leader, now)
        self.leader = self._election = self._elected_at = None

    def lose_name(self, now: Instant) -> None:
        """Another process has taken this name: stop taking part in the cell."""
        self.resign(now)
        self.member.nameless = True

    def leave(self, now: Instant) -> None:
        """After the last request has ended: this process goes."""
        self.resign(now)
        self.member.leave(now)

    @property
    def left(self) -> bool:
        """Whether all who have to know that it goes do, or nobody is there to be told."""
        return self.member.left and self._release is None

    # What others say

    def from_scheduler(self, entry: SchedulerEntry, now: Instant) -> list[Order]:
        if self._election is not None:
            self._election.heard_of(entry.head.epoch)
            self._leader(now)
        return self.member.receive(entry, now)

    def from_member(self, entry: MemberEntry, now: Instant) -> None:
        if self._election is not None and entry.head.bound is not None:
            self._election.heard_of(entry.head.bound)
        if (leader := self._leader(now)) is not None:
            leader.receive(entry, now)

    def refuse_member(self, head: MemberHead, why: str, now: Instant) -> None:
        """Reject an invalid entry of a member."""
        if (leader := self._leader(now)) is not None:
            leader.refuse(head, why, now)

    def refuse_scheduler(self, head: SchedulerHead, now: Instant) -> None:
        """Reject an invalid entry of a scheduler."""
        self.member.refuse(head, now)

    def drop_session(self, member: str | None, why: str, now: Instant) -> None:
        """An entry for this member cannot be encoded; without a name, an entry of this process for the scheduler."""
        if member is None:
            self.member.refuse(None, now)
        elif (leader := self._leader(now)) is not None:
            leader.trust.drop_session(member, why, now)

    def take_complaints(self) -> list[str]:
        """Rejections by the scheduler of this process since the last call, for the log."""
        return [] if self.leader is None else self.leader.trust.take_complaints()

    def lease_answered(self, claim: Claim, lease: Lease, now: Instant) -> None:
        if self._election is not None:
            self._election.answered(claim, lease, now)
            self._leader(now)
        elif lease.epoch == claim.epoch:
            # It was asked for before we resigned.
            self._release = claim.epoch

    def snapshot_kept(self, at: Snapshots, kept: Snapshots, now: Instant) -> None:
        """The store was asked to write `at` and has `kept` now. If that is a newer one, our epoch is too low."""
        if self._election is not None and kept != at:
            self._election.read_snapshot_of(kept.epoch, leads=False)
        if (leader := self._leader(now)) is not None and kept == at:
            leader.snapshot_written(at, now)

    def snapshot_read(self, snapshot: Snapshot | None, now: Instant) -> None:
        """The store's copy may be old, or none: what was read before counts if it is newer."""
        self._read_answered = True
        if snapshot is None:
            return
        # Kept before anything else happens: a scheduler that has waited for this snapshot begins with it.
        self._latest.keep_if_newer(snapshot, now)
        if self._election is not None:
            self._election.read_snapshot_of(snapshot.at.epoch, leads=self.leader is not None)
            self._leader(now)

    # Being the scheduler

    @property
    def leads(self) -> bool:
        return self.leader is not None

    def _leader(self, now: Instant) -> Leader | None:
        """The scheduler, if this process is it at this moment."""
        epoch = self._election.holds(now) if self._election is not None else None
        if self.leader is not None and self.leader.epoch != epoch:
            # Since when it was none any more nobody knows: what came after it was one for sure is not counted.
            self._keep_times(self.leader, self._led_at)
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
                    snapshot_age_ns=Duration(now - self._latest.came_at),
                    timing=self._timing,
                    bounds=self._bounds,
                    observers=self._observers,
                    budgets=self._budgets,
                )
        if self.leader is not None:
            self._led_at = now
        return self.leader

    def _keep_times(self, leader: Leader, until: Instant) -> None:
        self._untaken = together((*self._untaken, *leader.take_endpoint_times(until)))

    # What is to be carried

    def outgoing(self, now: Instant) -> Outgoing:
        leader = self._leader(now)
        claim = self._election.ask(now) if self._election is not None else None
        read = self._reads and now >= self._read_due(now)
        if read:
            self._read_at = now
        write, self._legacy = self._legacy if leader is None else leader.take_snapshot(now), None
        if write is not None:
            # A scheduler reads no snapshots. If it is elected again and the store has lost this one, it begins with it.
            self._latest.keep_if_newer(write, now)
        release, self._release = self._release, None
        return Outgoing(
            self.member.outgoing(now),
            [] if leader is None else leader.outgoing(now),
            claim,
            write,
            read,
            release,
        )

    @property
    def _reads(self) -> bool:
        """Whether this process reads snapshots: every candidate does, and a scheduler that has not read one yet."""
        return self._election is not None and (self.leader is None or not self._read_answered)

    def _read_due(self, now: Instant) -> Instant:
        return now if self._read_at is None else after(self._read_at, self._timing.snapshot_ns)

    def next_wakeup(self, now: Instant) -> Instant:
        """When `tick` and `outgoing` are to be called again, if nothing happens before."""
        if self._release is not None:
            return now
        soonest = self.member.next_wakeup()
        if self._election is not None:
            soonest = min(soonest, self._election.next_wakeup(now))
            if self._reads:
                soonest = min(soonest, self._read_due(now))
        if self._elected_at is not None:
            soonest = min(soonest, after(self._elected_at, _READ_NS_MAX))
        if self.leader is None:
            return soonest
        if (since := self.member.rules.waiting_since()) is not None and not self.leader.gathering:
            ready = self.leader.all_are_ready_for(self.member.rules.staged)
            soonest = min(soonest, now if ready else after(since, self._timing.stage_ns_max))
        return min(soonest, self.leader.next_wakeup())

    # For those who look

    def view(self, now: Instant) -> View:
        member, leader = self.member, self._leader(now)
        return View(
            mode=member.mode,
            epoch=member.bound,
            leads=leader is not None,
            share=member.island_share or member.share,
            unacknowledged=member.unacknowledged,
            held=member.held,
            unsettled=member.unsettled,
            staged=member.rules.staged,
            members={} if leader is None else leader.members(),
        )

    def take_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """How endpoints have spent their time since this was last asked, as far as it was decided here; each once.

        That is all of their time while this process is the scheduler, and its share of it while it is an island. Where
        a scheduler cannot reach an island both count: of that time more is told of than there was.
        """
        leader, untaken = self._leader(now), self._untaken
        self._untaken = ()
        times = () if leader is None or leader.gathering else leader.take_endpoint_times(now)
        return together((*untaken, *times, *self.member.take_endpoint_times(now)))

    def budgets_left(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetLeft, ...] | None:
        """Where budgets stand, for the whole cell; None where another process knows."""
        leader = self._leader(now)
        return None if leader is None or leader.gathering else leader.budgets_left(now, tenant)

    def summary(self) -> Summary:
        """By whoever knows the most of it here: the scheduler of the cell, the island, or the member alone."""
        if self.leader is not None and not self.leader.gathering:
            return self.leader.summary()
        return self.member.summary()
