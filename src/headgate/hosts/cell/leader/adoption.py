"""Adopts member reports into the scheduler's state.

A member's report replaces what was known about the member: requests that it does not list have ended. While a report is
being applied, nothing is dispatched to the endpoints concerned, so that slots freed in between are not reassigned. The
order is: running attempts, queued requests (oldest first), results. No slot is therefore assigned twice, and all queued
requests compete together.

Thousands of requests take longer than the scheduler's event loop may be blocked. The functions that adopt reports are
therefore generators that yield after every request. A new scheduler continues them in slices (`takeover`). A member may
become absent or start another session between two slices. The rest of its report is adopted as if that had happened
afterwards.
"""

from collections.abc import Iterator
from dataclasses import replace

from headgate.core.events import AttemptEnded, AttemptEnding, CountedUpTo, RequestSettled, WithdrawalCause
from headgate.hosts.cell.leader.assignment_table import AssignmentTable
from headgate.hosts.cell.leader.island_reserve import IslandReserve
from headgate.hosts.cell.leader.member_report import MemberReport, counted_part
from headgate.hosts.cell.leader.peers import AssignedRequest, AttemptPlacement, Peer
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import QueuedRequest, RunningAttempt, SettledRequest, SnapshotId
from headgate.hosts.cell.protocol.views import MemberPresence
from headgate.model.money import NanoUsd
from headgate.model.units import Duration, Instant, RequestId

_RequestIds = dict[RequestId, None]
"""Ordered set of request ids."""
_Removed = dict[RequestId, bool]
"""Removed requests, and whether each was still open in the scheduler when removed. If so, it was billed."""


