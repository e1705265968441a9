"""Elected scheduler of a cell.

It passes the members' messages to one `Scheduler` and the scheduler's commands to the members, like a host in a single
process, and tracks how much of each member's history is known.

- *Gathering.* A new scheduler grants nothing until all known members have reported and have shown that they receive its
  messages, or until a timeout expires. Its counters come from the last snapshot. Anything that the snapshot does not
  include is counted from the reports (`adoption`). With thousands of requests, this takes longer than the event loop
  may be blocked. It is therefore done in slices, one per `tick`, between which the lease is renewed and the members are
  answered. Messages that arrive meanwhile wait.
- *Sessions.* A session starts with a report, which replaces the known state of the member. Later messages are updates,
  each applied once (`link`). Decisions are sent to the members (`member_updates`, `assignment_table`, `outboxes`).
- *Absence.* The share of a member that does not respond stays reserved (`absence`, `island_reserve`).
- *Snapshots.* Every `snapshot_ns` the counters are stored for a successor (`snapshots`).

The owner of this object checks before every call that this process is still elected (`election`).

Known weakness: a request that is removed and added again because its member was absent or declined a grant counts twice
against its tenant's requests per minute.
"""

from collections.abc import Sequence

from headgate.core.events import (
    BudgetsSynced,
    EndpointJoined,
    EndpointMetricsReported,
    FleetEvent,
    PolicyChanged,
    SharesAssigned,
    TimerFired,
)
from headgate.core.summary import Summary
from headgate.hosts.cell.leader.absence import AbsenceMonitor
from headgate.hosts.cell.leader.adoption import ReportAdoption
from headgate.hosts.cell.leader.assignment_table import AssignmentTable
from headgate.hosts.cell.leader.fencing import MemberFencing
from headgate.hosts.cell.leader.island_reserve import IslandReserve
from headgate.hosts.cell.leader.leader_start import LeaderStart
from headgate.hosts.cell.leader.member_updates import MemberUpdates
from headgate.hosts.cell.leader.outboxes import Outboxes
from headgate.hosts.cell.leader.peers import MemberMessage, Peer
from headgate.hosts.cell.leader.roster import MemberRoster
from headgate.hosts.cell.leader.snapshots import SnapshotWriter
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import (
    VERSION,
    Epoch,
    MemberEntry,
    MemberHead,
    ReportDone,
    SchedulerEntry,
    Snapshot,
    SnapshotId,
)
from headgate.hosts.cell.protocol.views import MemberPresence, MemberView
from headgate.hosts.cell.timing import DEFAULT_BOUNDS, DEFAULT_TIMING, CellBounds, Timing
from headgate.model.money import BudgetStatus, EndpointTime
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
        timing: Timing = DEFAULT_TIMING,
        bounds: CellBounds = DEFAULT_BOUNDS,
        observers: Sequence[Observer] = (),
        budgets: BudgetsSynced | None = None,
        version: int = VERSION,
        shares: SharesAssigned | None = None,
    ) -> None:
        self.epoch = epoch
        self.gathering = True
        """Whether this scheduler is still collecting or adopting reports."""
        self._endpoints = endpoints
        self._timing, self._bounds = timing, bounds
        self._began_at = now
        table = AssignmentTable(epoch.number, timing=timing, observers=tuple(observers))
        roster = MemberRoster(() if snapshot is None else snapshot.members, now, timing=timing)
        self._assignments, self._roster = table, roster
        self._reserve = IslandReserve(table, roster, endpoints, rules, shares)
        self._absence = AbsenceMonitor(table, roster, self._reserve, now, timing=timing, bounds=bounds)
        self._snapshots = SnapshotWriter(table, roster, self._reserve, now, snapshot_ns=timing.snapshot_ns)
        table.peers_to_notify |= roster.peers
        self.fencing = MemberFencing(table, roster, self._absence, fence_ns=timing.lost_after_ns, bounds=bounds)
        self._member_updates = MemberUpdates(table, roster, self._absence)
        began_with = None if snapshot is None else snapshot.at
        self._start = LeaderStart(
            table,
            roster,
            self._reserve,
            endpoints,
            ReportAdoption(table, self._reserve, endpoints, epoch=epoch.number, start_snapshot=began_with),
            absence=self._absence,
            fencing=self.fencing,
            member_updates=self._member_updates,
            snapshot=snapshot,
            snapshot_taken_at=Instant(now - snapshot_age_ns),
            steps_max=bounds.adoption_steps_max,
        )
        self._start.budgets = budgets
        self._outboxes = Outboxes(epoch, table, roster, now, timing=timing, bounds=bounds, version=version)

    # Messages from members

    def receive(self, entry: MemberEntry, now: Instant) -> None:
        if not self.gathering:
            self._absence.check(now)
        peer = self._find_or_add_peer(entry.head, now)
        if peer is None:
            return
        self._process_entry(peer, entry, now)
        if peer.urgent:
            self._assignments.peers_to_notify[peer.name] = peer
        else:
            self._outboxes.note_due(peer)

    def _process_entry(self, peer: Peer, entry: MemberEntry, now: Instant) -> None:
        head = entry.head
        latest = peer.record_head(head, now, follows_us=head.followed_epoch == self.epoch)
        if head.followed_epoch != self.epoch:
            peer.urgent = True
            return
        if latest and head.island and peer.presence is MemberPresence.PRESENT:
            self._absence.mark_absent(peer, now)
        if peer.is_fenced(now):
            return
        if head.island or head.session <= peer.rejected_session or head.session < peer.session:
            peer.urgent = peer.urgent or head.session <= peer.rejected_session
            return
        peer.begin_session_if_new(head)
        if head.oldest_kept_serial > peer.inbound.last_received + 1:
            # An earlier scheduler has received the previous messages.
            peer.rejected_session, peer.urgent = head.session, True
            return
        for serial, age_ns, said in peer.inbound.accept(head.first_serial, entry.messages):
            self._acknowledge(peer, now)
            if (problem := self.fencing.message_rejection(peer, said)) is not None:
                self.fencing.reject(peer, problem, now)
                return
            self._process_message(peer, (serial, Instant(now - age_ns), said), now)
            if self._roster.peers.get(peer.name) is not peer:
                # The member has left; no more messages follow.
                peer.urgent = True
                return
        peer.acknowledge(head.received_serial, now)
        if self.gathering:
            self._end_gathering_if_complete(now)
        elif not peer.adopted and peer.is_synced(now):
            self._start.adopt_late(peer, now)

    def _acknowledge(self, peer: Peer, now: Instant) -> None:
        """Schedules the acknowledgement of a message. A member that has just reported waits for the answer."""
        if peer.adopted:
            peer.send_within(self._timing.ack_ns, now)
        else:
            peer.urgent = True

    def _find_or_add_peer(self, head: MemberHead, now: Instant) -> Peer | None:
        """Returns the record of the sender, or None if its incarnation is over."""
        if (peer := self._roster.find(head)) is not None:
            return peer
        if (known := self._roster.superseded_by(head)) is not None:
            self._assignments.peers_to_notify[known.name] = known
            return None
        before = self._roster.peers.get(head.member)
        if before is None and self._roster.is_full:
            return None
        new = self._roster.add(head, now)
        if before is not None:
            self._absence.mark_dead(before, now)
        if self._start.has_counters:
            new.record_head(head, now, follows_us=False)
            new.presence = MemberPresence.ABSENT
            self._reserve.update(now)
        return new

    def reject_entry(self, head: MemberHead, why: str, now: Instant) -> None:
        """Rejects an invalid entry with this head."""
        if not self.gathering:
            self._absence.check(now)
        peer = self._roster.find(head)
        if peer is not None and head.followed_epoch == self.epoch and not head.island:
            self.fencing.reject_entry(peer, head, why, now)

    def _process_message(self, peer: Peer, message: MemberMessage, now: Instant) -> None:
        if peer.adopted:
            self._member_updates.handle(peer, message, now)
        elif peer.reported:
            peer.backlog.append(message)
        elif isinstance(message[2], ReportDone):
            peer.reported = True
        else:
            peer.report.append(message)

    # Fleet and policy

    def handle(self, event: FleetEvent | PolicyChanged | BudgetsSynced | SharesAssigned, now: Instant) -> None:
        """Handles an endpoint event, a new policy, a spending report or new shares of limits."""
        match event:
            case PolicyChanged():
                self._reserve.rules = event
            case BudgetsSynced():
                self._start.budgets = event
            case SharesAssigned():
                self._reserve.shares = event
            case _:
                self._notify_members(event, now)
        if self.gathering and not self._start.passes(event):
            return
        if self._start.is_deciding:
            self._absence.check(now)
        match event:
            case PolicyChanged():
                self._reserve.apply_policy(now)
                # Members apply the policy when they learn that the scheduler does.
                self._assignments.peers_to_notify |= self._roster.peers
            case EndpointJoined(endpoint):
                self._absence.clear_unknown_endpoint(endpoint, now)
                self._reserve.update_endpoint(endpoint.id, now, force=True)
            case _:
                if isinstance(event, EndpointMetricsReported):
                    sharing = self._endpoints.sharing(event.endpoint_id)
                    self._absence.record_measurement(event, now, sharing=sharing)
                self._assignments.handle(event, now)

    def _notify_members(self, event: FleetEvent, now: Instant) -> None:
        news = self._endpoints.apply_event(event)
        if news is not None:
            for peer in self._roster.peers.values():
                self._assignments.send(peer, news, now)

    @property
    def policy_hash(self) -> str:
        return self._reserve.rules.hash

    def all_have_policy(self, policy_hash: str) -> bool:
        """Returns whether all present, serving members have read this policy. Islands apply it independently."""
        return not self.gathering and self._roster.all_have_policy(policy_hash)

    # Gathering

    def _end_gathering_if_complete(self, now: Instant) -> None:
        if not self.gathering or self._start.is_active:
            return
        passed = now - self._began_at
        waiting = any(not peer.is_synced(now) for peer in self._roster.peers.values())
        early = self._start.snapshot is None and passed < self._timing.gather_ns_min
        if passed >= self._timing.gather_ns_max or not (waiting or early):
            self._begin(now)

    def _begin(self, now: Instant) -> None:
        """Starts to adopt the reports."""
        self._start.begin(now)
        self._proceed(now)

    def _proceed(self, now: Instant) -> None:
        """Adopts the next reports of this scheduler's start."""
        if self._start.is_active and self._start.proceed(now):
            self.gathering = False

    # Time

    def tick(self, now: Instant) -> None:
        self._proceed(now)
        self._end_gathering_if_complete(now)
        if self.gathering:
            self._absence.next_check_at = now
            return
        self._absence.check(now)
        wakeup = self._assignments.scheduler.next_wakeup()
        if wakeup is not None and wakeup <= now:
            self._assignments.handle(TimerFired(), now)

    def next_wakeup(self) -> Instant:
        """Returns when to call `tick` and `outgoing` next if no event occurs before then."""
        if self._assignments.peers_to_notify or self._start.is_active:
            return self._began_at
        if self.gathering:
            soonest = after(self._began_at, self._timing.gather_ns_min)
            if soonest <= self._absence.next_check_at:
                soonest = after(self._began_at, self._timing.gather_ns_max)
        else:
            soonest = self._absence.next_check_at
            wakeup = self._assignments.scheduler.next_wakeup()
            if wakeup is not None and wakeup < soonest:
                soonest = wakeup
            if self._roster.has_unsaved_shares:
                soonest = min(soonest, self._snapshots.due)
        return min(soonest, self._outboxes.next_heartbeat_at)

    # Snapshots

    def take_snapshot(self, now: Instant) -> Snapshot | None:
        """Returns a snapshot for a successor if one is due."""
        return None if now < self._snapshots.due else self.final_snapshot(now)

    def final_snapshot(self, now: Instant) -> Snapshot | None:
        """Returns the final snapshot of a scheduler that is stepping down."""
        if self.gathering or self._start.is_active:
            # The counters include a part of the reports that are being adopted.
            return None
        return self._snapshots.take(self.policy_hash, now)

    def snapshot_stored(self, at: SnapshotId, now: Instant) -> None:
        self._snapshots.on_stored(at, now)

    # Outgoing messages

    def outgoing(self, now: Instant) -> list[tuple[str, SchedulerEntry]]:
        """Returns the entries for the members' outboxes."""
        return self._outboxes.pop_entries(self.policy_hash, now)

    # Status

    def add_observer(self, observer: Observer) -> None:
        self._assignments.observers = (*self._assignments.observers, observer)

    @property
    def started_without_snapshot(self) -> bool:
        return self._start.snapshot is None

    def summary(self) -> Summary:
        return self._assignments.scheduler.summary()

    def budgets_left(self, now: Instant, tenant: TenantId | None = None) -> tuple[BudgetStatus, ...]:
        return self._assignments.scheduler.budget_status(now, tenant)

    def collect_endpoint_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        return self._assignments.scheduler.pop_endpoint_times(now)

    def presences(self) -> dict[str, MemberPresence]:
        return {name: peer.presence for name, peer in self._roster.peers.items()}

    def has_reported(self, name: str) -> bool:
        """Returns whether the report of this member was adopted, even if the member is absent now."""
        return self._roster.peers[name].adopted

    def members(self) -> dict[str, MemberView]:
        return {name: peer.view() for name, peer in self._roster.peers.items()}

    def assigned_attempts(self) -> list[tuple[str, RequestId, int, EndpointId]]:
        """Returns every attempt that occupies a slot, as (member, request, attempt number, endpoint)."""
        return list(self._assignments.attempts())
