"""Handles members that are absent, dead or leaving.

A member that has not confirmed receipt of our messages for `island_after_ns` may be an island. From then on, its share
is reserved (`island_reserve`), its running attempts stay assigned, and its queued requests are left to the member. This
lasts until the member's next report or until it has been silent for `lost_after_ns`. Attempts of absent or dead members
are dropped earlier if engine metrics show that they have ended (`vanished_attempts`).
"""

from collections.abc import Iterable

from headgate.core.events import EndpointMetricsReported
from headgate.hosts.cell.leader.assignment_table import AssignmentTable, aborted_attempt
from headgate.hosts.cell.leader.island_reserve import IslandReserve
from headgate.hosts.cell.leader.peers import AssignedRequest, Peer
from headgate.hosts.cell.leader.roster import MemberRoster
from headgate.hosts.cell.leader.vanished_attempts import VanishedAttempts
from headgate.hosts.cell.protocol.views import MemberPresence
from headgate.hosts.cell.timing import CellBounds, Timing
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId, Instant, after


class AbsenceMonitor:
    def __init__(
        self,
        book: AssignmentTable,
        roster: MemberRoster,
        reserve: IslandReserve,
        now: Instant,
        *,
        timing: Timing,
        bounds: CellBounds,
    ) -> None:
        self._book, self._roster, self._reserve = book, roster, reserve
        self._timing, self._bounds = timing, bounds
        self._vacancies = VanishedAttempts(timing)
        self.next_check_at = now
        """Time at which a member may become an island."""

    def check(self, now: Instant) -> None:
        """Checks for members that may be islands.

        Must run before every decision, because this process may have been paused.
        """
        if now < self.next_check_at:
            return
        for peer in self._roster.with_presence(MemberPresence.PRESENT):
            if peer.island_at() <= now or len(peer.outbound) > self._bounds.unacknowledged_max:
                self.mark_absent(peer, now)
        for peer in (*self._roster.with_presence(MemberPresence.ABSENT), *self._roster.dead.values()):
            if peer.is_lost(now) or (peer.presence is MemberPresence.DEAD and not peer.requests):
                self.forget(peer, now)
        self._drop_vanished_attempts(now)
        self._reserve.update(now)
        soonest = after(now, self._timing.heartbeat_ns)
        for peer in self._roster.with_presence(MemberPresence.PRESENT):
            soonest = min(soonest, peer.island_at())
        self.next_check_at = soonest

    def mark_absent(self, peer: Peer, now: Instant) -> None:
        """Marks a member as absent.

        Its queued requests are left to the member, and its running attempts stay assigned.
        """
        peer.mark_absent(now)
        self._book.peers_to_notify[peer.name] = peer
        # The share must be reserved first, so that the freed capacity is not assigned to others.
        self._reserve.update(now)
        for booked in tuple(peer.requests.values()):
            self._book.withdraw(booked, now)

    def mark_dead(self, peer: Peer, now: Instant) -> None:
        """Marks an incarnation as dead. Its attempts stay assigned for a while."""
        peer.presence, peer.presence_since = MemberPresence.DEAD, now
        for booked in tuple(peer.requests.values()):
            self._book.withdraw(booked, now)
        if peer.requests:
            self._roster.dead[peer.name, peer.incarnation] = peer

    def forget(self, peer: Peer, now: Instant) -> None:
        """Drops all state for a member that has left or is lost."""
        self._roster.remove(peer)
        for booked in tuple(peer.requests.values()):
            self._drop_attempts(booked, tuple(booked.attempts), now)
        self._reserve.update(now)

    def clear_unknown_endpoint(self, endpoint: Endpoint, now: Instant) -> None:
        """Drops attempts reported on an endpoint that is joining another pool. Their members must report again."""
        if self._book.unknown_endpoints.pop(endpoint.id, endpoint.pool) == endpoint.pool:
            return
        for booked in tuple(self._book.requests.values()):
            numbers = [number for number, place in booked.attempts.items() if place.endpoint_id == endpoint.id]
            if numbers:
                # All attempts must end before the endpoint is added to the scheduler.
                self._book.withdraw(booked, now)
                for number in numbers:
                    del booked.attempts[number]
                    self._book.handle(
                        aborted_attempt(booked.ticket.request_id, number, "the endpoint has joined another pool"), now
                    )
                self._book.remove_if_done(booked)
                if booked.peer.presence is MemberPresence.PRESENT:
                    self.mark_absent(booked.peer, now)

    def record_measurement(
        self, event: EndpointMetricsReported, now: Instant, *, sharing: tuple[EndpointId, ...]
    ) -> None:
        """Records a measurement from an engine. It matters only if a member is absent or dead."""
        if self._roster.dead or self._roster.with_presence(MemberPresence.ABSENT):
            self._vacancies.record(event, self._book.requests.values(), now, sharing=sharing)

    def _drop_vanished_attempts(self, now: Instant) -> None:
        for request_id, number in self._vacancies.find(self._book.has, now):
            booked = self._book.requests[request_id]
            if booked.peer.presence in (MemberPresence.ABSENT, MemberPresence.DEAD):
                self._drop_attempts(booked, (number,), now)

    def _drop_attempts(self, booked: AssignedRequest, numbers: Iterable[int], now: Instant) -> None:
        """Treats these attempts of a request as ended."""
        self._book.withdraw(booked, now)
        for number in numbers:
            place = booked.attempts.pop(number)
            # The member may start another attempt in the freed slot, within its share.
            self._reserve.update_endpoint(place.endpoint_id, now)
            self._book.handle(aborted_attempt(booked.ticket.request_id, number, "its gateway is lost"), now)
        self._book.remove_if_done(booked)
