"""How many requests does an engine run at once?

vLLM, for one, does not report its limit (`--max-num-seqs`), but its metrics show when it is reached: requests wait in
the engine, the number of running ones stays the same, and the KV cache has room. The limit is learned from a few such
reports in a row, if nobody else uses the engine. The endpoint then gets only some requests more than that; the others
wait in the gateway, where their order can still change. The few more keep the engine busy, and show if the limit is too
low: an engine that runs more while none waits has no such limit.
"""

from typing import Final

READS: Final = 4
"""Reports in a row that show the limit."""
KV_PERCENT_MAX: Final = 80
"""Above this, requests may wait for memory and not for a place."""
_SPREAD_PERCENT: Final = 5
"""Requests that have just ended are missing from a report, so the number of running requests varies a little."""
EXTRA_MIN: Final = 4
EXTRA_PERCENT: Final = 25


class SequenceLimit:
    __slots__ = ("_high", "_low", "_reads", "learned")

    def __init__(self) -> None:
        self.learned: int | None = None
        """The most requests that the engine runs at once; None if it has not shown a limit."""
        self._low = self._high = self._reads = 0
        """The least and the most running requests of the last reports that showed waiting ones, and their number."""

    def observe(self, *, running: int, waiting: int, kv_percent: int | None, foreign: int) -> None:
        """Takes one report of the engine's metrics; `foreign` requests there are not from this gateway."""
        if self.learned is not None and running > self.learned:
            self.learned = running if waiting else None
        if not waiting or not running or foreign or kv_percent is None or kv_percent > KV_PERCENT_MAX:
            self._reads = 0
        else:
            self._gather(running)

    def _gather(self, running: int) -> None:
        low, high = min(self._low, running), max(self._high, running)
        if not self._reads or high - low > max(1, high * _SPREAD_PERCENT // 100):
            self._low, self._high, self._reads = running, running, 1
            return
        self._low, self._high, self._reads = low, high, self._reads + 1
        if self._reads >= READS and self.learned is None:
            self.learned = high

    def bound(self, places: int) -> int:
        """The number of these places that this gateway may fill."""
        if self.learned is None:
            return places
        return min(places, self.learned + max(EXTRA_MIN, self.learned * EXTRA_PERCENT // 100))
