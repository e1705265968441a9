"""Who belongs to the cell, and which part of everything is whose when it decides by itself?

Every member that serves callers has a rank, and with it a share (`shares`). It is told its share and keeps to the last
one that it has heard, so as long as it has not acknowledged a new one the larger of both is taken to be its own. Ranks
are given anew only when nobody is absent: whoever does not hear of it would count on another's. A new share is told
once a snapshot with it is in the store (`snapshots`). Otherwise a successor could reserve too little for a member that
it does not hear from.
"""

from collections.abc import Iterator

from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.protocol.messages import MemberHead, MemberNoted, Share
from headgate.hosts.cell.protocol.validation import MEMBERS_MAX, SHARES_MAX
from headgate.hosts.cell.protocol.views import Standing
from headgate.hosts.cell.timing import Timing
from headgate.model.endpoint import Endpoint
from headgate.model.units import Instant

_LEFT_KEPT = 64


class Roster:
    def __init__(self, noted: tuple[MemberNoted, ...], now: Instant, *, timing: Timing) -> None:
        """`noted` are those of whom an earlier scheduler has told."""
        self._timing = timing
        self.peers: dict[str, Peer] = {}
        """The latest life of each member."""
        self.dead: dict[tuple[str, int], Peer] = {}
        """Lives that are over, of which something may still be at the engines."""
        self.unsaved = False
        """Whether a share has been dealt since the last snapshot was taken."""
        self.left: dict[str, Peer] = {}
        """The last that have said that they go: they may not have heard that it was heard."""
        for each in noted:
            peer = self.peers[each.member] = Peer(each.member, each.incarnation, now, timing=timing)
            peer.known, peer.rank = each.covered, each.share.rank
            peer.shares.extend((0, share) for share in (*each.earlier, each.share))

    def begin_blank(self) -> None:
        """Resets the known serials: without a snapshot, the counters cover nothing of the members."""
        for peer in self.peers.values():
            peer.known = 0

    def of(self, standing: Standing) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.standing is standing]

    def latest(self, head: MemberHead) -> Peer | None:
        """The record of the life that speaks; None where it is new, or another is known that is later."""
        peer = self.peers.get(head.member)
        return peer if peer is not None and peer.incarnation == head.incarnation else None

    def enter(self, head: MemberHead, now: Instant) -> Peer:
        """A record for a life that is heard for the first time. It takes the rank of the one before it."""
        before = self.peers.get(head.member)
        peer = self.peers[head.member] = Peer(head.member, head.incarnation, now, timing=self._timing)
        if before is not None:
            # A process that starts again has ended before: nobody else can take its share meanwhile.
            peer.rank = before.rank
        elif head.serves and all(each.rank != head.share.rank for each in self.peers.values()):
            peer.rank = head.share.rank
        return peer

    @property
    def full(self) -> bool:
        return len(self.peers) >= MEMBERS_MAX

    def is_over(self, head: MemberHead) -> Peer | None:
        """The record that shows that the sending incarnation is over: a later one, or its own if it has left."""
        later, left = self.peers.get(head.member), self.left.get(head.member)
        if later is not None and later.incarnation > head.incarnation:
            return later
        return left if left is not None and left.incarnation == head.incarnation else None

    def see_off(self, peer: Peer) -> None:
        self.left.pop(peer.name, None)
        self.left[peer.name] = peer
        if len(self.left) > _LEFT_KEPT:
            del self.left[next(iter(self.left))]

    def strike(self, peer: Peer) -> None:
        self.dead.pop((peer.name, peer.incarnation), None)
        if self.peers.get(peer.name) is peer:
            del self.peers[peer.name]

    def all_have_read(self, policy_hash: str) -> bool:
        """Whether every present, serving member applies this policy or has it staged."""
        return all(policy_hash in (peer.policy_hash, peer.staged) for peer in self.of(Standing.PRESENT) if peer.serves)

    # Shares

    @property
    def members(self) -> int:
        """Among how many everything is dealt out."""
        return max((peer.rank + 1 for peer in self.peers.values() if peer.rank is not None), default=0)

    @property
    def taken(self) -> int:
        """How many shares are kept for those who do not answer."""
        return len([peer for peer in self.of(Standing.ABSENT) if peer.shares])

    def places_left(self, endpoint: Endpoint) -> int:
        """What of an endpoint is kept for nobody."""
        places = endpoint.in_flight_max
        for peer in self.of(Standing.ABSENT):
            places -= peer.places_kept(endpoint.id, endpoint.in_flight_max)
        return max(0, places)

    def deal(self) -> Iterator[tuple[Peer, Share]]:
        """Gives a rank to whoever has none; those whose share is another than they were told."""
        serving = [peer for peer in self.peers.values() if peer.serves]
        present = [peer for peer in serving if peer.standing is Standing.PRESENT]
        if len(present) == len(serving) and self.members > len(present):
            for rank, peer in enumerate(sorted(present, key=lambda each: each.rank or 0)):
                peer.rank = rank
        for peer in present:
            if peer.rank is None:
                used = {each.rank: None for each in self.peers.values()}
                peer.rank = next(rank for rank in range(len(self.peers) + 1) if rank not in used)
        for peer in present:
            assert peer.rank is not None
            share = Share(peer.rank, self.members)
            if (peer.dealt or peer.told_share()) != share:
                yield peer, share

    def noted(self) -> tuple[MemberNoted, ...]:
        """What a successor has to know of the members."""
        return tuple(
            MemberNoted(peer.name, peer.incarnation, peer.known, shares[-1], shares[-1 - SHARES_MAX : -1])
            for peer in self.peers.values()
            if (shares := peer.all_shares()) and peer.rank is not None
        )
