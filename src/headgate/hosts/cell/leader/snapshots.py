"""Takes the snapshots that a scheduler stores for its successor.

Every `snapshot_ns` the scheduler takes a snapshot of the counters and of how much of each member's history they
include. Once the store contains a second snapshot taken at least two intervals after the first, members drop the
results that the first one includes. By then, every candidate has read the first one. New shares are sent once a
snapshot that contains them is in the store, so a snapshot is taken soon after shares are assigned.
"""

from typing import Final, NamedTuple

from headgate.core.scheduler import Scheduler
from headgate.hosts.cell.leader.assignment_table import AssignmentTable
from headgate.hosts.cell.leader.island_reserve import IslandReserve
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.leader.roster import MemberRoster
from headgate.hosts.cell.protocol.counter_validation import check_counters
from headgate.hosts.cell.protocol.messages import Share, Snapshot, SnapshotCoverage, SnapshotId
from headgate.model.units import MILLISECOND, Duration, Instant, after

_SNAPSHOTS_KEPT: Final = 64
"""Number of recent snapshots whose coverage is kept."""
_COVERAGE_INTERVALS: Final = 2
"""Number of `snapshot_ns` intervals between a snapshot and the later one that lets members drop the results in the
first.

By then every candidate has read the first one, so its contents survive the loss of the store.
"""
_SHARE_SNAPSHOT_NS_MIN: Final = Duration(100 * MILLISECOND)
"""Minimum time between the last snapshot and one taken for new shares."""


class _Coverage(NamedTuple):
    """State of the members that a snapshot includes."""

    taken_at: Instant
    known: tuple[tuple[Peer, int], ...]
    unsent_shares: tuple[tuple[Peer, Share], ...]
    """Shares that had not been sent to members when the snapshot was taken."""


def restore(snapshot: Snapshot, book: AssignmentTable, now: Instant, *, snapshot_age_ns: Duration) -> str | None:
    """Restores the scheduler from a snapshot. If the snapshot cannot be used, returns why; otherwise returns None."""
    try:
        check_counters(snapshot.counters)
        book.scheduler.restore(snapshot.counters, now, snapshot_age_ns=snapshot_age_ns)
    except Exception as unusable:  # noqa: BLE001  Every successor would fail with the same snapshot.
        book.scheduler = Scheduler()
        return f"cannot use the snapshot of epoch {snapshot.at.epoch}: {unusable!r}"
    return None


class SnapshotWriter:
    def __init__(
        self,
        book: AssignmentTable,
        roster: MemberRoster,
        reserve: IslandReserve,
        now: Instant,
        *,
        snapshot_ns: Duration,
    ) -> None:
        self._book, self._roster, self._reserve, self._snapshot_ns = book, roster, reserve, snapshot_ns
        self._due = self._shares_due = now
        self._covers: dict[int, _Coverage] = {}
        """Coverage by snapshot number."""

    @property
    def due(self) -> Instant:
        """Time for the next snapshot."""
        return min(self._due, self._shares_due) if self._roster.has_unsaved_shares else self._due

    def take(self, policy_hash: str, now: Instant) -> Snapshot:
        self._due, self._shares_due = after(now, self._snapshot_ns), after(now, _SHARE_SNAPSHOT_NS_MIN)
        self._roster.has_unsaved_shares = False
        at = self._book.next_snapshot
        self._book.next_snapshot = SnapshotId(at.epoch, at.number + 1)
        peers = self._roster.peers.values()
        known = tuple((peer, peer.counted_serial) for peer in peers)
        dealt = tuple((peer, peer.unsent_share) for peer in peers if peer.unsent_share is not None)
        self._covers[at.number] = _Coverage(now, known, dealt)
        if len(self._covers) > _SNAPSHOTS_KEPT:
            del self._covers[next(iter(self._covers))]
        return Snapshot(at, self._book.scheduler.counters(now), self._roster.snapshot_members(), policy_hash)

    def on_stored(self, at: SnapshotId, now: Instant) -> None:
        """Handles a stored snapshot: sends members their new shares and the results they may drop."""
        if at.epoch != self._book.next_snapshot.epoch or at.number not in self._covers:
            return
        for peer, dealt in self._covers[at.number].unsent_shares:
            if dealt == peer.unsent_share and self._roster.peers.get(peer.name) is peer:
                self._reserve.send_share(peer, dealt, now)
        seen_by_all = Instant(self._covers[at.number].taken_at - _COVERAGE_INTERVALS * self._snapshot_ns)
        older = [each for each in self._covers.values() if each.taken_at <= seen_by_all]
        for peer, known in older[-1].known if older else ():
            if known > peer.sent_coverage and peer.is_connected:
                peer.sent_coverage = known
                self._book.send(peer, SnapshotCoverage(known), now)
