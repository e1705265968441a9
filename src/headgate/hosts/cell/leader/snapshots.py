"""What does a scheduler leave to its successor, and what may members forget because of it?

Every `snapshot_ns` the counters are told, with how far each member's story is in them. When one that is two such times
older than the last is covered by a written one, every candidate has read it, and members forget the ends that it
covers. Members are told new shares once a snapshot with them is written; so one is taken soon after shares were dealt.
"""

from typing import Final, NamedTuple

from headgate.core.scheduler import Scheduler
from headgate.hosts.cell.leader.book import Book
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.leader.reserve import Reserve
from headgate.hosts.cell.leader.roster import Roster
from headgate.hosts.cell.protocol.messages import Covered, Share, Snapshot, Snapshots
from headgate.hosts.cell.protocol.validation import check_counters
from headgate.model.units import MILLISECOND, Duration, Instant, after

_SNAPSHOTS_KEPT: Final = 64
"""Of so many of the last snapshots it is kept what they know of the members."""
_COVERED_AFTER: Final = 2
"""What a snapshot knows may be forgotten after so many times `snapshot_ns`, when a later one is written: by then every
candidate has read it, and it outlives the store."""
_SHARES_NS: Final = Duration(100 * MILLISECOND)
"""The least time between snapshots that are taken for new shares."""


class _Covers(NamedTuple):
    """What a snapshot knows of the members."""

    taken_at: Instant
    known: tuple[tuple[Peer, int], ...]
    dealt: tuple[tuple[Peer, Share], ...]
    """The shares in it that the members had not been told."""


def restore(snapshot: Snapshot, book: Book, now: Instant, *, told_ns_ago: Duration) -> str | None:
    """Restores the scheduler from a snapshot. Returns why the snapshot is not used, or None."""
    try:
        check_counters(snapshot.counters)
        book.scheduler.restore(snapshot.counters, now, told_ns_ago=told_ns_ago)
    except Exception as unusable:  # noqa: BLE001  Every successor would fail with the same snapshot.
        book.scheduler = Scheduler()
        return f"the snapshot of epoch {snapshot.at.epoch} is not used: {unusable!r}"
    return None


class SnapshotWriter:
    def __init__(self, book: Book, roster: Roster, reserve: Reserve, now: Instant, *, snapshot_ns: Duration) -> None:
        self._book, self._roster, self._reserve, self._snapshot_ns = book, roster, reserve, snapshot_ns
        self._due = self._shares_due = now
        self._covers: dict[int, _Covers] = {}
        """What each of the last snapshots knows."""

    @property
    def due(self) -> Instant:
        """When the next is to be taken."""
        return min(self._due, self._shares_due) if self._roster.unsaved else self._due

    def take(self, policy_hash: str, now: Instant) -> Snapshot:
        self._due, self._shares_due = after(now, self._snapshot_ns), after(now, _SHARES_NS)
        self._roster.unsaved = False
        at = self._book.next_snapshot
        self._book.next_snapshot = Snapshots(at.epoch, at.number + 1)
        peers = self._roster.peers.values()
        known = tuple((peer, peer.known) for peer in peers)
        dealt = tuple((peer, peer.dealt) for peer in peers if peer.dealt is not None)
        self._covers[at.number] = _Covers(now, known, dealt)
        if len(self._covers) > _SNAPSHOTS_KEPT:
            del self._covers[next(iter(self._covers))]
        return Snapshot(at, self._book.scheduler.counters(now), self._roster.noted(), policy_hash)

    def written(self, at: Snapshots, now: Instant) -> None:
        """The store has it: members may forget what was covered a while ago, and have the shares that it names."""
        if at.epoch != self._book.next_snapshot.epoch or at.number not in self._covers:
            return
        for peer, dealt in self._covers[at.number].dealt:
            if dealt == peer.dealt and self._roster.peers.get(peer.name) is peer:
                self._reserve.tell_share(peer, dealt, now)
        seen_by_all = Instant(self._covers[at.number].taken_at - _COVERED_AFTER * self._snapshot_ns)
        older = [each for each in self._covers.values() if each.taken_at <= seen_by_all]
        for peer, known in older[-1].known if older else ():
            if known > peer.told_covered and peer.talks:
                peer.told_covered = known
                self._book.say(peer, Covered(known), now)
