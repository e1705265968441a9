"""What was wanted a while ago, and what became of what was given back?

All of it is bounded: by the number of different wants, or by a fixed length.
"""

from collections import deque
from typing import Final

from headgate.model.units import MINUTE, Duration, Instant

_HOUR: Final = Duration(60 * MINUTE)
_RETURNS: Final = 64


class Lately:
    """Something as it was measured the last few times."""

    __slots__ = ("_last",)

    def __init__(self, length: int) -> None:
        self._last: deque[int] = deque(maxlen=length)

    def add(self, measured: int) -> None:
        self._last.append(measured)

    def ninety_fifth(self, otherwise: int = 0) -> int:
        """What nineteen in twenty did not exceed."""
        if not self._last:
            return otherwise
        return sorted(self._last)[-(-95 * len(self._last) // 100) - 1]


class Greatest:
    """The greatest want of a while. A want that a later one reaches is forgotten, so few are kept."""

    __slots__ = ("_wants",)

    def __init__(self) -> None:
        self._wants: deque[tuple[Instant, int]] = deque()

    def add(self, want: int, now: Instant) -> None:
        wants = self._wants
        while wants and wants[-1][1] <= want:
            wants.pop()
        wants.append((now, want))

    def since(self, moment: Instant) -> int:
        """Forgets what was before this moment; at least the last want is left."""
        wants = self._wants
        while len(wants) > 1 and wants[0][0] < moment:
            wants.popleft()
        return wants[0][1]


class Absences:
    """How long endpoints were away that were given back and wanted again.

    To give one back and to start it again costs a cold start, in which it is paid for and serves nobody. Whether that
    pays shows in what came of it during the last hour.
    """

    __slots__ = ("_away", "_returned")

    def __init__(self) -> None:
        self._away: list[tuple[int, int, Instant]] = []
        """What was given back: from how many to how many, and when. Each goes on where the one before it stops."""
        self._returned: deque[tuple[Instant, int, int]] = deque(maxlen=_RETURNS)
        """When they were wanted again, how many of them, and how long they had been away, all added up."""

    def gave_back(self, *, before: int, after: int, now: Instant) -> None:
        self._away.append((before, after, now))

    def wanted_again(self, wanted: int, now: Instant) -> None:
        away = self._away
        count = total_ns = 0
        while away and away[-1][1] < wanted:
            before, after, since = away.pop()
            returned = min(before, wanted) - after
            count += returned
            total_ns += returned * (now - since)
            if before > wanted:
                away.append((before, wanted, since))
        if count:
            self._returned.append((now, count, total_ns))

    def lasted_ns(self, now: Instant) -> int:
        """How long they were away on the mean; an hour where none has come back for as long."""
        while self._returned and self._returned[0][0] <= now - _HOUR:
            self._returned.popleft()
        count = total_ns = 0
        for _, some, together_ns in self._returned:
            count += some
            total_ns += together_ns
        return total_ns // count if count else _HOUR
