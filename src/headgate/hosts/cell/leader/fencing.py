"""Rejects and fences members that send invalid messages.

After an invalid message, the scheduler drops the session and requests a new report, because the error may be transient.
A member whose reports are still invalid is *fenced*: its messages are ignored and its timestamps are not returned. It
therefore becomes an island and uses its share, which stays reserved. After `lost_after_ns` the scheduler requests a
report again.
"""

from collections import deque
from typing import Final

from headgate.hosts.cell.leader.absence import AbsenceMonitor
from headgate.hosts.cell.leader.assignment_table import AssignmentTable
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.leader.roster import MemberRoster
from headgate.hosts.cell.protocol.messages import (
    FromMember,
    MemberHead,
    NewRequest,
    QueuedRequest,
    ReportDone,
    RunningAttempt,
    SettledRequest,
)
from headgate.hosts.cell.protocol.views import MemberPresence
from headgate.hosts.cell.timing import CellBounds
from headgate.model.units import Duration, Instant, after

REJECTIONS_MAX: Final = 2
"""Number of consecutive rejected reports before the member is fenced."""
_REJECTIONS_KEPT: Final = 16


class MemberFencing:
    def __init__(
        self,
        book: AssignmentTable,
        roster: MemberRoster,
        absence: AbsenceMonitor,
        *,
        fence_ns: Duration,
        bounds: CellBounds,
    ) -> None:
        self._book, self._roster, self._absence, self._fence_ns = book, roster, absence, fence_ns
        self._report_max = 2 * (bounds.held_max + bounds.unsettled_max)
        self.rejections: deque[str] = deque(maxlen=_REJECTIONS_KEPT)
        """Rejections with member and reason, for the log."""

    def pop_rejections(self) -> list[str]:
        taken = list(self.rejections)
        self.rejections.clear()
        return taken

    def message_rejection(self, peer: Peer, message: FromMember) -> str | None:
        """Returns why a message is not allowed at this point in a session, or None."""
        of_report = isinstance(message, QueuedRequest | RunningAttempt | SettledRequest | ReportDone)
        if peer.reported:
            return f"sent {type(message).__name__} after its report" if of_report else None
        if not of_report and not isinstance(message, NewRequest):
            return f"sent {type(message).__name__} before its report was complete"
        too_long = len(peer.report) >= self._report_max
        return f"sent a report of more than {self._report_max} messages" if too_long else None

    def accept_reports(self, reported: list[Peer], problems: dict[str, str], now: Instant) -> list[Peer]:
        """Rejects the reports that have a problem. Returns the other members."""
        for peer in reported:
            if peer.name in problems:
                self.reject(peer, problems[peer.name], now)
                peer.presence, peer.presence_since = MemberPresence.ABSENT, now
        return [peer for peer in reported if peer.name not in problems]

    def reject_entry(self, peer: Peer, head: MemberHead, why: str, now: Instant) -> None:
        """Rejects the session that an invalid entry belongs to, once per session."""
        if peer.is_fenced(now):
            return
        peer.record_head(head, now, follows_us=True)
        if head.session > peer.rejected_session and head.session >= peer.session:
            peer.begin_session_if_new(head)
            self.reject(peer, why, now)

    def drop_session(self, member: str, why: str, now: Instant) -> None:
        """Handles an entry that cannot be encoded: requests a new report and, if this recurs, fences the member."""
        peer = self._roster.peers.get(member)
        if peer is not None and peer.session > peer.rejected_session:
            self.reject(peer, f"an entry for this member cannot be encoded: {why}", now)

    def reject(self, peer: Peer, why: str, now: Instant) -> None:
        """Ends the session. Requests a new one or fences the member."""
        if peer.presence is MemberPresence.PRESENT:
            self._absence.mark_absent(peer, now)
        else:
            peer.drop_session()
        if now >= after(peer.rejected_at, self._fence_ns):
            peer.rejections = 0
        peer.rejections, peer.rejected_at = peer.rejections + 1, now
        self._book.peers_to_notify[peer.name] = peer
        action = "the scheduler requests a new report"
        if peer.rejections > REJECTIONS_MAX:
            peer.fence(after(now, self._fence_ns))
            action = "the member is fenced and becomes an island"
        self.rejections.append(f'member "{peer.name}": {why}; {action}')
