"""Learns the maximum number of requests that an engine runs concurrently.

Some engines do not report their limit (`--max-num-seqs` in vLLM), but their metrics show when it is reached: requests
wait in the engine, the number of running requests is constant, and the KV cache has room. The limit is learned from a
few consecutive reports of this kind, provided that no other client uses the engine. The endpoint then gets only
slightly more requests than that limit. Other requests wait in the gateway, where their order can still change. The
extra requests keep the engine busy and reveal a limit that is too low: if an engine runs more requests while none are
waiting, it has no such limit.
"""

from typing import Final

READS: Final = 4
"""Number of consecutive reports that establish the limit."""
KV_PERCENT_MAX: Final = 80
"""KV cache usage, in percent, above which requests may be waiting because of memory rather than the limit."""
_SPREAD_PERCENT: Final = 5
"""Tolerated variation in the number of running requests. Reports can miss requests that have just ended."""
EXTRA_MIN: Final = 4
EXTRA_PERCENT: Final = 25


class SequenceLimit:
    __slots__ = ("_high", "_low", "_reads", "learned")

    def __init__(self) -> None:
        self.learned: int | None = None
        """Maximum number of requests that the engine runs concurrently. None if unknown."""
        self._low = self._high = self._reads = 0
        """Lowest and highest number of running requests in the latest consecutive reports with waiting requests, and
        the number of these reports."""

    def clear(self) -> None:
        """Forgets everything, because another engine may now be using the address."""
        self.learned = None
        self._low = self._high = self._reads = 0

    def observe(self, *, running: int, waiting: int, kv_percent: int | None, foreign: int) -> None:
        """Adds one report of the engine's metrics. `foreign` is the number of requests from other clients."""
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
        """Returns how many of these slots the gateway may use."""
        if self.learned is None:
            return places
        return min(places, self.learned + max(EXTRA_MIN, self.learned * EXTRA_PERCENT // 100))
