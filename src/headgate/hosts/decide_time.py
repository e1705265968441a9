"""How much of a process's time does deciding take?

Reading the clock twice around each event would be a good part of what it measures, so only one in seventeen is measured
and counts for all: a prime, lest the events that always come in the same order fall into step with it.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

SAMPLED: Final = 17


class DecideTime:
    __slots__ = ("_clock", "_passed", "total_ns")

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self._passed = 0
        self.total_ns = 0
        """Since the process started."""

    def begin(self) -> int:
        """Before a decision; what it gives goes to `end`."""
        self._passed += 1
        if self._passed < SAMPLED:
            return 0
        self._passed = 0
        return self._clock()

    def end(self, began: int) -> None:
        if began:
            self.total_ns += SAMPLED * (self._clock() - began)
