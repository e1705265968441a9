"""Handles the messages that a member sends after its report.

Each message updates the assignment table and is passed to the scheduler. Messages about unknown requests or attempts
are ignored.
"""

from headgate.core.events import (
    AttemptEnded,
    AttemptProgress,
    AttemptsProgressed,
    CountedUpTo,
    FirstToken,
    RequestReported,
    RequestWithdrawn,
)
from headgate.hosts.cell.leader.absence import AbsenceMonitor
from headgate.hosts.cell.leader.assignment_table import AssignmentTable, aborted_attempt
from headgate.hosts.cell.leader.peers import AssignedRequest, AttemptPlacement, MemberMessage, Peer
from headgate.hosts.cell.leader.roster import MemberRoster
from headgate.hosts.cell.protocol.messages import (
    FinishedAttempt,
    GrantDeclined,
    MemberLeaving,
    NewRequest,
    QueuedRequest,
    ReportDone,
    RunningAttempt,
    SettledRequest,
)
from headgate.model.units import Duration, Instant, RequestId


class MemberUpdates:
    def __init__(self, book: AssignmentTable, roster: MemberRoster, absence: AbsenceMonitor) -> None:
        self._book, self._roster, self._absence = book, roster, absence

    def handle(self, peer: Peer, message: MemberMessage, now: Instant) -> None:
        """Handles one message from a member whose report was adopted."""
        serial, at, what = message
        match what:
            case NewRequest():
                self._book.add_arrival(peer, what, at, now)
            case FirstToken(request_id, attempt):
                if (place := self._place(peer, request_id, attempt)) is not None:
                    place.started = True
                    self._book.handle(what, now)
            case AttemptsProgressed():
                self._progressed(peer, what, now)
            case FinishedAttempt(event, over):
                self._ended(peer, event, now, over=over)
            case RequestWithdrawn(request_id):
                if (booked := peer.requests.get(request_id)) is not None:
                    booked.over = booked.ended_by_member = True
                    self._book.handle(what, now)
                    self._book.remove_if_done(booked)
            case GrantDeclined():
                self._declined(peer, what, at, now)
            case MemberLeaving():
                self._absence.forget(peer, now)
                self._roster.record_departure(peer)
            case QueuedRequest() | RunningAttempt() | SettledRequest() | ReportDone():
                # The scheduler rejects these messages after a report.
                return
        peer.counted_serial = serial

    def _place(self, peer: Peer, request_id: RequestId, attempt: int) -> AttemptPlacement | None:
        """Returns the placement of one of this member's attempts. Requests of other members are ignored."""
        booked = peer.requests.get(request_id)
        return None if booked is None else booked.attempts.get(attempt)

    def _progressed(self, peer: Peer, event: AttemptsProgressed, now: Instant) -> None:
        own: list[AttemptProgress] = []
        for each in event.attempts:
            if (place := self._place(peer, each.request_id, each.attempt)) is not None:
                place.started = True
                own.append(each)
        self._book.handle(AttemptsProgressed(tuple(own), event.late), now)

    def _ended(self, peer: Peer, event: AttemptEnded, now: Instant, *, over: bool) -> None:
        booked = peer.requests.get(event.request_id)
        if booked is None or booked.attempts.pop(event.attempt, None) is None:
            return
        if over and not booked.over:
            booked.over = booked.ended_by_member = True
        self._book.handle(event, now)
        if booked.over and self._book.requests.get(event.request_id) is booked:
            self._book.withdraw(booked, now)

    def _declined(self, peer: Peer, declined: GrantDeclined, at: Instant, now: Instant) -> None:
        """Frees the slot. If the request is still open, it is queued again as if it had not been granted."""
        book = self._book
        booked = peer.requests.get(declined.request_id)
        if booked is None or booked.attempts.pop(declined.attempt, None) is None:
            return
        ended = aborted_attempt(declined.request_id, declined.attempt, declined.reason)
        if booked.attempts:
            book.handle(ended, now)
            return
        goes_on = not (declined.request_over or booked.over)
        book.withdraw(booked, now)
        book.handle(ended, now)
        if goes_on:
            waited_ns = Duration(declined.waited_ns + max(0, now - at))
            age_ns = Duration(max(waited_ns, now - booked.arrived_at))
            book.add(AssignedRequest(booked.ticket, booked.peer, booked.arrived_at))
            attempts = declined.attempt - 1
            book.handle(
                RequestReported(booked.ticket, waited_ns, attempts, age_ns=age_ns, counted=CountedUpTo.NOTHING), now
            )
