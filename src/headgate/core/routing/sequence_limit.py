"""How many requests does an engine run at once?

vLLM, for one, does not report its limit (`--max-num-seqs`), but its metrics show when it is reached: requests wait in
the engine, the number of running ones stays the same, and the KV cache has room. The limit is learned from a few such
reports in a row. The endpoint then gets only a few requests more than that; the others wait in the gateway, where their
order can still change. The few more show if the learned limit is too low: the engine then runs more, and the limit
rises.
"""

from typing import Final

READS: Final = 4
"""Reports in a row that show the limit."""
KV_PERCENT_MAX: Final = 80
"""Above this, requests may wait for memory and not for a place."""
_SPREAD_PERCENT: Final = 5
"""Requests that have just ended are missing from a report, so the number of running requests varies a little."""
_EXTRA_PERCENT: Final = 12


class SequenceLimit:
    __slots__ = ("_high", "_low", "_reads", "learned")

    def __init__(self) -> None:
        self.learned: int | None = None
        """The most requests that the engine runs at once; None if it has not shown a limit."""
        self._low = self._high = self._reads = 0
        """The least and the most running requests of the last reports that showed waiting ones, and their number."""

    def observe(self, *, running: int, waiting: int, kv_percent: int | None) -> bool:
        """Takes one report; returns whether the limit has changed."""
        before = self.learned
        if before is not None and running > before:
            self.learned = running
        if not waiting or not running or (kv_percent is not None and kv_percent > KV_PERCENT_MAX):
            self._reads = 0
        else:
            self._gather(running)
        return self.learned != before

    def _gather(self, running: int) -> None:
        low, high = min(self._low, running), max(self._high, running)
        if not self._reads or high - low > max(1, high * _SPREAD_PERCENT // 100):
            self._low, self._high, self._reads = running, running, 1
            return
        self._low, self._high, self._reads = low, high, self._reads + 1
        if self._reads >= READS and self.learned is None:
            self.learned = high

    def bound(self, in_flight_max: int) -> int:
        """The number of requests that the endpoint may get at once."""
        if self.learned is None:
            return in_flight_max
        return min(in_flight_max, self.learned + max(1, self.learned * _EXTRA_PERCENT // 100))
