"""What does a scheduler leave to its successor, and what may members forget because of it?

Every `snapshot_ns` the counters are told, with how far each member's story is in them. Once two more are written, and
so every candidate has read it, members forget the ends that it covers. Members also learn their new shares from the
scheduler once a snapshot with them is written; so there is a snapshot as soon as a share has been dealt.
"""

from headgate.core.scheduler import Scheduler
from headgate.hosts.cell.leader.book import Book
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.leader.reserve import Reserve
from headgate.hosts.cell.leader.roster import Roster
from headgate.hosts.cell.protocol.messages import Covered, Share, Snapshot, Snapshots
from headgate.hosts.cell.protocol.validation import check_counters
from headgate.model.units import Duration, Instant, after

_SNAPSHOTS_KEPT = 16
"""Of so many of the last snapshots it is kept what they know of the members."""
_COVERED_AFTER = 2
"""What a snapshot knows may be forgotten when so many more were written: by then every candidate has read it, and it
outlives the store."""


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
        self._due = now
        self._covers: dict[int, tuple[tuple[Peer, int, Share | None], ...]] = {}
        """What each of the last snapshots knows of the members, and the shares that were dealt and not told."""

    def is_due(self, now: Instant) -> bool:
        return now >= self._due or self._roster.unsaved

    def take(self, policy_hash: str, now: Instant) -> Snapshot:
        self._due, self._roster.unsaved = after(now, self._snapshot_ns), False
        at = self._book.next_snapshot
        self._book.next_snapshot = Snapshots(at.epoch, at.number + 1)
        self._covers[at.number] = tuple((peer, peer.known, peer.dealt) for peer in self._roster.peers.values())
        if len(self._covers) > _SNAPSHOTS_KEPT:
            del self._covers[next(iter(self._covers))]
        return Snapshot(at, self._book.scheduler.counters(now), self._roster.noted(), policy_hash)

    def written(self, at: Snapshots, now: Instant) -> None:
        """The store has it: members may forget what was covered a while ago, and have the shares that it names."""
        if at.epoch != self._book.next_snapshot.epoch:
            return
        for peer, _, dealt in self._covers.get(at.number, ()):
            if dealt is not None and dealt == peer.dealt and self._roster.peers.get(peer.name) is peer:
                self._reserve.tell_share(peer, dealt, now)
        for peer, known, _ in self._covers.get(at.number - _COVERED_AFTER, ()):
            if known > peer.told_covered and peer.talks:
                peer.told_covered = known
                self._book.say(peer, Covered(known), now)
