"""Converts between an engine's work and time.

The engine's loop counts its work in picoseconds at nominal speed. `WorkClock` maps work to instants, using a reference
instant, the work done by then, and the speed from then on. A stall moves the reference instant, and a new speed changes
the slope. Neither affects the loop. Instants are rounded up to the nanosecond only when they are returned.
"""

from headgate.model.units import Instant
from headgate.simulation.options import NOMINAL_SPEED


class WorkClock:
    __slots__ = ("_at", "_done", "_speed")

    def __init__(self) -> None:
        self._at = Instant(0)
        self._done = 0
        self._speed = NOMINAL_SPEED

    @property
    def speed(self) -> int:
        return self._speed

    def instant_of(self, work: int) -> Instant:
        """Returns the instant at which `work` is done."""
        return Instant(self._at - (self._done - work) // self._speed)

    def work_by(self, now: Instant) -> int:
        """Returns the work done up to and including an instant. No work is done during a stall."""
        return self._done + max(0, now - self._at) * self._speed

    def stall(self, now: Instant, until: Instant) -> None:
        self._done = self.work_by(now)
        self._at = max(self._at, until, now)

    def set_speed(self, now: Instant, speed: int) -> None:
        assert speed > 0, "speed must be positive; use stall() to stop an engine"
        self._done = self.work_by(now)
        self._at = max(self._at, now)
        self._speed = speed
