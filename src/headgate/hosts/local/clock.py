"""System clock that never goes backwards.

It reads UTC once at startup and then adds monotonic time. If the machine's clock is corrected, queued requests
therefore neither all expire nor wait forever.
"""

import time

from headgate.model.units import Instant


class SystemClock:
    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def now(self) -> Instant:
        return Instant(self._offset + time.monotonic_ns())
