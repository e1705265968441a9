"""What follows from what a member tells after its report?

Each message changes the book and is put before the scheduler. What is told of a request or an attempt that is not in
the book is ignored.
"""

from headgate.core.events import (
    AttemptEnded,
    AttemptProgress,
    Counted,
    FirstToken,
    Progressed,
    RequestReported,
    RequestWithdrawn,
)
from headgate.hosts.cell.leader.absence import Absence
from headgate.hosts.cell.leader.book import Book, stopped
from headgate.hosts.cell.leader.peers import Booked, Peer, Place, Said
from headgate.hosts.cell.leader.roster import Roster
from headgate.hosts.cell.protocol.messages import Arrived, Declined, Ended, Leaves, ReportDone, Runs, Settled, Waits
from headgate.model.units import Duration, Instant, RequestId


class MemberNews:
    def __init__(self, book: Book, roster: Roster, absence: Absence) -> None:
        self._book, self._roster, self._absence = book, roster, absence

    def take(self, peer: Peer, said: Said, now: Instant) -> None:
        """One message of a member whose report was adopted."""
        serial, at, what = said
        match what:
            case Arrived():
                self._book.arrive(peer, what, at, now)
            case FirstToken(request_id, attempt):
                if (place := self._place(peer, request_id, attempt)) is not None:
                    place.begun = True
                    self._book.handle(what, now)
            case Progressed():
                self._progressed(peer, what, now)
            case Ended(event, over):
                self._ended(peer, event, now, over=over)
            case RequestWithdrawn(request_id):
                if (booked := peer.requests.get(request_id)) is not None:
                    booked.over = booked.ended_there = True
                    self._book.handle(what, now)
                    self._book.strike_if_done(booked)
            case Declined():
                self._declined(peer, what, at, now)
            case Leaves():
                self._absence.forget(peer, now)
                self._roster.see_off(peer)
            case Waits() | Runs() | Settled() | ReportDone():
                # The leader rejects these after a report.
                return
        peer.known = serial

    def _place(self, peer: Peer, request_id: RequestId, attempt: int) -> Place | None:
        """Where an attempt of this member runs. Messages about other members' requests are ignored."""
        booked = peer.requests.get(request_id)
        return None if booked is None else booked.attempts.get(attempt)

    def _progressed(self, peer: Peer, event: Progressed, now: Instant) -> None:
        own: list[AttemptProgress] = []
        for each in event.attempts:
            if (place := self._place(peer, each.request_id, each.attempt)) is not None:
                place.begun = True
                own.append(each)
        self._book.handle(Progressed(tuple(own), event.late), now)

    def _ended(self, peer: Peer, event: AttemptEnded, now: Instant, *, over: bool) -> None:
        booked = peer.requests.get(event.request_id)
        if booked is None or booked.attempts.pop(event.attempt, None) is None:
            return
        if over and not booked.over:
            booked.over = booked.ended_there = True
        self._book.handle(event, now)
        if booked.over and self._book.requests.get(event.request_id) is booked:
            self._book.withdraw(booked, now)

    def _declined(self, peer: Peer, what: Declined, at: Instant, now: Instant) -> None:
        """The place is free. The request, if it is still there, waits on as if it had not been granted anything."""
        book = self._book
        booked = peer.requests.get(what.request_id)
        if booked is None or booked.attempts.pop(what.attempt, None) is None:
            return
        ended = stopped(what.request_id, what.attempt, what.reason)
        if booked.attempts:
            book.handle(ended, now)
            return
        goes_on = not (what.over or booked.over)
        book.withdraw(booked, now)
        book.handle(ended, now)
        if goes_on:
            waited_ns = Duration(what.waited_ns + max(0, now - at))
            age_ns = Duration(max(waited_ns, now - booked.known_at))
            book.enter(Booked(booked.ticket, booked.peer, booked.known_at))
            attempts = what.attempt - 1
            book.handle(
                RequestReported(booked.ticket, waited_ns, attempts, age_ns=age_ns, counted=Counted.NOTHING), now
            )
