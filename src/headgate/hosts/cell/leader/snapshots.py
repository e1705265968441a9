"""What does a scheduler leave to its successor, and what may members forget because of it?

Every `snapshot_ns` a snapshot is taken of the counters and of how much of each member's history they include. Members
forget the ends that a snapshot covers once another one, taken at least two intervals later, is in the store: by then
every candidate has read the first. Members are told new shares once a snapshot with them is in the store, so one is
taken soon after shares are dealt.
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
"""Number of recent snapshots whose coverage is remembered."""
_COVERED_AFTER: Final = 2
"""Intervals of `snapshot_ns` between a snapshot and the later one that lets members forget what the first covers. By
then every candidate has read it, so that it survives a loss of the store."""
_SHARES_NS: Final = Duration(100 * MILLISECOND)
"""Minimum time before a snapshot is taken for new shares, from the last snapshot on."""


class _Covers(NamedTuple):
    """What a snapshot knows of the members."""

    taken_at: Instant
    known: tuple[tuple[Peer, int], ...]
    dealt: tuple[tuple[Peer, Share], ...]
    """Shares that members had not been told when it was taken."""


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
        """By the number of the snapshot."""

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
        """The store has it: tells members their new shares, and which ends they may forget."""
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
