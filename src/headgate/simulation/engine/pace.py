"""How does work become time?

An engine's loop counts the work it has done, in picoseconds at its nominal speed. A pace maps that to instants: so much
work is done at this instant, and from there on it goes at this speed. Stalling moves the instant, a new speed bends the
line; neither touches the loop. An instant is rounded up to the nanosecond when it is given out, and nowhere before.
"""

from typing import Final

from headgate.model.units import Instant

NOMINAL: Final = 1000
"""Speed is in thousandths: at 1000 a picosecond of work takes a picosecond."""


class Pace:
    __slots__ = ("_at", "_done", "_speed")

    def __init__(self) -> None:
        self._at = Instant(0)
        self._done = 0
        self._speed = NOMINAL

    @property
    def speed(self) -> int:
        return self._speed

    def instant(self, work: int) -> Instant:
        """When so much work is done."""
        return Instant(self._at - (self._done - work) // self._speed)

    def work(self, now: Instant) -> int:
        """How much work is done by an instant, both ends included. Nothing is while the engine stalls."""
        return self._done + max(0, now - self._at) * self._speed

    def stall(self, now: Instant, until: Instant) -> None:
        self._done = self.work(now)
        self._at = max(self._at, until, now)

    def change(self, now: Instant, speed: int) -> None:
        assert speed > 0, "an engine that does not move at all is stalled, not slow"
        self._done = self.work(now)
        self._at = max(self._at, now)
        self._speed = speed
