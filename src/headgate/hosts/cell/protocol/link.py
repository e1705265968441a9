"""How does each message arrive once and in order, over a way that loses, repeats and reorders?

The sender numbers its messages and keeps each until the other side says that it has taken it in. What nobody has
acknowledged for a while is sent again, from the oldest on. The receiver takes in only what follows the last one: what
came before is a repetition, what is further on will come again.
"""

from collections import deque
from collections.abc import Iterable
from typing import Generic, TypeVar

from headgate.hosts.cell.protocol.messages import Echo
from headgate.model.units import Duration, Instant, after

_Said = TypeVar("_Said")
_Heard = TypeVar("_Heard")


class Outbound(Generic[_Said]):
    """What is yet to be acknowledged, in order."""

    __slots__ = ("_kept", "_resend_ns", "_unsent", "_waited_from", "base", "first")

    def __init__(self, first: int, *, resend_ns: Duration) -> None:
        self.base = self.first = first
        """The numbers of the first message ever, and of the first that is kept."""
        self._kept: deque[tuple[Instant, _Said]] = deque()
        self._unsent = 0
        """How many at the end have yet to be sent."""
        self._resend_ns = resend_ns
        self._waited_from = Instant(0)
        """Since when nothing of what was sent has been acknowledged. What is sent later does not put it off."""

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def next(self) -> int:
        """The number that the next message gets."""
        return self.first + len(self._kept)

    def oldest_ns(self, now: Instant) -> Duration:
        """How old the oldest message is that nobody has acknowledged."""
        return Duration(now - self._kept[0][0]) if self._kept else Duration(0)

    @property
    def unsent(self) -> int:
        return self._unsent

    def push(self, said: _Said, now: Instant) -> int:
        self._kept.append((now, said))
        self._unsent += 1
        return self.next - 1

    def acknowledged(self, up_to: int, now: Instant) -> None:
        """The other side has taken in all up to this number."""
        while self._kept and self.first <= up_to:
            self._kept.popleft()
            self.first += 1
            self._waited_from = now
        self._unsent = min(self._unsent, len(self._kept))

    def resend_at(self) -> Instant | None:
        """When what was sent is to be sent again; None where all of it has been acknowledged."""
        return after(self._waited_from, self._resend_ns) if len(self._kept) > self._unsent else None

    def take(self, most: int, now: Instant) -> tuple[int, tuple[tuple[Duration, _Said], ...]]:
        """What is to be sent, at most so many: the number of the first, and each with its age."""
        again = self.resend_at()
        if again is not None and again <= now:
            self._unsent = len(self._kept)
        start = len(self._kept) - self._unsent
        if not self._unsent:
            return self.next, ()
        if not start:
            self._waited_from = now
        end = min(len(self._kept), start + most)
        chosen = [self._kept[place] for place in range(start, end)]
        self._unsent -= len(chosen)
        return self.first + start, tuple((Duration(max(0, now - at)), said) for at, said in chosen)


class Inbound(Generic[_Heard]):
    __slots__ = ("taken",)

    def __init__(self, first: int) -> None:
        self.taken = first - 1
        """The number of the last message that was taken in."""

    def take(self, first: int, messages: Iterable[tuple[Duration, _Heard]]) -> list[tuple[int, Duration, _Heard]]:
        """Of these, numbered from the first on, what is new and follows: each with its number and age."""
        new: list[tuple[int, Duration, _Heard]] = []
        for number, (age_ns, heard) in enumerate(messages, first):
            if number == self.taken + 1:
                self.taken = number
                new.append((number, age_ns, heard))
        return new


class Stamps:
    """The last stamp of the other side, to be given back to it."""

    __slots__ = ("_came", "stamp")

    def __init__(self) -> None:
        self.stamp: Instant | None = None
        self._came = Instant(0)

    def heard(self, stamp: Instant, now: Instant) -> None:
        # What was overtaken on its way says nothing new.
        if self.stamp is None or stamp > self.stamp:
            self.stamp, self._came = stamp, now

    def echo(self, now: Instant) -> Echo | None:
        return None if self.stamp is None else Echo(self.stamp, Duration(max(0, now - self._came)))


def age_at_most(echo: Echo, now: Instant, *, drift_percent: int) -> Duration:
    """How old an entry with our own stamp in it is at most: it was made so long after the stamp as it says.

    What lay at the other side was counted by the other side's clock, which may run faster than ours.
    """
    lay_ns = echo.held_ns * (100 - drift_percent) // 100
    return Duration(max(0, now - echo.stamp - lay_ns))
