"""A member's connection to the schedulers.

The connection is active in every mode: an island keeps sending heads without messages, so that a scheduler can find it.
The member follows the highest epoch it has seen or, if two epochs have the same number, the one it saw first. Within an
epoch, messages are sent in *sessions*. Serials continue across all sessions of an incarnation.

Only an answer proves that a scheduler is alive: an entry that returns one of the member's own timestamps, at most
`answer_ns_max` old.
"""

from typing import Final

from headgate.core.events import AttemptsProgressed, FirstToken
from headgate.hosts.cell.member.held_requests import HeldRequests
from headgate.hosts.cell.member.pending_progress import PendingProgress
from headgate.hosts.cell.protocol.compatibility import is_readable, with_known_api
from headgate.hosts.cell.protocol.link import Inbound, Outbound, Stamps
from headgate.hosts.cell.protocol.messages import VERSION, Echo, Epoch, FromMember, FromScheduler, SchedulerHead
from headgate.hosts.cell.timing import CellBounds, Timing
from headgate.model.units import Duration, Instant, after

_INVALID_ENTRIES_MAX: Final = 2
"""Number of consecutive sessions with invalid scheduler messages before the scheduler is ignored for a while."""

EntryMessages = tuple[int, tuple[tuple[Duration, FromMember], ...]]
"""Serial of the first message, and the messages with their ages."""


class SchedulerConnection:
    def __init__(self, holdings: HeldRequests, now: Instant, *, timing: Timing, bounds: CellBounds) -> None:
        self.timing, self.bounds = timing, bounds
        self.followed_epoch: Epoch | None = None
        """Epoch that the member follows."""
        self._version = 0
        """Protocol version of that epoch's scheduler."""
        self.session = 0
        self.outbound: Outbound[FromMember] = Outbound(1, resend_ns=timing.resend_ns)
        self.inbound: Inbound[FromScheduler] = Inbound(1)
        self.progress = PendingProgress(holdings)
        """Progress that has not been reported to the scheduler."""
        self._stamps = Stamps()
        self.answered_at = now
        """Time of the last answer from a scheduler."""
        self._sent_at = Instant(now - timing.heartbeat_ns)
        self._answered = False
        """Whether the scheduler has answered in this session."""
        self.urgent = True
        """Whether an entry must be sent immediately."""
        self._due_at: Instant | None = None
        """Time by which an entry must be sent, before the next heartbeat. None if nothing is waiting."""
        self._invalid_entries, self._invalid_at = 0, now
        """Number of consecutive invalid entries from schedulers, and the time of the last one."""
        self._ignore_until = now

    # Followed epoch

    def outranks(self, epoch: Epoch) -> bool:
        """Returns whether the followed epoch takes precedence. If so, the other scheduler is informed immediately."""
        if self.followed_epoch is None or epoch.number > self.followed_epoch.number:
            return False
        self.urgent = True
        return True

    def follow(self, epoch: Epoch, version: int) -> None:
        """Follows an epoch, whose scheduler runs this protocol version."""
        self.followed_epoch, self._stamps, self.urgent = epoch, Stamps(), True
        self._version = version

    def record_answer(self, head: SchedulerHead, echo: Echo, now: Instant) -> bool:
        """Returns whether this entry is an answer, and records it."""
        if now - echo.stamp > self.timing.answer_ns_max or echo.stamp > now or now < self._ignore_until:
            return False
        # Only timestamps from answers are returned, because they tell the scheduler that this is not an island.
        self._stamps.record(head.stamp, now)
        self.answered_at = now
        if not self._answered:
            # The scheduler uses the report only once it knows that the member is receiving its messages.
            self._answered = self.urgent = True
        return True

    def record_invalid_entry(self, now: Instant) -> None:
        """Records an invalid entry from the scheduler. After several in a row, the scheduler is ignored for a while."""
        if now >= after(self._invalid_at, self.timing.lost_after_ns):
            self._invalid_entries = 0
        self._invalid_entries, self._invalid_at = self._invalid_entries + 1, now
        if self._invalid_entries > _INVALID_ENTRIES_MAX:
            self._ignore_until = after(now, self.timing.lost_after_ns)

    def echo(self, now: Instant) -> Echo | None:
        return self._stamps.echo(now)

    # Sessions

    def begin_session(self) -> None:
        self.session += 1
        self._answered = False
        self.inbound = Inbound(1)
        self.drop_unacknowledged()

    def drop_unacknowledged(self) -> None:
        """Drops unacknowledged messages. The next report includes everything relevant."""
        self.outbound = Outbound(self.outbound.next_serial, resend_ns=self.timing.resend_ns)
        self.progress.clear()

    def send(self, message: FromMember, now: Instant) -> int:
        """Queues a message and returns its serial. Drops a message that the scheduler does not know and returns 0."""
        if not is_readable(message, self._version):
            return 0
        if self._version < VERSION:
            message = with_known_api(message, self._version)
        if isinstance(message, FirstToken | AttemptsProgressed):
            self.send_within(self.timing.ack_ns, now)
        else:
            self.urgent = True
        return self.outbound.push(message, now)

    def send_within(self, delay_ns: Duration, now: Instant) -> None:
        """Sends an entry after this time at the latest. Until then, messages are collected for the same entry."""
        if self._due_at is None:
            self._due_at = after(now, delay_ns)

    # Outgoing messages

    def pop_entry(self, now: Instant) -> EntryMessages | None:
        """Returns the messages of the next entry. None if nothing is due. A heartbeat is an entry without messages.

        A long report is sent in one entry per turn of the event loop. The scheduler answers the first one before it has
        read the others.
        """
        if len(self.outbound) < self.bounds.unacknowledged_max:
            for report in self.progress.pop_due(now):
                self.outbound.push(report, now)
        first, messages = self.outbound.pop_unsent(self.bounds.entry_messages_max, now)
        if not messages and not self.urgent and now < self._next_entry_at():
            return None
        self.urgent, self._sent_at, self._due_at = self.outbound.unsent > 0, now, None
        return first, messages

    def next_wakeup(self, other: Instant | None) -> Instant:
        """Returns the time for the next entry, or `other` if that is earlier."""
        if self.urgent:
            return self._sent_at
        soonest = self._next_entry_at()
        for moment in (self.outbound.resend_at(), other):
            if moment is not None and moment < soonest:
                soonest = moment
        return soonest

    def _next_entry_at(self) -> Instant:
        heartbeat_at = after(self._sent_at, self.timing.heartbeat_ns)
        return heartbeat_at if self._due_at is None else min(heartbeat_at, self._due_at)

    def after_last_entry(self, length: Duration) -> Instant:
        """Returns the time of the last entry plus `length`."""
        return after(self._sent_at, length)
