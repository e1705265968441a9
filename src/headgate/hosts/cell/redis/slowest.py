"""The slowest round trip to the store in the last two seconds.

The last round trip alone would hide a store that stalls: after a stall many parcels are answered quickly, so a sample
taken once a second nearly always shows a quick one.
"""

from typing import Final

BUCKET_S: Final = 1.0


class Slowest:
    __slots__ = ("_bucket", "_ended_s", "_now_s", "_previous_s")

    def __init__(self) -> None:
        self._bucket: int = 0
        self._now_s: float = 0.0
        """Slowest of the current second."""
        self._previous_s: float = 0.0
        """Slowest of the second before."""
        self._ended_s: float = 0.0
        """The last round trip."""

    def add(self, took_s: float, at_s: float) -> None:
        self._turn(at_s)
        self._now_s = max(self._now_s, took_s)
        self._ended_s = took_s

    def seconds(self, at_s: float, waiting_s: float = 0.0) -> float:
        """`waiting_s` is the age of a parcel that is not answered yet. Without a recent one, the last one counts."""
        self._turn(at_s)
        return max(self._now_s, self._previous_s, waiting_s) or self._ended_s

    def _turn(self, at_s: float) -> None:
        bucket = int(at_s / BUCKET_S)
        if bucket != self._bucket:
            self._previous_s = self._now_s if bucket == self._bucket + 1 else 0.0
            self._bucket, self._now_s = bucket, 0.0
