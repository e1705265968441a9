"""What does the scheduler leave alone for those who do not answer?

A member that may be an island takes its share of everything by itself. So the scheduler's core is told of fewer places
at each endpoint, and of lower limits, for as long as anybody is absent; and all others are dealt their shares.
"""

from collections.abc import Iterable
from dataclasses import replace

from headgate.core.events import EndpointJoined, PolicyChanged
from headgate.hosts.cell.leader.book import Book
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.leader.roster import Roster
from headgate.hosts.cell.protocol.endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Share
from headgate.hosts.cell.protocol.shares import rest_policy
from headgate.model.units import EndpointId, Instant


class Reserve:
    def __init__(self, book: Book, roster: Roster, endpoints: KnownEndpoints, rules: PolicyChanged) -> None:
        self._book, self._roster, self._endpoints = book, roster, endpoints
        self.rules = rules
        self._taken = 0
        """So many shares the scheduler was told to leave alone."""
        self._limits: dict[EndpointId, int] = {}
        """How many places the scheduler was told that each endpoint has."""
        self._frozen: dict[EndpointId, None] = {}

    def begin(self, now: Instant) -> None:
        self._taken = self._roster.taken
        self.tell_policy(now)

    def tell_policy(self, now: Instant) -> None:
        members = max(1, self._roster.members)
        rest = rest_policy(self.rules.policy, taken=self._taken, of=members)
        name = f"{self.rules.hash} less {self._taken} of {members}" if self._taken else self.rules.hash
        self._book.handle(PolicyChanged(rest, name), now)

    def keep(self, now: Instant) -> None:
        """Keeps free what those may take who do not answer, and deals shares to all others."""
        for endpoint_id in tuple(self._limits):
            self.join(endpoint_id, now)
        if (taken := self._roster.taken) != self._taken:
            self._taken = taken
            self.tell_policy(now)
        for peer, share in tuple(self._roster.deal()):
            peer.dealt = None if share == peer.told_share() else share
            self._roster.unsaved = True

    def join(self, endpoint_id: EndpointId, now: Instant, *, anew: bool = False) -> None:
        """Tells the scheduler how many places an endpoint has, less those that are kept."""
        endpoint = self._endpoints.by_id.get(endpoint_id)
        if endpoint is None:
            self._limits.pop(endpoint_id, None)
            return
        places = 0 if endpoint_id in self._frozen else self._roster.places_left(endpoint)
        if anew or self._limits.get(endpoint_id) != places:
            self._limits[endpoint_id] = places
            self._book.handle(EndpointJoined(replace(endpoint, in_flight_max=places)), now)

    def freeze(self, endpoint_ids: Iterable[EndpointId], now: Instant) -> None:
        """Sends nothing new to these, and to no others any more."""
        thawed, self._frozen = self._frozen, dict.fromkeys(endpoint_ids)
        for endpoint_id in {**thawed, **self._frozen}:
            if endpoint_id in self._limits:
                self.join(endpoint_id, now)

    def tell_share_again(self, peer: Peer, now: Instant) -> None:
        """Repeats its share to a member that has come back. A share dealt meanwhile is told after the next snapshot."""
        share = peer.told_share()
        if share is not None and peer.rank is not None:
            self.tell_share(peer, share, now)
        self._roster.unsaved = self._roster.unsaved or peer.dealt is not None

    def tell_share(self, peer: Peer, share: Share, now: Instant) -> None:
        if peer.talks:
            peer.dealt = None if peer.dealt == share else peer.dealt
            peer.shares.append((peer.outbound.next, share))
            self._book.say(peer, share, now)
