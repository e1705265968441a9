"""How long does it take of late to open a connection to the endpoints of a pool?

A connection is opened where none is idle, so a pool of which there is no news says nothing: neither that it is well nor
that it is not. One or two are no news either: a first packet that is lost makes any connection take a second.
"""

import time
from collections import deque
from statistics import median_high
from typing import Final

from headgate.model.units import SECOND, Duration, PoolName

KEPT_MAX: Final = 8
"""Of each pool the latest so many count: few enough that a network that has become slow is soon the middle of them."""
LATE_NS: Final = Duration(30 * SECOND)
"""What is older is no news."""
LEAST: Final = 3
"""Of fewer than these nothing is told."""


class ConnectTimes:
    """Of all pools. There are as many as the configuration names."""

    def __init__(self) -> None:
        self._of_pool: dict[PoolName, deque[tuple[int, Duration]]] = {}

    def took(self, pool: PoolName, length: Duration) -> None:
        self._of_pool.setdefault(pool, deque(maxlen=KEPT_MAX)).append((time.monotonic_ns(), length))

    def medians(self) -> tuple[tuple[PoolName, Duration], ...]:
        """Of the pools that there is news of, in the order of their names."""
        since = time.monotonic_ns() - LATE_NS
        late = {pool: [length for at, length in found if at >= since] for pool, found in self._of_pool.items()}
        # A pool that the configuration no longer names is forgotten with the last that was heard of it.
        self._of_pool = {pool: found for pool, found in self._of_pool.items() if late[pool]}
        return tuple((pool, median_high(lengths)) for pool, lengths in sorted(late.items()) if len(lengths) >= LEAST)
