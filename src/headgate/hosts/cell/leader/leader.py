"""What does the elected scheduler of a cell do beside deciding?

It carries the members' news to one `Scheduler` and that one's orders to the members, as a host in one process does, and
it knows how far the story of each is known. Theory of operation:

- *Gathering.* A new scheduler grants nothing until those that it knows of have reported what they hold and have shown
  that they hear it, or a bound has passed. Its counters come from the last snapshot; what the snapshot does not have is
  counted with the reports (`adoption`).
- *Sessions.* Each begins with a report, which replaces what was known of the member. What follows is news of it: of
  each message it is known whether it was taken in (`link`), and decisions go the other way (`news`, `book`,
  `outboxes`).
- *Absence.* For a member that does not answer its share is kept (`absence`, `reserve`).
- *Snapshots.* Every `snapshot_ns` the counters are told to whoever comes after (`snapshots`).

Whether this process may decide at all is not said here (`election`): whoever owns this asks before every call.

What is not ideal: a request that is taken out of the book and put in again, since its member was absent or declined a
grant, counts once more against its tenant's requests per minute.
"""

from collections.abc import Sequence
from dataclasses import replace

from headgate.core.events import (
    BudgetsTold,
    EndpointJoined,
    EndpointMeasured,
    FleetEvent,
    PolicyChanged,
    TimerFired,
)
from headgate.core.summary import Summary
from headgate.hosts.cell.leader.absence import Absence
from headgate.hosts.cell.leader.adoption import Adoption
from headgate.hosts.cell.leader.book import Book
from headgate.hosts.cell.leader.news import MemberNews
from headgate.hosts.cell.leader.outboxes import Outboxes
from headgate.hosts.cell.leader.peers import Peer, Said
from headgate.hosts.cell.leader.reserve import Reserve
from headgate.hosts.cell.leader.roster import Roster
from headgate.hosts.cell.leader.snapshots import SnapshotWriter, restore
from headgate.hosts.cell.leader.trust import Trust
from headgate.hosts.cell.protocol.endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import (
    Epoch,
    MemberEntry,
    MemberHead,
    ReportDone,
    SchedulerEntry,
    Snapshot,
    Snapshots,
)
from headgate.hosts.cell.protocol.views import MemberView, Standing
from headgate.hosts.cell.timing import USUAL_BOUNDS, USUAL_TIMING, Bounds, Timing
from headgate.model.money import BudgetLeft, EndpointTime
from headgate.model.units import Duration, EndpointId, Instant, RequestId, TenantId, after
from headgate.ports.observer import Observer


