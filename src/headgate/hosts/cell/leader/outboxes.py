"""Creates and schedules the entries for the members of a cell.

A member with urgent messages gets an entry immediately. Acknowledgements and bills wait for other messages, for at most
`ack_ns`. All other members get one entry per heartbeat. The scheduler also informs
members of the lowest protocol version in the cell when it has changed.
"""

from headgate.hosts.cell.leader.assignment_table import AssignmentTable
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.leader.roster import MemberRoster
from headgate.hosts.cell.protocol.compatibility import is_readable
from headgate.hosts.cell.protocol.messages import CellVersion, Epoch, SchedulerEntry, SchedulerHead
from headgate.hosts.cell.timing import CellBounds, Timing
from headgate.model.units import Instant, after


class Outboxes:
    def __init__(
        self,
        epoch: Epoch,
        book: AssignmentTable,
        roster: MemberRoster,
        now: Instant,
        *,
        timing: Timing,
        bounds: CellBounds,
        version: int,
    ) -> None:
        self._epoch, self._book, self._roster = epoch, book, roster
        self._timing, self._bounds, self._version = timing, bounds, version
        self.next_heartbeat_at = now
        """Time of the next entry to a member without urgent messages."""

    def pop_entries(self, policy_hash: str, now: Instant) -> list[tuple[str, SchedulerEntry]]:
        """Returns all due entries, each with the name of its member."""
        if now >= self.next_heartbeat_at:
            self._announce_version(now)
            self._add_due_peers(now)
        entries: list[tuple[str, SchedulerEntry]] = []
        for peer in self._book.peers_to_notify.values():
            entries += ((peer.name, entry) for entry in self._entries(peer, policy_hash, now))
            self.note_due(peer)
        self._book.peers_to_notify.clear()
        return entries

    def note_due(self, peer: Peer) -> None:
        """Considers when the member needs its next entry."""
        self.next_heartbeat_at = min(self.next_heartbeat_at, peer.next_send_at())

    def _add_due_peers(self, now: Instant) -> None:
        quiet: list[Instant] = [after(now, self._timing.heartbeat_ns)]
        for name, peer in self._roster.peers.items():
            due = peer.next_send_at()
            if due <= now:
                self._book.peers_to_notify[name] = peer
            else:
                quiet.append(due)
        self.next_heartbeat_at = min(quiet)

    def _announce_version(self, now: Instant) -> None:
        message = CellVersion(self._roster.lowest_version(self._version))
        if not is_readable(message, self._version):
            return
        for peer in self._roster.peers.values():
            if peer.is_connected and peer.sent_version != message.version:
                peer.sent_version = message.version
                self._book.send(peer, message, now)

    def _entries(self, peer: Peer, policy_hash: str, now: Instant) -> list[SchedulerEntry]:
        """Returns at least one entry, and more if the messages exceed one entry."""
        entries: list[SchedulerEntry] = []
        while not entries or peer.outbound.unsent > 0:
            first, messages = peer.outbound.pop_unsent(self._bounds.entry_messages_max, now)
            peer.note_sent(now)
            judged = peer.inbound.last_received if peer.adopted and not peer.outbound.unsent else 0
            entries.append(SchedulerEntry(self._head(peer, first, policy_hash, now, judged=judged), messages))
        return entries

    def _head(self, peer: Peer, first: int, policy_hash: str, now: Instant, *, judged: int) -> SchedulerHead:
        return SchedulerHead(
            self._epoch,
            peer.incarnation,
            peer.session if peer.session > peer.rejected_session else 0,
            peer.rejected_session,
            first,
            peer.inbound.last_received,
            now,
            # Without its timestamp, a fenced member does not accept the entry as an answer and becomes an island.
            None if peer.is_fenced(now) else peer.stamps.echo(now),
            policy_hash,
            self._version,
            judged,
        )
