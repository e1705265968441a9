"""Measures the time spent in the scheduler.

Reading the clock around every event would account for much of the measured time, so only one event in 17 is measured,
and its time stands for all 17. 17 is prime, so that regular sequences of events do not bias the sample.
"""

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

SAMPLE_EVERY: Final = 17


class DecisionTime:
    __slots__ = ("_clock", "_passed", "total_ns")

    def __init__(self, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self._passed = 0
        self.total_ns = 0
        """Total decision time since the process started."""

    def begin(self) -> int:
        """Call before a decision, and pass the result to `end`."""
        self._passed += 1
        if self._passed < SAMPLE_EVERY:
            return 0
        self._passed = 0
        return self._clock()

    def end(self, began: int) -> None:
        if began:
            self.total_ns += SAMPLE_EVERY * (self._clock() - began)
