"""Slowest round trip to the store in the last two seconds.

Showing only the last round trip would hide a store that stalls. After a stall, many batches complete quickly, so a
sample taken once a second would almost always catch a fast one.
"""

from typing import Final

BUCKET_S: Final = 1.0


class SlowestRoundTrip:
    __slots__ = ("_bucket", "_ended_s", "_now_s", "_previous_s")

    def __init__(self) -> None:
        self._bucket: int = 0
        self._now_s: float = 0.0
        """Slowest round trip in the current second."""
        self._previous_s: float = 0.0
        """Slowest round trip in the previous second."""
        self._ended_s: float = 0.0
        """Last round trip."""

    def add(self, took_s: float, at_s: float) -> None:
        self._rotate(at_s)
        self._now_s = max(self._now_s, took_s)
        self._ended_s = took_s

    def seconds(self, at_s: float, waiting_s: float = 0.0) -> float:
        """Returns the slowest round trip, or the last one if none is recent.

        `waiting_s` is the age of a batch without a reply.
        """
        self._rotate(at_s)
        return max(self._now_s, self._previous_s, waiting_s) or self._ended_s

    def _rotate(self, at_s: float) -> None:
        bucket = int(at_s / BUCKET_S)
        if bucket != self._bucket:
            self._previous_s = self._now_s if bucket == self._bucket + 1 else 0.0
            self._bucket, self._now_s = bucket, 0.0
