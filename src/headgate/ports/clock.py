"""What time is it?"""

from typing import Protocol

from headgate.model.units import Instant


class Clock(Protocol):
    def now(self) -> Instant:
        """UTC nanoseconds; never less than what it said before."""
        ...
