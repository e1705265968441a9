"""How fast do the places of a pool work off what waits, and how soon is one given back?

An engine may take only so many requests at once (`in_flight_max`). Where that binds, a request waits for a place and
not for engine time, and its wait follows from how long others keep theirs. Two things are learned from the requests
that ended last: how much estimated engine time was served while places were held for how long, and how long the
quickest of them held its place, beside what it was thought to take. Where all answers are about equally long, places
are given back in bursts, and who comes too late for one has to wait for the next.
"""

from collections import deque
from typing import Final, NamedTuple

from headgate.model.units import Duration, Instant

MILLE: Final = 1_000
_MEMORY: Final = 128
"""About so many requests are remembered."""
_SEEN_MIN: Final = 8
"""One or two requests say little about how long others take."""
_QUICKEST_OF: Final = 32
_LOOKED_AT: Final = 64
"""Where more hold places than this, they are given back often enough."""


class _Held(NamedTuple):
    since: Instant
    cost_ns: Duration
    """What the request was thought to take of an engine's time."""
    places: int


class Turnover:
    """Of one pool."""

    __slots__ = ("_count", "_held_ns", "_last", "_places", "_served_ns", "_taken")

    def __init__(self) -> None:
        self._served_ns = self._held_ns = self._count = 0
        """Of the requests that are remembered; their number in thousandths."""
        self._taken: dict[object, _Held] = {}
        self._places = 0
        """How many places those hold together."""
        self._last: deque[int] = deque(maxlen=_QUICKEST_OF)
        """For how long the last of them held theirs, in thousandths of what they were thought to take."""

    def take(self, holder: object, now: Instant, *, cost_ns: Duration, places: int = 1) -> None:
        self._taken[holder] = _Held(now, cost_ns, places)
        self._places += places

    def give_back(self, holder: object, now: Instant, *, served: bool) -> None:
        """Learns only from attempts that were served to their end.

        A failed attempt is made again, and how long an attempt took that was refused or whose caller left tells
        nothing about others: a tenant that leaves at once must not make places look quick.
        """
        held = self._taken.pop(holder, None)
        if held is None:
            return
        self._places -= held.places
        if not served:
            return
        held_ns = now - held.since
        self._served_ns += held.cost_ns - self._served_ns // _MEMORY
        self._held_ns += held_ns * held.places - self._held_ns // _MEMORY
        self._count += MILLE - self._count // _MEMORY
        self._last.append(MILLE * held_ns // max(1, held.cost_ns))

    def pace(self, endpoints: int, places: int) -> int:
        """Thousandths of a nanosecond of engine time that so many endpoints serve per nanosecond.

        An endpoint never serves more than its own time, however short places are held.
        """
        at_most = MILLE * endpoints
        if len(self._last) < _SEEN_MIN or not self._held_ns:
            return at_most
        return min(at_most, MILLE * places * self._served_ns // self._held_ns)

    def grain_ns(self, endpoints: int, places: int) -> Duration:
        """The engine time of a mean request where places bind: they are given back one by one, not evenly."""
        if self.pace(endpoints, places) == MILLE * endpoints:
            return Duration(0)
        return Duration(MILLE * self._served_ns // self._count)

    def free_in_ns(self, places: int, ahead_ns: Duration, now: Instant) -> Duration:
        """How long it takes at least until a place is given back after `ahead_ns` of engine time has got others.

        Nothing where not all places are taken, and where those ahead take all of them once more: pace tells of that.
        """
        taken = len(self._taken)
        if len(self._last) < _SEEN_MIN or self._places < max(1, places) or taken > _LOOKED_AT:
            return Duration(0)
        ahead = ahead_ns * self._count // max(1, MILLE * self._served_ns)
        if ahead >= taken:
            return Duration(0)
        quickest = min(self._last)
        ends = sorted(held.since + held.cost_ns * quickest // MILLE for held in self._taken.values())
        return Duration(max(0, ends[ahead] - now))
