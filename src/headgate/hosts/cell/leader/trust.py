"""How the scheduler treats a member that sends invalid messages.

It drops the session and asks for a new report, since the error may have been a single one. A member whose reports stay
invalid is *fenced*: its messages are ignored and its stamps are not echoed, so it decides by itself with its share,
which stays reserved for it. After `lost_ns` the scheduler asks it again.
"""

from collections import deque
from typing import Final

from headgate.hosts.cell.leader.absence import Absence
from headgate.hosts.cell.leader.book import Book
from headgate.hosts.cell.leader.peers import Peer
from headgate.hosts.cell.leader.roster import Roster
from headgate.hosts.cell.protocol.messages import (
    Arrived,
    FromMember,
    MemberHead,
    ReportDone,
    Runs,
    Settled,
    Waits,
)
from headgate.hosts.cell.protocol.views import Standing
from headgate.hosts.cell.timing import Bounds
from headgate.model.units import Duration, Instant, after

ASKED_AGAIN_MAX: Final = 2
"""Reports rejected in a row before the member is fenced."""
_COMPLAINTS_KEPT: Final = 16


class Trust:
    def __init__(self, book: Book, roster: Roster, absence: Absence, *, fence_ns: Duration, bounds: Bounds) -> None:
        self._book, self._roster, self._absence, self._fence_ns = book, roster, absence, fence_ns
        self._report_max = 2 * (bounds.held + bounds.unsettled)
        self.complaints: deque[str] = deque(maxlen=_COMPLAINTS_KEPT)
        """Rejected members and reasons, for the log."""

    def take_complaints(self) -> list[str]:
        taken = list(self.complaints)
        self.complaints.clear()
        return taken

    def out_of_place(self, peer: Peer, said: FromMember) -> str | None:
        """Why a message is not allowed at this point of a session; None if it is."""
        of_report = isinstance(said, Waits | Runs | Settled | ReportDone)
        if peer.reported:
            return f"sent {type(said).__name__} after its report" if of_report else None
        if not of_report and not isinstance(said, Arrived):
            return f"sent {type(said).__name__} within its report"
        too_long = len(peer.report) >= self._report_max
        return f"reports more than {self._report_max} messages" if too_long else None

    def believed(self, reported: list[Peer], problems: dict[str, str], now: Instant) -> list[Peer]:
        """Rejects the reports that have a problem. Returns the other members."""
        for peer in reported:
            if peer.name in problems:
                self.refuse(peer, problems[peer.name], now)
                peer.standing, peer.since = Standing.ABSENT, now
        return [peer for peer in reported if peer.name not in problems]

    def refuse_entry(self, peer: Peer, head: MemberHead, why: str, now: Instant) -> None:
        """Reject the session of an invalid entry, once for all entries of the session."""
        if peer.fenced(now):
            return
        peer.heard(head, now, ours=True)
        if head.session > peer.wanted and head.session >= peer.session:
            peer.begin_session_if_new(head)
            self.refuse(peer, why, now)

    def drop_session(self, member: str, why: str, now: Instant) -> None:
        """An entry for this member cannot be encoded: ask it to report again, and fence it if that repeats."""
        peer = self._roster.peers.get(member)
        if peer is not None and peer.session > peer.wanted:
            self.refuse(peer, f"an entry for this member cannot be written: {why}", now)

    def refuse(self, peer: Peer, why: str, now: Instant) -> None:
        """Ends the session: asks for a new one, or fences the member."""
        if peer.standing is Standing.PRESENT:
            self._absence.lose_sight(peer, now)
        else:
            peer.drop_session()
        if now >= after(peer.refused_at, self._fence_ns):
            peer.refusals = 0
        peer.refusals, peer.refused_at = peer.refusals + 1, now
        self._book.to_tell[peer.name] = peer
        action = "the scheduler asks for another report"
        if peer.refusals > ASKED_AGAIN_MAX:
            peer.fence(after(now, self._fence_ns))
            action = "the member is fenced and decides by itself"
        self.complaints.append(f'member "{peer.name}": {why}; {action}')
