"""Clock interface."""

from typing import Protocol

from headgate.model.units import Instant


class Clock(Protocol):
    def now(self) -> Instant:
        """Returns the UTC time in nanoseconds. It never decreases."""
        ...
