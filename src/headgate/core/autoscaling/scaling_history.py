"""Recent history for the autoscaler: measurements, desired counts and released endpoints.

Each history is bounded by a fixed length or by the number of distinct desired counts.
"""

from collections import deque
from typing import Final

from headgate.model.units import MINUTE, Duration, Instant

_HOUR: Final = Duration(60 * MINUTE)
_RETURNS: Final = 64


class RecentValues:
    """The last measurements of one quantity."""

    __slots__ = ("_last",)

    def __init__(self, length: int) -> None:
        self._last: deque[int] = deque(maxlen=length)

    def add(self, measured: int) -> None:
        self._last.append(measured)

    def p95(self, default: int = 0) -> int:
        """Returns the 95th percentile, or `default` if there are no measurements."""
        if not self._last:
            return default
        return sorted(self._last)[-(-95 * len(self._last) // 100) - 1]


class SlidingMax:
    """Maximum desired count in a sliding window.

    An entry is dropped when a later one is at least as high, so few are kept.
    """

    __slots__ = ("_wants",)

    def __init__(self) -> None:
        self._wants: deque[tuple[Instant, int]] = deque()

    def add(self, desired: int, now: Instant) -> None:
        wants = self._wants
        while wants and wants[-1][1] <= desired:
            wants.pop()
        wants.append((now, desired))

    def since(self, moment: Instant) -> int:
        """Drops entries before this moment, except the last one, and returns the maximum."""
        wants = self._wants
        while len(wants) > 1 and wants[0][0] < moment:
            wants.popleft()
        return wants[0][1]


class ScaleDownHistory:
    """How long released endpoints were away before they were needed again.

    Releasing an endpoint and starting it again costs a cold start, during which it is paid for but serves no requests.
    The last hour shows whether releasing endpoints pays off.
    """

    __slots__ = ("_away", "_returned")

    def __init__(self) -> None:
        self._away: list[tuple[int, int, Instant]] = []
        """Released ranges as (count before, count after, time). Each range starts where the previous one ends."""
        self._returned: deque[tuple[Instant, int, int]] = deque(maxlen=_RETURNS)
        """Endpoints that came back after release, as (time, number of endpoints, total time away)."""

    def scaled_down(self, *, before: int, after: int, now: Instant) -> None:
        self._away.append((before, after, now))

    def scaled_up(self, desired: int, now: Instant) -> None:
        away = self._away
        count = total_ns = 0
        while away and away[-1][1] < desired:
            before, after, since = away.pop()
            returned = min(before, desired) - after
            count += returned
            total_ns += returned * (now - since)
            if before > desired:
                away.append((before, desired, since))
        if count:
            self._returned.append((now, count, total_ns))

    def mean_absence_ns(self, now: Instant) -> int:
        """Returns the mean time away, or one hour if no endpoint came back within the last hour."""
        while self._returned and self._returned[0][0] <= now - _HOUR:
            self._returned.popleft()
        count = total_ns = 0
        for _, some, together_ns in self._returned:
            count += some
            total_ns += together_ns
        return total_ns // count if count else _HOUR
