"""Recent connect times to the endpoints of each pool.

A connection is opened only if none is idle, so a pool without recent samples is neither healthy nor unhealthy, but
unknown. One or two samples are not enough: if the first packet is lost, any connection is delayed by a second.
"""

import time
from collections import deque
from statistics import median_high
from typing import Final

from headgate.model.units import SECOND, Duration, PoolName

SAMPLES_MAX: Final = 8
"""Maximum number of samples per pool. Kept low, so that the median reacts quickly when the network slows down."""
WINDOW_NS: Final = Duration(30 * SECOND)
"""Maximum age of the samples used."""
SAMPLES_MIN: Final = 3
"""Minimum number of recent samples needed for a median."""


class ConnectTimes:
    """Connect times for all pools. The configuration bounds the number of pools."""

    def __init__(self) -> None:
        self._by_pool: dict[PoolName, deque[tuple[int, Duration]]] = {}

    def record(self, pool: PoolName, length: Duration) -> None:
        self._by_pool.setdefault(pool, deque(maxlen=SAMPLES_MAX)).append((time.monotonic_ns(), length))

    def medians(self) -> tuple[tuple[PoolName, Duration], ...]:
        """Returns the median for each pool with enough recent samples, ordered by pool name."""
        since = time.monotonic_ns() - WINDOW_NS
        late = {pool: [length for at, length in found if at >= since] for pool, found in self._by_pool.items()}
        # A pool that was removed from the configuration disappears with its last recent sample.
        self._by_pool = {pool: found for pool, found in self._by_pool.items() if late[pool]}
        return tuple(
            (pool, median_high(lengths)) for pool, lengths in sorted(late.items()) if len(lengths) >= SAMPLES_MIN
        )
