"""Members of a cell, their ranks and their shares.

Every member that serves clients has a rank, which determines its share (`shares`). A member uses the last share it
received. Until it has acknowledged a new share, the larger of the two is reserved for it. Ranks are reassigned only if
no member is absent, because an absent member would keep using its old share. A new share is sent once a snapshot that
contains it is in the store (`snapshots`). Otherwise, a successor could reserve too little for a member that does not
respond.
"""

from collections.abc import Iterator

from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.protocol.messages import MemberEntryState, MemberHead, Share
from headgate.hosts.cell.protocol.shares import engine_name
from headgate.hosts.cell.protocol.validation import MEMBERS_MAX, SHARES_MAX
from headgate.hosts.cell.protocol.views import MemberPresence
from headgate.hosts.cell.timing import Timing
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId, Instant

_DEPARTED_MAX = 64

AbsentUsage = list[tuple[Peer, dict[EndpointId, int]]]
"""Absent members, each with its number of attempts per endpoint."""


class MemberRoster:
    def __init__(self, snapshot_members: tuple[MemberEntryState, ...], now: Instant, *, timing: Timing) -> None:
        """`snapshot_members` lists the members in the snapshot of an earlier scheduler."""
        self._timing = timing
        self.peers: dict[str, Peer] = {}
        """Latest incarnation of each member."""
        self.dead: dict[tuple[str, int], Peer] = {}
        """Earlier incarnations that may still have attempts running on the engines."""
        self.has_unsaved_shares = False
        """Whether a share has been assigned since the last snapshot."""
        self.departed: dict[str, Peer] = {}
        """Members that left most recently. They may not have received the acknowledgement."""
        for each in snapshot_members:
            peer = self.peers[each.member] = Peer(each.member, each.incarnation, now, timing=timing)
            peer.counted_serial, peer.rank = each.covered_serial, each.share.rank
            peer.shares.extend((0, share) for share in (*each.earlier_shares, each.share))

    def reset_coverage(self) -> None:
        """Resets the known serials, because without a snapshot the counters include nothing from the members."""
        for peer in self.peers.values():
            peer.counted_serial = 0

    def with_presence(self, standing: MemberPresence) -> list[Peer]:
        return [peer for peer in self.peers.values() if peer.presence is standing]

    def find(self, head: MemberHead) -> Peer | None:
        """Returns the record of this incarnation. None if it is new or a later one is known."""
        peer = self.peers.get(head.member)
        return peer if peer is not None and peer.incarnation == head.incarnation else None

    def add(self, head: MemberHead, now: Instant) -> Peer:
        """Adds a record for a new incarnation, which gets the rank of the previous incarnation."""
        before = self.peers.get(head.member)
        peer = self.peers[head.member] = Peer(head.member, head.incarnation, now, timing=self._timing)
        if before is not None:
            # The previous incarnation has exited, so its share is free.
            peer.rank = before.rank
        elif head.serves and all(each.rank != head.share.rank for each in self.peers.values()):
            peer.rank = head.share.rank
        return peer

    @property
    def is_full(self) -> bool:
        return len(self.peers) >= MEMBERS_MAX

    def superseded_by(self, head: MemberHead) -> Peer | None:
        """Returns the record of a later incarnation, or of the sender itself if it has left. None if the sender is
        current.
        """
        later, left = self.peers.get(head.member), self.departed.get(head.member)
        if later is not None and later.incarnation > head.incarnation:
            return later
        return left if left is not None and left.incarnation == head.incarnation else None

    def record_departure(self, peer: Peer) -> None:
        self.departed.pop(peer.name, None)
        self.departed[peer.name] = peer
        if len(self.departed) > _DEPARTED_MAX:
            del self.departed[next(iter(self.departed))]

    def remove(self, peer: Peer) -> None:
        self.dead.pop((peer.name, peer.incarnation), None)
        if self.peers.get(peer.name) is peer:
            del self.peers[peer.name]

    def lowest_version(self, own: int) -> int:
        """Returns the lowest protocol version of the members that have sent anything, and of this process."""
        return min([own, *(peer.version for peer in self.peers.values() if peer.version)])

    def all_have_policy(self, policy_hash: str) -> bool:
        """Returns whether every present, serving member applies this policy or has it staged."""
        return all(
            policy_hash in (peer.policy_hash, peer.staged_hash)
            for peer in self.with_presence(MemberPresence.PRESENT)
            if peer.serves
        )

    # Shares

    @property
    def share_count(self) -> int:
        """Number of shares that capacity is divided into."""
        return max((peer.rank + 1 for peer in self.peers.values() if peer.rank is not None), default=0)

    @property
    def reserved_shares(self) -> int:
        """Number of shares reserved for absent members."""
        return len([peer for peer in self.with_presence(MemberPresence.ABSENT) if peer.shares])

    def absent_usage(self) -> AbsentUsage:
        """Returns the absent members, each with its number of attempts per endpoint."""
        return [(peer, peer.attempts_by_endpoint()) for peer in self.with_presence(MemberPresence.ABSENT)]

    def places_left(self, endpoint: Endpoint, absent: AbsentUsage, sharing: tuple[EndpointId, ...]) -> int:
        """Returns the slots of an endpoint that are not reserved. `sharing` are all endpoints on the same engine."""
        places = endpoint.in_flight_max
        for peer, attempts in absent:
            has = sum(attempts.get(each, 0) for each in sharing)
            places -= peer.reserved_places(engine_name(endpoint), endpoint.in_flight_max, has=has)
        return max(0, places)

    def assign_shares(self) -> Iterator[tuple[Peer, Share]]:
        """Assigns ranks to members without one. Yields each member whose share differs from the last one sent to it."""
        serving = [peer for peer in self.peers.values() if peer.serves]
        present = [peer for peer in serving if peer.presence is MemberPresence.PRESENT]
        if len(present) == len(serving) and self.share_count > len(present):
            for rank, peer in enumerate(sorted(present, key=lambda each: each.rank or 0)):
                peer.rank = rank
        for peer in present:
            if peer.rank is None:
                used = {each.rank: None for each in self.peers.values()}
                peer.rank = next(rank for rank in range(len(self.peers) + 1) if rank not in used)
        for peer in present:
            assert peer.rank is not None
            share = Share(peer.rank, self.share_count)
            if (peer.unsent_share or peer.sent_share()) != share:
                yield peer, share

    def snapshot_members(self) -> tuple[MemberEntryState, ...]:
        """Returns the state of the members for the snapshot."""
        return tuple(
            MemberEntryState(peer.name, peer.incarnation, peer.counted_serial, shares[-1], shares[-1 - SHARES_MAX : -1])
            for peer in self.peers.values()
            if (shares := peer.all_shares()) and peer.rank is not None
        )
