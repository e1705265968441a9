"""Adopts member reports into the scheduler's state.

A member's report replaces what was known about the member: requests that it does not list have ended. While a report is
being applied, nothing is dispatched to the endpoints concerned, so that slots freed in between are not reassigned. The
order is: running attempts, queued requests (oldest first), results, ready endpoints. No slot is therefore assigned
twice, and all queued requests compete together.
"""

from dataclasses import replace

from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    CountedUpTo,
    EndpointReady,
    RequestSettled,
    WithdrawalCause,
)
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

    def start_without_snapshot(self) -> None:
        """Starts without a snapshot."""
        self._began_with = None

    def problems(self, peers: list[Peer]) -> dict[str, str]:
        """Returns members whose reports cannot be adopted, with the reason.

        If two members claim the same request, the report of the first one is accepted.
        """
        found: dict[str, str] = {}
        claimed: dict[RequestId, str] = {}

        def owner(request_id: RequestId) -> str | None:
            booked = self._book.requests.get(request_id)
            return claimed.get(request_id) if booked is None else booked.peer.name

        for peer in peers:
            report = MemberReport(peer)
            problem = report.problem(owner) or self._pool_mismatch(report)
            if problem is None:
                claimed.update(dict.fromkeys(report.request_ids(), peer.name))
            else:
                found[peer.name] = problem
        return found

    def _pool_mismatch(self, report: MemberReport) -> str | None:
        for _, said in report.running:
            told = said.report
            known = self._endpoints.by_id.get(told.endpoint_id)
            if known is not None and known.pool != told.pool:
                return f'reports endpoint {told.endpoint_id} in pool "{told.pool}", but it is in "{known.pool}"'
        return None

    def adopt(self, peers: list[Peer], now: Instant, *, ready: bool) -> None:
        """Replaces the known state of these members with their reports.

        With `ready`, ready endpoints are reported to the scheduler before the new arrivals.
        """
        reports = [MemberReport(peer) for peer in peers]
        for report in reports:
            self._reassign(report)
        self._reserve.freeze([place.endpoint_id for peer in peers for place in peer.places()], now)
        kept: _RequestIds = {}
        struck: _Removed = {}
        for report in reports:
            kept |= report.unchanged()
            struck |= self._remove_unreported(kept, report, now)
        self._adopt_requests(reports, kept, struck, now)
        self._book.send_deferred_ends(now)
        for report in reports:
            for at, settled in report.settled:
                self._settle(report.peer, settled, at, now, removed=struck)
        self._reserve.freeze((), now)
        if ready:
            self._report_ready_endpoints(now)
        for report in reports:
            for at, arrival in report.arrived:
                self._book.add_arrival(report.peer, arrival, at, now)

    def _adopt_requests(self, reports: list[MemberReport], kept: _RequestIds, struck: _Removed, now: Instant) -> None:
        """Adopts running attempts, then queued requests."""
        for report in reports:
            report.peer.presence, report.peer.adopted = MemberPresence.PRESENT, True
            for at, said in report.running:
                if said.report.ticket.request_id not in kept:
                    self._adopt_attempt(report.peer, said, at, now, removed=struck)
        waiting = [(report.peer, at, said) for report in reports for at, said in report.queued]
        for peer, at, queued in sorted(waiting, key=_oldest_first):
            if queued.report.ticket.request_id not in kept:
                self._adopt_waiting(peer, queued, at, now, removed=struck)

    def _report_ready_endpoints(self, now: Instant) -> None:
        for endpoint_id in self._endpoints.by_id:
            if self._endpoints.is_ready(endpoint_id):
                self._book.handle(EndpointReady(endpoint_id), now)

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

    def _remove_unreported(self, kept: _RequestIds, report: MemberReport, now: Instant) -> _Removed:
        """Removes requests that the member no longer has or that have changed. Returns them."""
        ends, unbilled = report.settled_by_id(), report.unbilled()
        struck: _Removed = {}
        for request_id, booked in tuple(report.peer.requests.items()):
            if request_id not in kept:
                struck[request_id] = not booked.over
                booked.ended_by_member = request_id in unbilled and not booked.over
                self._remove(booked, ends.get(request_id), now)
        return struck

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


def _oldest_first(told: tuple[Peer, Instant, QueuedRequest]) -> tuple[int, RequestId]:
    _, at, said = told
    report = said.report
    return at - (report.waited_ns if report.age_ns is None else report.age_ns), report.ticket.request_id
