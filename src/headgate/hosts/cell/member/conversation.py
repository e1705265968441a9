"""What has a member said to the schedulers, and what has it heard of them?

The conversation goes on in every mode: an island keeps sending heads without messages, so that a scheduler finds it.
The member follows the highest epoch it has heard of, and of two with one number the first. Within an epoch messages go
in *sessions*; serials count through all sessions of the member's life.

A scheduler counts as heard only if it answers: an entry is a sign of life if it gives back a stamp of the member's that
is not older than `answer_ns_max`.
"""

from typing import Final

from headgate.core.events import AttemptProgress, Progressed
from headgate.hosts.cell.protocol.link import Inbound, Outbound, Stamps
from headgate.hosts.cell.protocol.messages import Echo, Epoch, FromMember, FromScheduler, SchedulerHead
from headgate.hosts.cell.timing import Bounds, Timing
from headgate.model.units import Duration, Instant, RequestId, after

_ASKED_AGAIN_MAX: Final = 2
"""Sessions in a row with invalid messages of the scheduler before it is ignored for a while."""
_PROGRESS_MAX: Final = 1_000
"""Attempts in one message: all attempts that a member can hold would not fit into one entry."""

Taken = tuple[int, tuple[tuple[Duration, FromMember], ...]]
"""The serial of the first message, and the messages with their ages."""


class Conversation:
    def __init__(self, now: Instant, *, timing: Timing, bounds: Bounds) -> None:
        self.timing, self.bounds = timing, bounds
        self.bound: Epoch | None = None
        """The epoch that the member follows."""
        self.session = 0
        self.outbound: Outbound[FromMember] = Outbound(1, resend_ns=timing.resend_ns)
        self.inbound: Inbound[FromScheduler] = Inbound(1)
        self._progress: dict[tuple[RequestId, int], int] = {}
        """Tokens per attempt that the scheduler has yet to hear of."""
        self._progress_late = False
        """Whether this process was late in any report of these."""
        self._stamps = Stamps()
        self.heard_at = now
        """When a scheduler last showed that it hears the member."""
        self._said_at = Instant(now - timing.beat_ns)
        self._answered = False
        """Whether the scheduler has answered in this session."""
        self.urgent = True
        """Whether something is to be sent before the next beat."""
        self._distrusted, self._distrusted_at = 0, now
        """Number of invalid entries of schedulers in a row, and when the last one came."""
        self._deaf_until = now

    # Whom the member follows

    def outranks(self, epoch: Epoch) -> bool:
        """Whether the followed epoch stays in force beside this one. The other's scheduler learns of it at once."""
        if self.bound is None or epoch.number > self.bound.number:
            return False
        self.urgent = True
        return True

    def follow(self, epoch: Epoch) -> None:
        self.bound, self._stamps, self.urgent = epoch, Stamps(), True

    def is_answer(self, head: SchedulerHead, echo: Echo, now: Instant) -> bool:
        """Whether this entry is a sign of life; notes it if so."""
        if now - echo.stamp > self.timing.answer_ns_max or echo.stamp > now or now < self._deaf_until:
            return False
        # Only stamps of signs of life are given back: the scheduler concludes from them that this is no island.
        self._stamps.heard(head.stamp, now)
        self.heard_at = now
        if not self._answered:
            # The scheduler waits to know that the member hears it before it uses the report.
            self._answered = self.urgent = True
        return True

    def distrust(self, now: Instant) -> None:
        """The scheduler sent an invalid entry. If that repeats, it is ignored for a while."""
        if now >= after(self._distrusted_at, self.timing.lost_ns):
            self._distrusted = 0
        self._distrusted, self._distrusted_at = self._distrusted + 1, now
        if self._distrusted > _ASKED_AGAIN_MAX:
            self._deaf_until = after(now, self.timing.lost_ns)

    def echo(self, now: Instant) -> Echo | None:
        return self._stamps.echo(now)

    # Sessions

    def begin_session(self) -> None:
        self.session += 1
        self._answered = False
        self.inbound = Inbound(1)
        self.drop()

    def drop(self) -> None:
        """Forget what was not acknowledged; the next report says all that counts."""
        self.outbound = Outbound(self.outbound.next, resend_ns=self.timing.resend_ns)
        self._progress.clear()
        self._progress_late = False

    def say(self, message: FromMember, now: Instant) -> int:
        """The serial of the message."""
        return self.outbound.push(message, now)

    # Progress is sent in sums, once per entry.

    def progressed(self, attempt: AttemptProgress, *, late: bool) -> None:
        key = (attempt.request_id, attempt.attempt)
        self._progress[key] = self._progress.get(key, 0) + attempt.tokens
        self._progress_late = self._progress_late or late

    def forget_progress(self, request_id: RequestId, attempt: int) -> None:
        self._progress.pop((request_id, attempt), None)
        self._progress_late = self._progress_late and bool(self._progress)

    # What is to be sent

    def take(self, now: Instant) -> list[Taken]:
        """The messages of each entry that is to be sent now; a beat is an entry without messages."""
        if self._progress and len(self.outbound) < self.bounds.window:
            progress = tuple(AttemptProgress(*key, tokens) for key, tokens in self._progress.items())
            late, self._progress_late = self._progress_late, False
            self._progress.clear()
            for start in range(0, len(progress), _PROGRESS_MAX):
                self.outbound.push(Progressed(progress[start : start + _PROGRESS_MAX], late), now)
        taken: list[Taken] = []
        beat = self.urgent or now >= after(self._said_at, self.timing.beat_ns)
        while True:
            first, messages = self.outbound.take(self.bounds.entry_messages, now)
            if not messages and not beat:
                return taken
            beat = self.urgent = False
            self._said_at = now
            taken.append((first, messages))

    def next_wakeup(self, other: Instant | None) -> Instant:
        """When something is to be sent, or the other moment if that is earlier."""
        if self.urgent or self.outbound.unsent:
            return self._said_at
        soonest = after(self._said_at, self.timing.beat_ns)
        for moment in (self.outbound.resend_at(), other):
            if moment is not None and moment < soonest:
                soonest = moment
        return soonest

    def long_after(self, length: Duration) -> Instant:
        """So long after the last entry."""
        return after(self._said_at, length)
