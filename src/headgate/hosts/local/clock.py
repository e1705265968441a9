"""What time is it on this machine, for one who must never see it go backwards?

UTC is read once, at the start; from there on the monotonic clock counts. So a correction of
the machine's clock neither expires everything that waits nor holds it for ever.
"""

import time

from headgate.model.units import Instant


class SystemClock:
    def __init__(self) -> None:
        self._offset = time.time_ns() - time.monotonic_ns()

    def now(self) -> Instant:
        return Instant(self._offset + time.monotonic_ns())
