"""Start of a cell's scheduler: it adopts the members' reports and then makes its first decisions.

The core receives the policy, the counters of the snapshot, the endpoints, the reports (`adoption`), the ready endpoints
and the new arrivals, in this order. It makes no decision before the first endpoint is ready, so at that point it knows
all running attempts.

With thousands of requests, this takes longer than the event loop may be blocked. It is therefore done in slices of
`steps_max` steps. Between two slices, the lease is renewed and the members are answered. Their messages wait in the
backlog, and members that become absent or start another session are handled as usual. The reports of members that
return later are adopted in the same way, while the scheduler makes decisions for the others.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from headgate.core.events import (
    BudgetsSynced,
    EndpointMetricsReported,
    EndpointNotReady,
    EndpointReady,
    FleetEvent,
    PolicyChanged,
    SharesAssigned,
)
from headgate.hosts.cell.leader.absence import AbsenceMonitor
from headgate.hosts.cell.leader.adoption import ReportAdoption
from headgate.hosts.cell.leader.assignment_table import AssignmentTable
from headgate.hosts.cell.leader.fencing import MemberFencing
from headgate.hosts.cell.leader.island_reserve import IslandReserve
from headgate.hosts.cell.leader.member_report import MemberReport
from headgate.hosts.cell.leader.member_updates import MemberUpdates
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.leader.roster import MemberRoster
from headgate.hosts.cell.leader.snapshots import restore
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Snapshot
from headgate.hosts.cell.protocol.views import MemberPresence
from headgate.model.units import Duration, EndpointId, Instant, RequestId


class LeaderStart:
    def __init__(
        self,
        table: AssignmentTable,
        roster: MemberRoster,
        reserve: IslandReserve,
        endpoints: KnownEndpoints,
        adoption: ReportAdoption,
        *,
        absence: AbsenceMonitor,
        fencing: MemberFencing,
        member_updates: MemberUpdates,
        snapshot: Snapshot | None,
        snapshot_taken_at: Instant,
        steps_max: int,
    ) -> None:
        self._table, self._roster, self._reserve = table, roster, reserve
        self._endpoints, self._adoption = endpoints, adoption
        self._absence, self._fencing, self._member_updates = absence, fencing, member_updates
        self.snapshot = snapshot
        """Snapshot that the counters come from. None if there is none or it cannot be used."""
        self._snapshot_taken_at = snapshot_taken_at
        self._steps_max = steps_max
        self.budgets: BudgetsSynced | None = None
        """Latest report of spending."""
        self._steps: Iterator[None] | None = None
        """Remaining steps of the adoption in progress. None if there is none."""
        self._late: dict[str, Peer] = {}
        """Members whose reports are adopted after the one in progress."""
        self.has_counters = False
        """Whether the core has its policy and counters, so that it can handle events."""
        self._unready: dict[EndpointId, None] | None = None
        """Endpoints that have not been reported to the core as ready yet. None until the reports are adopted."""

    @property
    def is_active(self) -> bool:
        return self._steps is not None

    @property
    def is_deciding(self) -> bool:
        """Whether the core makes decisions, because it knows that endpoints are ready."""
        return self._unready is not None

    def begin(self, now: Instant) -> None:
        self._steps = self._adopt_all(now)

    def proceed(self, now: Instant) -> bool:
        """Takes the next steps. Returns whether all reports are adopted."""
        assert self._steps is not None
        self._adoption.now = now
        if self.is_deciding:
            self._absence.check(now)
        if len(list(islice(self._steps, self._steps_max))) == self._steps_max:
            return False
        self._steps = None
        return True

    def _adopt_all(self, now: Instant) -> Iterator[None]:
        """Adopts all reports and starts making decisions. Yields after every step."""
        reports = [MemberReport(peer) for peer in self._roster.peers.values() if peer.is_synced(now)]
        for report in reports:
            report.peer.adopting = True
        # Reports are checked before anything is granted, because the shares of rejected members are reserved too.
        claimed: dict[RequestId, str] = {}
        problems: dict[str, str] = {}
        for report in reports:
            if (problem := self._adoption.problem(report, claimed)) is not None:
                problems[report.peer.name] = problem
            yield
        here = self._fencing.accept_reports([report.peer for report in reports], problems, self._adoption.now)
        reports = [report for report in reports if report.peer in here]
        self._restore_counters(here, self._adoption.now)
        yield
        for endpoint_id in tuple(self._endpoints.by_id):
            self._reserve.update_endpoint(endpoint_id, self._adoption.now)
            yield
        yield from self._adoption.adopt(reports)
        yield from self._report_ready_endpoints()
        for report in reports:
            yield from self._adoption.add_arrivals(report)
        for report in reports:
            yield from self._complete_adoption(report)
        self._reserve.update(self._adoption.now)
        self._absence.next_check_at = self._adoption.now
        if self.budgets is not None:
            self._table.handle(self.budgets, self._adoption.now)

    def _restore_counters(self, here: list[Peer], now: Instant) -> None:
        """Gives the core its policy and the counters of the snapshot. `here` are the members with a valid report."""
        for peer in self._roster.peers.values():
            if peer not in here:
                peer.presence, peer.presence_since = MemberPresence.ABSENT, now
        self._reserve.begin(now)
        self.has_counters = True
        if self.snapshot is not None:
            since_ns = Duration(now - self._snapshot_taken_at)
            if (problem := restore(self.snapshot, self._table, now, snapshot_age_ns=since_ns)) is not None:
                self._start_without_snapshot(problem, now)
        if self.budgets is not None:
            # Requests that ended since the snapshot are in the reports and may also be in the ledger. The reports are
            # counted first, and the ledger's spending is applied after them.
            self._table.handle(replace(self.budgets, spent=(), ledger_read=False), now)

    def _report_ready_endpoints(self) -> Iterator[None]:
        """Reports ready endpoints to the core, which starts to make decisions with the first one."""
        self._absence.next_check_at = self._adoption.now
        self._absence.check(self._adoption.now)
        unready = self._unready = dict.fromkeys(self._endpoints.by_id)
        while unready:
            endpoint_id = next(iter(unready))
            del unready[endpoint_id]
            if self._endpoints.is_ready(endpoint_id):
                self._table.handle(EndpointReady(endpoint_id), self._adoption.now)
                yield

    def _start_without_snapshot(self, problem: str, now: Instant) -> None:
        """Continues without the snapshot."""
        self._fencing.rejections.append(problem)
        self.snapshot = None
        self._adoption.start_without_snapshot()
        self._roster.reset_coverage()
        self._reserve.apply_policy(now)

    def adopt_late(self, peer: Peer, now: Instant) -> None:
        """Begins to adopt the report of a member that reports after the others, or again.

        Members that report meanwhile wait, and are adopted together.
        """
        if peer.adopting:
            return
        self._late[peer.name] = peer
        if self._steps is None:
            self._steps = self._adopt_all_late()
            self.proceed(now)

    def _adopt_all_late(self) -> Iterator[None]:
        while self._late:
            late, self._late = self._late, {}
            yield from self._adopt_late(late)

    def _adopt_late(self, late: dict[str, Peer]) -> Iterator[None]:
        """Adopts reports while the core makes decisions for the other members."""
        now = self._adoption.now
        peers = [
            peer
            for name, peer in late.items()
            if self._roster.peers.get(name) is peer and not peer.adopted and peer.is_synced(now)
        ]
        reports = [MemberReport(peer) for peer in peers]
        claimed: dict[RequestId, str] = {}
        problems: dict[str, str] = {}
        for report in reports:
            if (problem := self._adoption.problem(report, claimed)) is not None:
                problems[report.peer.name] = problem
        here = self._fencing.accept_reports(peers, problems, now)
        reports = [report for report in reports if report.peer in here]
        for report in reports:
            report.peer.adopting = True
        yield from self._adoption.adopt(reports)
        # The members' shares are no longer reserved. Before, the limits for their new arrivals may have been zero.
        self._reserve.update(self._adoption.now)
        for report in reports:
            yield from self._adoption.add_arrivals(report)
        for report in reports:
            yield from self._complete_adoption(report)
        self._reserve.update(self._adoption.now)
        self._absence.next_check_at = self._adoption.now

    def _complete_adoption(self, report: MemberReport) -> Iterator[None]:
        """Completes the adoption of a member: sends it endpoints and its share, and handles its backlog."""
        peer = report.peer
        for endpoint_id in tuple(self._endpoints.by_id):
            update = self._endpoints.update(endpoint_id)
            if update is not None and report.is_current:
                self._table.send(peer, update, self._adoption.now)
                yield
        if report.is_current and peer.is_connected:
            self._reserve.resend_share(peer, self._adoption.now)
        while peer.backlog and report.is_current and peer.is_connected:
            self._member_updates.handle(peer, peer.backlog.popleft(), self._adoption.now)
            yield
        if report.is_current:
            peer.adopting, peer.adopted, peer.report = False, True, []
            peer.backlog.clear()

    # Events during the adoption

    def passes(self, event: FleetEvent | PolicyChanged | BudgetsSynced | SharesAssigned) -> bool:
        """Returns whether the core must handle an event immediately, while reports are being adopted."""
        match event:
            case EndpointReady(endpoint_id) | EndpointNotReady(endpoint_id):
                return self._unready is not None and endpoint_id not in self._unready
            case EndpointMetricsReported() | BudgetsSynced():
                # Attempts that are not adopted yet would appear as foreign load. Spending is applied at the end.
                return False
            case _:
                return self.has_counters