class Leader:
    def __init__(
        self,
        epoch: Epoch,
        rules: PolicyChanged,
        endpoints: KnownEndpoints,
        snapshot: Snapshot | None,
        now: Instant,
        *,
        snapshot_age_ns: Duration = Duration(0),
        timing: Timing = USUAL_TIMING,
        bounds: Bounds = USUAL_BOUNDS,
        observers: Sequence[Observer] = (),
        budgets: BudgetsTold | None = None,
    ) -> None:
        self.epoch = epoch
        self._budgets = budgets
        self.gathering = True
        self._endpoints = endpoints
        self._snapshot, self._snapshot_age_ns = snapshot, snapshot_age_ns
        self._timing, self._bounds = timing, bounds
        self._began_at = now
        self._book = Book(epoch.number, start_within_ns=timing.start_within_ns, observers=tuple(observers))
        self._roster = Roster(() if snapshot is None else snapshot.members, now, timing=timing)
        self._reserve = Reserve(self._book, self._roster, endpoints, rules)
        self._absence = Absence(self._book, self._roster, self._reserve, now, timing=timing, bounds=bounds)
        began_with = None if snapshot is None else snapshot.at
        self._adoption = Adoption(self._book, self._reserve, endpoints, epoch=epoch.number, began_with=began_with)
        self._snapshots = SnapshotWriter(self._book, self._roster, self._reserve, now, snapshot_ns=timing.snapshot_ns)
        self._book.to_tell |= self._roster.peers
        self.trust = Trust(self._book, self._roster, self._absence, fence_ns=timing.lost_ns, bounds=bounds)
        self._news = MemberNews(self._book, self._roster, self._absence)
        self._outboxes = Outboxes(epoch, self._book, self._roster, now, timing=timing, bounds=bounds)

    # What members say

    def receive(self, entry: MemberEntry, now: Instant) -> None:
        if not self.gathering:
            self._absence.watch(now)
        peer = self._meet(entry.head, now)
        if peer is None:
            return
        self._take_in(peer, entry, now)
        if peer.urgent:
            self._book.to_tell[peer.name] = peer

    def _take_in(self, peer: Peer, entry: MemberEntry, now: Instant) -> None:
        head = entry.head
        latest = peer.heard(head, now, ours=head.bound == self.epoch)
        if head.bound != self.epoch:
            peer.urgent = True
            return
        if latest and head.island and peer.standing is Standing.PRESENT:
            self._absence.lose_sight(peer, now)
        if peer.fenced(now):
            return
        if head.island or head.session <= peer.wanted or head.session < peer.session:
            peer.urgent = peer.urgent or head.session <= peer.wanted
            return
        peer.begin_session_if_new(head)
        if head.kept > peer.inbound.taken + 1:
            # We are not the one who has taken in what came before.
            peer.wanted, peer.urgent = head.session, True
            return
        for serial, age_ns, said in peer.inbound.take(head.first, entry.messages):
            peer.urgent = True
            if (problem := self.trust.out_of_place(peer, said)) is not None:
                self.trust.refuse(peer, problem, now)
                return
            self._hear(peer, (serial, Instant(now - age_ns), said), now)
            if self._roster.peers.get(peer.name) is not peer:
                # The member has left; no more messages follow.
                return
        peer.acknowledged(head.taken, now)
        if self.gathering:
            self._end_gathering_if_all_are_here(now)
        elif not peer.adopted and peer.is_here(now):
            self._adopt(self.trust.believed([peer], self._adoption.problems([peer]), now), now)

    def _meet(self, head: MemberHead, now: Instant) -> Peer | None:
        """The record of who speaks; None where that life is known to be over."""
        if (peer := self._roster.latest(head)) is not None:
            return peer
        if (known := self._roster.is_over(head)) is not None:
            self._book.to_tell[known.name] = known
            return None
        before = self._roster.peers.get(head.member)
        if before is None and self._roster.full:
            return None
        new = self._roster.enter(head, now)
        if before is not None:
            self._absence.bury(before, now)
        if not self.gathering:
            new.heard(head, now, ours=False)
            new.standing = Standing.ABSENT
            self._reserve.keep(now)
        return new

    def refuse(self, head: MemberHead, why: str, now: Instant) -> None:
        """Reject an invalid entry with this head."""
        if not self.gathering:
            self._absence.watch(now)
        peer = self._roster.latest(head)
        if peer is not None and head.bound == self.epoch and not head.island:
            self.trust.refuse_entry(peer, head, why, now)

    def _hear(self, peer: Peer, said: Said, now: Instant) -> None:
        if peer.adopted:
            self._news.take(peer, said, now)
        elif peer.reported:
            peer.backlog.append(said)
        elif isinstance(said[2], ReportDone):
            peer.reported = True
        else:
            peer.report.append(said)

    # What the fleet and the operator say

    def tell(self, event: FleetEvent | PolicyChanged | BudgetsTold, now: Instant) -> None:
        """What this process has seen of an endpoint, new rules, or what is spent."""
        match event:
            case PolicyChanged():
                self._reserve.rules = event
            case BudgetsTold():
                self._budgets = event
            case _:
                self._tell_members(event, now)
        if self.gathering:
            return
        self._absence.watch(now)
        match event:
            case PolicyChanged():
                self._reserve.tell_policy(now)
                # Members go by it when they hear that this scheduler does.
                self._book.to_tell |= self._roster.peers
            case EndpointJoined(endpoint):
                self._absence.clear_ghost(endpoint, now)
                self._reserve.join(endpoint.id, now, anew=True)
            case _:
                if isinstance(event, EndpointMeasured):
                    self._absence.saw(event, now)
                self._book.handle(event, now)

    def _tell_members(self, event: FleetEvent, now: Instant) -> None:
        news = self._endpoints.note(event)
        if news is not None:
            for peer in self._roster.peers.values():
                self._book.say(peer, news, now)

    @property
    def policy_hash(self) -> str:
        return self._reserve.rules.hash

    def all_are_ready_for(self, policy_hash: str) -> bool:
        """Whether everybody who answers and serves has read these rules. An island goes by them when it has."""
        return not self.gathering and self._roster.all_have_read(policy_hash)

    # Gathering

    def _end_gathering_if_all_are_here(self, now: Instant) -> None:
        if not self.gathering:
            return
        passed = now - self._began_at
        waiting = any(not peer.is_here(now) for peer in self._roster.peers.values())
        early = self._snapshot is None and passed < self._timing.gather_ns_min
        if passed >= self._timing.gather_ns_max or not (waiting or early):
            self._begin(now)

    def _begin(self, now: Instant) -> None:
        """From here on this scheduler decides."""
        self.gathering = False
        here = [peer for peer in self._roster.peers.values() if peer.is_here(now)]
        # Check reports before anything is granted, because the shares of rejected members are kept as well.
        here = self.trust.believed(here, self._adoption.problems(here), now)
        for peer in self._roster.peers.values():
            if peer not in here:
                peer.standing, peer.since = Standing.ABSENT, now
        self._reserve.begin(now)
        if self._snapshot is not None:
            since_ns = Duration(self._snapshot_age_ns + now - self._began_at)
            if (problem := restore(self._snapshot, self._book, now, told_ns_ago=since_ns)) is not None:
                self._begin_blank(problem, now)
        if self._budgets is not None:
            # What has ended since the snapshot is in the ledger, maybe, and in the reports: it is counted with these,
            # and the ledger is heard after them.
            self._book.handle(replace(self._budgets, spent=()), now)
        for endpoint_id in self._endpoints.by_id:
            self._reserve.join(endpoint_id, now)
        self._adopt(here, now, ready=True)
        if self._budgets is not None:
            self._book.handle(self._budgets, now)

    def _begin_blank(self, problem: str, now: Instant) -> None:
        """Continues without the snapshot."""
        self.trust.complaints.append(problem)
        self._snapshot = None
        self._adoption.begin_blank()
        self._roster.begin_blank()
        self._reserve.tell_policy(now)

    def _adopt(self, peers: list[Peer], now: Instant, *, ready: bool = False) -> None:
        self._adoption.adopt(peers, now, ready=ready)
        for peer in peers:
            self._welcome(peer, now)
        self._reserve.keep(now)
        self._absence.look_at = now

    def _welcome(self, peer: Peer, now: Instant) -> None:
        """Its story is known up to here; tells it what it has to know."""
        peer.known, peer.report = max(peer.known, peer.inbound.taken - len(peer.backlog)), []
        for told in self._endpoints.all():
            self._book.say(peer, told, now)
        self._reserve.tell_share_again(peer, now)
        backlog, peer.backlog = peer.backlog, []
        for said in backlog:
            self._news.take(peer, said, now)

    # Time

    def tick(self, now: Instant) -> None:
        self._end_gathering_if_all_are_here(now)
        if self.gathering:
            self._absence.look_at = now
            return
        self._absence.watch(now)
        wakeup = self._book.scheduler.next_wakeup()
        if wakeup is not None and wakeup <= now:
            self._book.handle(TimerFired(), now)

    def next_wakeup(self) -> Instant:
        """When `tick` and `outgoing` are to be called again, if nothing happens before."""
        if self._book.to_tell:
            return self._began_at
        if self.gathering:
            soonest = after(self._began_at, self._timing.gather_ns_min)
            if soonest <= self._absence.look_at:
                soonest = after(self._began_at, self._timing.gather_ns_max)
        else:
            soonest = self._absence.look_at
            wakeup = self._book.scheduler.next_wakeup()
            if wakeup is not None and wakeup < soonest:
                soonest = wakeup
            if self._roster.unsaved:
                soonest = min(soonest, self._snapshots.due)
        return min(soonest, self._outboxes.quiet_until)

    # Snapshots

    def take_snapshot(self, now: Instant) -> Snapshot | None:
        """What is to be written for a successor, if it is time to."""
        return None if now < self._snapshots.due else self.last_snapshot(now)

    def last_snapshot(self, now: Instant) -> Snapshot | None:
        """What is to be written when this scheduler goes, be it time or not."""
        return None if self.gathering else self._snapshots.take(self.policy_hash, now)

    def snapshot_written(self, at: Snapshots, now: Instant) -> None:
        self._snapshots.written(at, now)

    # What is to be sent

    def outgoing(self, now: Instant) -> list[tuple[str, SchedulerEntry]]:
        """Entries for the members' outboxes."""
        return self._outboxes.take(self.policy_hash, now)

    # For those who look

    def observe(self, observer: Observer) -> None:
        self._book.observers = (*self._book.observers, observer)

    @property
    def blank(self) -> bool:
        """Whether it began without knowing what was counted before it."""
        return self._snapshot is None

    def summary(self) -> Summary:
        return self._book.scheduler.summary()

    def budgets_left(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetLeft, ...]:
        return self._book.scheduler.budgets_left(now, tenant)

    def take_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        return self._book.scheduler.take_endpoint_times(now)

    def standings(self) -> dict[str, Standing]:
        return {name: peer.standing for name, peer in self._roster.peers.items()}

    def has_reported(self, name: str) -> bool:
        """Whether what this member holds is known, be it from before it was lost from sight."""
        return self._roster.peers[name].adopted

    def members(self) -> dict[str, MemberView]:
        return {
            name: MemberView(peer.standing, peer.policy_hash, peer.staged, peer.incarnation)
            for name, peer in self._roster.peers.items()
        }

    def booked(self) -> list[tuple[str, RequestId, int, EndpointId]]:
        """Every attempt that has a place: whose it is, and where."""
        return list(self._book.all())
