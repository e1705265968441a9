"""What is to be written to the members of a cell, and when?

A member for whom there is something urgent gets an entry at once, all others one per beat.
"""

from headgate.hosts.cell.leader.book import Book
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.leader.roster import Roster
from headgate.hosts.cell.protocol.messages import Epoch, SchedulerEntry, SchedulerHead
from headgate.hosts.cell.timing import Bounds, Timing
from headgate.model.units import Instant, after


class Outboxes:
    def __init__(
        self, epoch: Epoch, book: Book, roster: Roster, now: Instant, *, timing: Timing, bounds: Bounds
    ) -> None:
        self._epoch, self._book, self._roster = epoch, book, roster
        self._timing, self._bounds = timing, bounds
        self.quiet_until = now
        """Members for whom there is nothing urgent get no entry before this moment."""

    def take(self, policy_hash: str, now: Instant) -> list[tuple[str, SchedulerEntry]]:
        """All entries that are due, each with the name of its member."""
        if now >= self.quiet_until:
            self._add_those_due(now)
        entries: list[tuple[str, SchedulerEntry]] = []
        for peer in self._book.to_tell.values():
            entries += ((peer.name, entry) for entry in self._entries(peer, policy_hash, now))
            self.quiet_until = min(self.quiet_until, peer.due())
        self._book.to_tell.clear()
        return entries

    def _add_those_due(self, now: Instant) -> None:
        quiet: list[Instant] = [after(now, self._timing.beat_ns)]
        for name, peer in self._roster.peers.items():
            due = peer.due()
            if due <= now:
                self._book.to_tell[name] = peer
            else:
                quiet.append(due)
        self.quiet_until = min(quiet)

    def _entries(self, peer: Peer, policy_hash: str, now: Instant) -> list[SchedulerEntry]:
        """At least one; more if there are more messages than an entry holds."""
        entries: list[SchedulerEntry] = []
        while not entries or peer.outbound.unsent > 0:
            first, messages = peer.outbound.take(self._bounds.entry_messages, now)
            peer.urgent, peer.said_at = False, now
            judged = peer.inbound.taken if peer.adopted and not peer.outbound.unsent else 0
            entries.append(SchedulerEntry(self._head(peer, first, policy_hash, now, judged=judged), messages))
        return entries

    def _head(self, peer: Peer, first: int, policy_hash: str, now: Instant, *, judged: int) -> SchedulerHead:
        return SchedulerHead(
            self._epoch,
            peer.incarnation,
            peer.session if peer.session > peer.wanted else 0,
            peer.wanted,
            first,
            peer.inbound.taken,
            now,
            # Without its stamp a fenced member does not accept this as an answer, and decides by itself.
            None if peer.fenced(now) else peer.stamps.echo(now),
            policy_hash,
            judged=judged,
        )
