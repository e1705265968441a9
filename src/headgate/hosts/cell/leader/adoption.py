"""What becomes of what members report to a scheduler?

A member's report replaces what was known of it: what it does not name has ended. While that is sorted out nothing new
is sent to the endpoints concerned, so that no place is free for the moment between. Attempts are told first, then who
waits, the oldest first, then what has ended, then that endpoints are ready: so nothing is given twice, and all who wait
are looked at together.
"""

from dataclasses import replace

from headgate.core.events import AttemptEnded, AttemptEnding, Counted, EndpointReadied, RequestSettled, WithdrawalCause
from headgate.hosts.cell.leader.book import Book
from headgate.hosts.cell.leader.peers import Booked, Peer, Place
from headgate.hosts.cell.leader.reports import Report, counted
from headgate.hosts.cell.leader.reserve import Reserve
from headgate.hosts.cell.protocol.endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Runs, Settled, Snapshots, Waits
from headgate.hosts.cell.protocol.views import Standing
from headgate.model.money import NanoUsd
from headgate.model.units import Duration, Instant, RequestId

_Names = dict[RequestId, None]
"""An ordered set."""
_Struck = dict[RequestId, bool]
"""Requests that are taken out of the book, and whether they were the scheduler's until then: it has billed them."""


class Adoption:
    def __init__(
        self, book: Book, reserve: Reserve, endpoints: KnownEndpoints, *, epoch: int, began_with: Snapshots | None
    ) -> None:
        self._book, self._reserve, self._endpoints = book, reserve, endpoints
        self._epoch, self._began_with = epoch, began_with

    def begin_blank(self) -> None:
        """The scheduler starts without the snapshot."""
        self._began_with = None

    def problems(self, peers: list[Peer]) -> dict[str, str]:
        """Members whose reports cannot be adopted, and why. If two claim the same request, the first is accepted."""
        found: dict[str, str] = {}
        claimed: dict[RequestId, str] = {}

        def owner(request_id: RequestId) -> str | None:
            booked = self._book.requests.get(request_id)
            return claimed.get(request_id) if booked is None else booked.peer.name

        for peer in peers:
            report = Report(peer)
            problem = report.problem(owner) or self._misplaced(report)
            if problem is None:
                claimed.update(dict.fromkeys(report.named(), peer.name))
            else:
                found[peer.name] = problem
        return found

    def _misplaced(self, report: Report) -> str | None:
        for _, said in report.runs:
            told = said.report
            known = self._endpoints.by_id.get(told.endpoint_id)
            if known is not None and known.pool != told.pool:
                return f'reports endpoint {told.endpoint_id} in pool "{told.pool}", but it is in "{known.pool}"'
        return None

    def adopt(self, peers: list[Peer], now: Instant, *, ready: bool) -> None:
        """Puts what these members have reported in the place of what was known of them.

        With `ready` it is said which endpoints are, as the last before those who have just arrived.
        """
        reports = [Report(peer) for peer in peers]
        for report in reports:
            self._recall(report)
        self._reserve.freeze([place.endpoint_id for peer in peers for place in peer.places()], now)
        kept: _Names = {}
        struck: _Struck = {}
        for report in reports:
            kept |= report.unchanged()
            struck |= self._strike_all_but(kept, report, now)
        self._go_on(reports, kept, struck, now)
        self._book.say_the_unsaid(now)
        for report in reports:
            for at, settled in report.settled:
                self._settle(report.peer, settled, at, now, struck=struck)
        self._reserve.freeze((), now)
        if ready:
            self._say_who_is_ready(now)
        for report in reports:
            for at, arrival in report.arrived:
                self._book.arrive(report.peer, arrival, at, now)

    def _go_on(self, reports: list[Report], kept: _Names, struck: _Struck, now: Instant) -> None:
        """Takes in what is under way, and then what waits."""
        for report in reports:
            report.peer.standing, report.peer.adopted = Standing.PRESENT, True
            for at, said in report.runs:
                if said.report.ticket.request_id not in kept:
                    self._take_attempt(report.peer, said, at, now, again=struck)
        waiting = [(report.peer, at, said) for report in reports for at, said in report.waits]
        for peer, at, said in sorted(waiting, key=_oldest_first):
            if said.report.ticket.request_id not in kept:
                self._take_waiting(peer, said, at, now, again=struck)

    def _say_who_is_ready(self, now: Instant) -> None:
        for endpoint_id in self._endpoints.by_id:
            if self._endpoints.ready(endpoint_id):
                self._book.handle(EndpointReadied(endpoint_id), now)

    # Requests of earlier incarnations

    def _recall(self, report: Report) -> None:
        """Moves the requests of the previous incarnation to a process that was mistaken for a restarted one."""
        for request_id in report.named():
            booked = self._book.requests.get(request_id)
            if booked is not None and booked.peer is not report.peer:
                del booked.peer.requests[request_id]
                booked.peer = report.peer
                report.peer.requests[request_id] = booked

    # What is not named

    def _strike_all_but(self, kept: _Names, report: Report, now: Instant) -> _Struck:
        """Takes out of the book what a member had and no longer has, or has otherwise; which requests."""
        ends, unbilled = report.ends(), report.unbilled()
        struck: _Struck = {}
        for request_id, booked in tuple(report.peer.requests.items()):
            if request_id not in kept:
                struck[request_id] = not booked.over
                booked.ended_there = request_id in unbilled and not booked.over
                self._strike(booked, ends.get(request_id), now)
        return struck

    def _strike(self, booked: Booked, end: RequestSettled | None, now: Instant) -> None:
        """Ends it in the book, with what was used where the member has told."""
        completed = end is not None and end.completed
        if not completed:
            # What its tenant pays, and is no answer, is what was done for a caller who left.
            left = WithdrawalCause.CLIENT_LEFT if booked.ended_there else WithdrawalCause.GRACE_OVER
            self._book.withdraw(booked, now, left)
        booked.over = True
        ending = AttemptEnding.COMPLETED if completed else AttemptEnding.ABORTED
        usage = None if end is None else end.usage
        for number in tuple(booked.attempts):
            del booked.attempts[number]
            ended = AttemptEnded(booked.ticket.request_id, number, ending, "by its member's report", usage)
            self._book.handle(ended, now)
        self._book.withdraw(booked, now)

    # What is named

    def _take_attempt(self, peer: Peer, said: Runs, at: Instant, now: Instant, *, again: _Struck) -> None:
        told = said.report
        request_id, since = told.ticket.request_id, max(0, now - at)
        booked, cost = self._book.requests.get(request_id), NanoUsd(0)
        if booked is None:
            if told.over and not again.get(request_id):
                cost = self._uncounted(peer, said)
            request_age_ns = told.age_ns if told.request_age_ns is None else told.request_age_ns
            booked = self._book.enter(Booked(told.ticket, peer, Instant(at - request_age_ns)))
            booked.over = told.over
        if told.endpoint_id not in self._endpoints.by_id:
            self._book.ghosts.setdefault(told.endpoint_id, told.pool)
        booked.attempts[told.attempt] = Place(told.endpoint_id, Instant(at - told.age_ns), begun=True)
        known = Counted.NOTHING if request_id in again else self._counted(peer, said.arrived, said.sent, said.told)
        whole_ns = None if told.request_age_ns is None else Duration(told.request_age_ns + since)
        age_ns = Duration(told.age_ns + since)
        self._book.handle(replace(told, age_ns=age_ns, request_age_ns=whole_ns, counted=known, cost=cost), now)

    def _take_waiting(self, peer: Peer, said: Waits, at: Instant, now: Instant, *, again: _Struck) -> None:
        told = said.report
        request_id, since = told.ticket.request_id, max(0, now - at)
        age_ns = Duration((told.waited_ns if told.age_ns is None else told.age_ns) + since)
        self._book.enter(Booked(told.ticket, peer, Instant(now - age_ns)))
        known = Counted.NOTHING if request_id in again else self._counted(peer, said.arrived, None, 0)
        waited_ns = Duration(told.waited_ns + since)
        self._book.handle(replace(told, waited_ns=waited_ns, age_ns=age_ns, counted=known), now)

    def _settle(self, peer: Peer, said: Settled, at: Instant, now: Instant, *, struck: _Struck) -> None:
        """Counts what has ended, as far as it was not in the book: of what was there, the cost if it was lost."""
        billed = struck.get(said.report.ticket.request_id)
        if said.serial > peer.known and not billed:
            known = Counted.ENDED if billed is False else self._counted(peer, said.arrived, said.sent, 0)
            age_ns = Duration(said.report.age_ns + max(0, now - at))
            cost = self._uncounted(peer, said)
            self._book.handle(replace(said.report, counted=known, age_ns=age_ns, cost=cost), now)

    def _uncounted(self, peer: Peer, said: Settled | Runs) -> NanoUsd | None:
        """What a request has cost beyond what the counters have of it."""
        cost = said.report.cost if isinstance(said, Settled) else said.cost
        return NanoUsd(0) if 0 < said.ended <= peer.known else cost

    def _counted(self, peer: Peer, arrived: int, sent: Snapshots | None, told: int) -> Counted:
        return counted(peer, arrived, sent, told, epoch=self._epoch, began_with=self._began_with)


def _oldest_first(told: tuple[Peer, Instant, Waits]) -> tuple[int, RequestId]:
    _, at, said = told
    report = said.report
    return at - (report.waited_ns if report.age_ns is None else report.age_ns), report.ticket.request_id