class ReportAdoption:
    def __init__(
        self,
        assignments: AssignmentTable,
        reserve: IslandReserve,
        endpoints: KnownEndpoints,
        *,
        epoch: int,
        start_snapshot: SnapshotId | None,
    ) -> None:
        self._book, self._reserve, self._endpoints = assignments, reserve, endpoints
        self._epoch, self._began_with = epoch, start_snapshot
        self.now = Instant(0)
        """Current time. The caller sets it before it continues a generator."""

    def start_without_snapshot(self) -> None:
        """Starts without a snapshot."""
        self._began_with = None

    def problem(self, report: MemberReport, claimed: dict[RequestId, str]) -> str | None:
        """Returns why a report cannot be adopted, or None.

        `claimed` contains the requests of the reports that were checked before, and their members. If two members claim
        the same request, the report of the first one is accepted.
        """
        problem = report.problem(self._book.requests, claimed) or self._pool_mismatch(report)
        if problem is None:
            claimed.update(dict.fromkeys(report.request_ids(), report.peer.name))
        return problem

    def _pool_mismatch(self, report: MemberReport) -> str | None:
        for _, said in report.running:
            told = said.report
            known = self._endpoints.by_id.get(told.endpoint_id)
            if known is not None and known.pool != told.pool:
                return f'reports endpoint {told.endpoint_id} in pool "{told.pool}", but it is in "{known.pool}"'
        return None

    def adopt(self, reports: list[MemberReport]) -> Iterator[None]:
        """Replaces the known state of these members with their reports, except for new arrivals."""
        for report in reports:
            if report.peer.presence is not MemberPresence.DEAD:
                report.peer.presence = MemberPresence.PRESENT
            self._reassign(report)
        # Attempts that were started by an island and have not been adopted yet occupy slots, too.
        known = [place.endpoint_id for report in reports for place in report.peer.places()]
        reported = [said.report.endpoint_id for report in reports for _, said in report.running]
        self._reserve.freeze((*known, *reported), self.now)
        kept: _RequestIds = {}
        struck: _Removed = {}
        for report in reports:
            kept |= report.unchanged()
            yield from self._remove_unreported(kept, report, struck)
            yield
        yield from self._adopt_requests(reports, kept, struck)
        self._book.send_deferred_ends(self.now)
        for report in reports:
            for at, settled in report.settled:
                self._settle(report.peer, settled, at, self.now, removed=struck)
                yield
            report.peer.counted_serial = max(report.peer.counted_serial, report.last_serial)
        self._reserve.freeze((), self.now)

    def _adopt_requests(self, reports: list[MemberReport], kept: _RequestIds, struck: _Removed) -> Iterator[None]:
        """Adopts running attempts, then queued requests."""
        for report in reports:
            for at, running in report.running:
                if report.peer.presence is MemberPresence.DEAD:
                    # The process has restarted, so its attempts are ending.
                    break
                if running.report.ticket.request_id not in kept:
                    self._adopt_attempt(report.peer, running, at, self.now, removed=struck)
                    yield
        waiting = [(report, at, said) for report in reports for at, said in report.queued]
        for report, at, queued in sorted(waiting, key=_oldest_first):
            if queued.report.ticket.request_id not in kept and report.is_current and report.peer.is_connected:
                self._adopt_waiting(report.peer, queued, at, self.now, removed=struck)
                yield

    def add_arrivals(self, report: MemberReport) -> Iterator[None]:
        """Adds the new arrivals in a report. No decision has been made about them."""
        for at, arrival in report.arrived:
            if report.is_current and report.peer.is_connected:
                self._book.add_arrival(report.peer, arrival, at, self.now)
                yield

    # Requests of earlier incarnations

    def _reassign(self, report: MemberReport) -> None:
        """Reassigns the requests of the previous incarnation to a process that was mistaken for a restarted one."""
        for request_id in report.request_ids():
            booked = self._book.requests.get(request_id)
            if booked is not None and booked.peer is not report.peer:
                del booked.peer.requests[request_id]
                booked.peer = report.peer
                report.peer.requests[request_id] = booked

    # Requests that the report does not list

    def _remove_unreported(self, kept: _RequestIds, report: MemberReport, struck: _Removed) -> Iterator[None]:
        """Removes requests that the member no longer has or that have changed, and adds them to `struck`."""
        ends, unbilled = report.settled_by_id(), report.unbilled()
        for request_id, booked in tuple(report.peer.requests.items()):
            if request_id not in kept and self._book.requests.get(request_id) is booked:
                struck[request_id] = not booked.over
                booked.ended_by_member = request_id in unbilled and not booked.over
                self._remove(booked, ends.get(request_id), self.now)
                yield

    def _remove(self, booked: AssignedRequest, end: RequestSettled | None, now: Instant) -> None:
        """Ends a request in the assignment table, with the usage if the member has reported it."""
        completed = end is not None and end.completed
        if not completed:
            # If the tenant pays without a complete response, the client has disconnected.
            left = WithdrawalCause.CLIENT_DISCONNECTED if booked.ended_by_member else WithdrawalCause.SHUTDOWN
            self._book.withdraw(booked, now, left)
        booked.over = True
        ending = AttemptEnding.COMPLETED if completed else AttemptEnding.ABORTED
        usage = None if end is None else end.usage
        for number in tuple(booked.attempts):
            del booked.attempts[number]
            ended = AttemptEnded(booked.ticket.request_id, number, ending, "replaced by its member's report", usage)
            self._book.handle(ended, now)
        self._book.withdraw(booked, now)

    # Requests that the report lists

    def _adopt_attempt(self, peer: Peer, said: RunningAttempt, at: Instant, now: Instant, *, removed: _Removed) -> None:
        told = said.report
        request_id, since = told.ticket.request_id, max(0, now - at)
        booked = self._book.requests.get(request_id)
        cost: NanoUsd | None = NanoUsd(0)
        if booked is None:
            if told.request_ended and not removed.get(request_id):
                cost = self._uncounted_cost(peer, said)
            request_age_ns = told.age_ns if told.request_age_ns is None else told.request_age_ns
            booked = self._book.add(AssignedRequest(told.ticket, peer, Instant(at - request_age_ns)))
            booked.over = told.request_ended
        if told.endpoint_id not in self._endpoints.by_id:
            self._book.unknown_endpoints.setdefault(told.endpoint_id, told.pool)
        booked.attempts[told.attempt] = AttemptPlacement(told.endpoint_id, Instant(at - told.age_ns), begun=True)
        known = (
            CountedUpTo.NOTHING
            if request_id in removed
            else self._counted(peer, said.arrival_serial, said.dispatch_snapshot, said.report_serial)
        )
        whole_ns = None if told.request_age_ns is None else Duration(told.request_age_ns + since)
        age_ns = Duration(told.age_ns + since)
        self._book.handle(replace(told, age_ns=age_ns, request_age_ns=whole_ns, counted=known, cost=cost), now)
        if peer.presence is MemberPresence.ABSENT and not booked.over:
            self._book.withdraw(booked, now)

    def _adopt_waiting(self, peer: Peer, said: QueuedRequest, at: Instant, now: Instant, *, removed: _Removed) -> None:
        told = said.report
        request_id, since = told.ticket.request_id, max(0, now - at)
        age_ns = Duration((told.waited_ns if told.age_ns is None else told.age_ns) + since)
        self._book.add(AssignedRequest(told.ticket, peer, Instant(now - age_ns)))
        known = CountedUpTo.NOTHING if request_id in removed else self._counted(peer, said.arrival_serial, None, 0)
        waited_ns = Duration(told.waited_ns + since)
        self._book.handle(replace(told, waited_ns=waited_ns, age_ns=age_ns, counted=known), now)

    def _settle(self, peer: Peer, said: SettledRequest, at: Instant, now: Instant, *, removed: _Removed) -> None:
        """Counts a finished request. If it was in the assignment table, only its missing cost is counted."""
        billed = removed.get(said.report.ticket.request_id)
        if said.serial > peer.counted_serial and not billed:
            known = (
                CountedUpTo.ENDED
                if billed is False
                else self._counted(peer, said.arrival_serial, said.dispatch_snapshot, 0)
            )
            age_ns = Duration(said.report.age_ns + max(0, now - at))
            cost = self._uncounted_cost(peer, said)
            self._book.handle(replace(said.report, counted=known, age_ns=age_ns, cost=cost), now)

    def _uncounted_cost(self, peer: Peer, said: SettledRequest | RunningAttempt) -> NanoUsd | None:
        """Returns the part of a request's cost that the counters do not include."""
        cost = said.report.cost if isinstance(said, SettledRequest) else said.cost
        return NanoUsd(0) if 0 < said.end_serial <= peer.counted_serial else cost

    def _counted(self, peer: Peer, arrived: int, sent: SnapshotId | None, told: int) -> CountedUpTo:
        return counted_part(peer, arrived, sent, told, epoch=self._epoch, start_snapshot=self._began_with)


def _oldest_first(told: tuple[MemberReport, Instant, QueuedRequest]) -> tuple[int, RequestId]:
    _, at, said = told
    report = said.report
    return at - (report.waited_ns if report.age_ns is None else report.age_ns), report.ticket.request_id
