"""Reliable, ordered message delivery over a transport that loses, repeats and reorders entries.

The sender numbers its messages and keeps each until the receiver acknowledges it. If no acknowledgement arrives for a
while, it resends all messages, starting with the oldest. The receiver accepts only the next message in sequence.
Earlier ones are duplicates, and later ones will be resent.
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from headgate.hosts.cell.protocol.messages import Echo
from headgate.model.units import Duration, Instant, after

_Sent = TypeVar("_Sent")
_Received = TypeVar("_Received")


class Outbound(Generic[_Sent]):
    """Unacknowledged messages, in order."""

    __slots__ = ("_kept", "_resend_ns", "_unacknowledged_since", "_unsent", "base", "first")

    def __init__(self, first: int, *, resend_ns: Duration) -> None:
        self.base = self.first = first
        """`base` is the number of the first message of the session.

        `first` is the number of the oldest message that is kept.
        """
        self._kept: deque[tuple[Instant, _Sent]] = deque()
        self._unsent = 0
        """Number of messages at the end that have not been sent yet."""
        self._resend_ns = resend_ns
        self._unacknowledged_since = Instant(0)
        """Time since which no message has been acknowledged. Sending further messages does not reset it."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def next_serial(self) -> int:
        """Number of the next message."""
        return self.first + len(self._kept)

    def oldest_ns(self, now: Instant) -> Duration:
        """Returns the age of the oldest unacknowledged message."""
        return Duration(now - self._kept[0][0]) if self._kept else Duration(0)

    @property
    def unsent(self) -> int:
        return self._unsent

    def push(self, message: _Sent, now: Instant) -> int:
        self._kept.append((now, message))
        self._unsent += 1
        return self.next_serial - 1

    def acknowledge(self, up_to: int, now: Instant) -> None:
        """Removes all messages up to this number, which the receiver has acknowledged."""
        while self._kept and self.first <= up_to:
            self._kept.popleft()
            self.first += 1
            self._unacknowledged_since = now
        self._unsent = min(self._unsent, len(self._kept))

    def resend_at(self) -> Instant | None:
        """Returns the time for the next resend. None if all sent messages have been acknowledged."""
        return after(self._unacknowledged_since, self._resend_ns) if len(self._kept) > self._unsent else None

    def pop_unsent(self, limit: int, now: Instant) -> tuple[int, tuple[tuple[Duration, _Sent], ...]]:
        """Returns up to `limit` messages to send: the number of the first one, and each message with its age."""
        again = self.resend_at()
        if again is not None and again <= now:
            self._unsent = len(self._kept)
        start = len(self._kept) - self._unsent
        if not self._unsent:
            return self.next_serial, ()
        if not start:
            self._unacknowledged_since = now
        end = min(len(self._kept), start + limit)
        chosen = [self._kept[place] for place in range(start, end)]
        self._unsent -= len(chosen)
        return self.first + start, tuple((Duration(max(0, now - at)), said) for at, said in chosen)


class Inbound(Generic[_Received]):
    __slots__ = ("last_received",)

    def __init__(self, first: int) -> None:
        self.last_received = first - 1
        """Number of the last message received."""

    def accept(
        self, first: int, messages: Iterable[tuple[Duration, _Received]]
    ) -> list[tuple[int, Duration, _Received]]:
        """Accepts the next messages in sequence. Returns each new message with its number and age."""
        new: list[tuple[int, Duration, _Received]] = []
        for number, (age_ns, heard) in enumerate(messages, first):
            if number == self.last_received + 1:
                self.last_received = number
                new.append((number, age_ns, heard))
        return new


class Stamps:
    """Last timestamp from the other side, to be returned to it."""

    __slots__ = ("_came", "stamp")

    def __init__(self) -> None:
        self.stamp: Instant | None = None
        self._came = Instant(0)

    def record(self, stamp: Instant, now: Instant) -> None:
        # An older timestamp arrived out of order and adds nothing.
        if self.stamp is None or stamp > self.stamp:
            self.stamp, self._came = stamp, now

    def echo(self, now: Instant) -> Echo | None:
        return None if self.stamp is None else Echo(self.stamp, Duration(max(0, now - self._came)))


def max_age(echo: Echo, now: Instant, *, drift_percent: int) -> Duration:
    """Returns the maximum age of an entry that returns our own timestamp.

    How long the other side held the timestamp was measured by its clock, which may run faster than ours.
    """
    lay_ns = echo.held_ns * (100 - drift_percent) // 100
    return Duration(max(0, now - echo.stamp - lay_ns))
