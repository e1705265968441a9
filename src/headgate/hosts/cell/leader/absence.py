"""What becomes of what a member has when it does not answer, dies or leaves?

A member that has not shown for `island_after_ns` that it hears us may be an island. From that moment on its share is
kept for it (`reserve`); what it has under way stays booked, and what it has waiting is its own affair. That ends with
the member's next report, or after `lost_ns` of silence. Attempts of one that is absent or dead are given up earlier
where the engines show that they are gone (`vacancies`).
"""

from collections.abc import Iterable

from headgate.core.events import EndpointMeasured
from headgate.hosts.cell.leader.book import Book, stopped
from headgate.hosts.cell.leader.peers import Booked, Peer
from headgate.hosts.cell.leader.reserve import Reserve
from headgate.hosts.cell.leader.roster import Roster
from headgate.hosts.cell.leader.vacancies import Vacancies
from headgate.hosts.cell.protocol.views import Standing
from headgate.hosts.cell.timing import Bounds, Timing
from headgate.model.endpoint import Endpoint
from headgate.model.units import Instant, after


class Absence:
    def __init__(
        self, book: Book, roster: Roster, reserve: Reserve, now: Instant, *, timing: Timing, bounds: Bounds
    ) -> None:
        self._book, self._roster, self._reserve = book, roster, reserve
        self._timing, self._bounds = timing, bounds
        self._vacancies = Vacancies(timing)
        self.look_at = now
        """When somebody may have become an island."""

    def watch(self, now: Instant) -> None:
        """Looks who may have become an island, before anything is decided: a pause of ours may have come between."""
        if now < self.look_at:
            return
        for peer in self._roster.of(Standing.PRESENT):
            if peer.alone_from() <= now or len(peer.outbound) > self._bounds.window:
                self.lose_sight(peer, now)
        for peer in (*self._roster.of(Standing.ABSENT), *self._roster.dead.values()):
            if peer.lost(now) or (peer.standing is Standing.DEAD and not peer.requests):
                self.forget(peer, now)
        self._give_up_what_is_gone(now)
        self._reserve.keep(now)
        soonest = after(now, self._timing.beat_ns)
        for peer in self._roster.of(Standing.PRESENT):
            soonest = min(soonest, peer.alone_from())
        self.look_at = soonest

    def lose_sight(self, peer: Peer, now: Instant) -> None:
        """It may be an island: what it has waiting is its own affair, what it has under way stays where it is."""
        peer.lose_sight(now)
        self._book.to_tell[peer.name] = peer
        # Kept before anything else happens: what becomes free is not to be given away first.
        self._reserve.keep(now)
        for booked in tuple(peer.requests.values()):
            self._book.withdraw(booked, now)

    def bury(self, peer: Peer, now: Instant) -> None:
        """That life is over. What it had at the engines stays booked for a while."""
        peer.standing, peer.since = Standing.DEAD, now
        for booked in tuple(peer.requests.values()):
            self._book.withdraw(booked, now)
        if peer.requests:
            self._roster.dead[peer.name, peer.incarnation] = peer

    def forget(self, peer: Peer, now: Instant) -> None:
        """Nothing is kept any more for a member that has left or is lost."""
        self._roster.strike(peer)
        for booked in tuple(peer.requests.values()):
            self._give_up(booked, tuple(booked.attempts), now)
        self._reserve.keep(now)

    def clear_ghost(self, endpoint: Endpoint, now: Instant) -> None:
        """Drop attempts reported at an endpoint that joins in another pool, and ask their members to report again."""
        if self._book.ghosts.pop(endpoint.id, endpoint.pool) == endpoint.pool:
            return
        for booked in tuple(self._book.requests.values()):
            numbers = [number for number, place in booked.attempts.items() if place.endpoint_id == endpoint.id]
            if numbers:
                # All attempts must end before the endpoint is added to the scheduler.
                self._book.withdraw(booked, now)
                for number in numbers:
                    del booked.attempts[number]
                    self._book.handle(stopped(booked.ticket.request_id, number, "reported in another pool"), now)
                self._book.strike_if_done(booked)
                if booked.peer.standing is Standing.PRESENT:
                    self.lose_sight(booked.peer, now)

    def saw(self, event: EndpointMeasured, now: Instant) -> None:
        """An engine has told what it has."""
        self._vacancies.saw(event, self._book.requests.values(), now)

    def _give_up_what_is_gone(self, now: Instant) -> None:
        for request_id, number in self._vacancies.gone(self._book.has, now):
            booked = self._book.requests[request_id]
            if booked.peer.standing in (Standing.ABSENT, Standing.DEAD):
                self._give_up(booked, (number,), now)

    def _give_up(self, booked: Booked, numbers: Iterable[int], now: Instant) -> None:
        """Takes these attempts to be at their engines no more."""
        self._book.withdraw(booked, now)
        for number in numbers:
            place = booked.attempts.pop(number)
            # What its member has no longer under way it may begin again, within its share.
            self._reserve.join(place.endpoint_id, now)
            self._book.handle(stopped(booked.ticket.request_id, number, "its gateway is gone"), now)
        self._book.strike_if_done(booked)
