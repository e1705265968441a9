"""What follows from what a member tells after its report?

Each message changes the book and is put before the scheduler. What is told of a request or an attempt that is not in
the book is ignored.
"""

from headgate.core.events import AttemptEnded, Counted, FirstToken, Progressed, RequestReported, RequestWithdrawn
from headgate.hosts.cell.leader.absence import Absence
from headgate.hosts.cell.leader.book import Book, stopped
from headgate.hosts.cell.leader.peers import Booked, Peer, Said
from headgate.hosts.cell.leader.roster import Roster
from headgate.hosts.cell.protocol.messages import Arrived, Declined, Ended, Leaves, ReportDone, Runs, Settled, Waits
from headgate.model.units import Duration, Instant


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
                if (place := self._book.place(request_id, attempt)) is not None:
                    place.begun = True
                    self._book.handle(what, now)
            case Progressed():
                self._progressed(what, now)
            case Ended(event, over):
                self._ended(event, now, over=over)
            case RequestWithdrawn(request_id):
                if (booked := self._book.requests.get(request_id)) is not None:
                    booked.over = booked.ended_there = True
                    self._book.handle(what, now)
                    self._book.strike_if_done(booked)
            case Declined():
                self._declined(what, at, now)
            case Leaves():
                self._absence.forget(peer, now)
                self._roster.see_off(peer)
            case Waits() | Runs() | Settled() | ReportDone():
                raise AssertionError(f"{type(what).__name__} after the report was done")
        peer.known = serial

    def _progressed(self, event: Progressed, now: Instant) -> None:
        for each in event.attempts:
            if (place := self._book.place(each.request_id, each.attempt)) is not None:
                place.begun = True
        self._book.handle(event, now)

    def _ended(self, event: AttemptEnded, now: Instant, *, over: bool) -> None:
        booked = self._book.requests.get(event.request_id)
        if booked is None or booked.attempts.pop(event.attempt, None) is None:
            return
        if over and not booked.over:
            booked.over = booked.ended_there = True
        self._book.handle(event, now)
        if booked.over and self._book.requests.get(event.request_id) is booked:
            self._book.withdraw(booked, now)

    def _declined(self, what: Declined, at: Instant, now: Instant) -> None:
        """The place is free. The request, if it is still there, waits on as if it had not been granted anything."""
        book = self._book
        booked = book.requests.get(what.request_id)
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
