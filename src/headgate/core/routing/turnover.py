"""How fast do the places of a pool work off what waits, and how soon is one given back?

An engine may take only so many requests at once (`in_flight_max`). Where that binds, a request waits for a place and
not for engine time, and its wait follows from how long others keep theirs. Two things are learned from the requests
that ended last: how much estimated engine time was served while places were held for how long, and how long the
quickest of them held its place, beside what it was thought to take. Where all answers are about equally long, places
are given back in bursts, and who comes too late for one has to wait for the next.

A caller that reads slowly keeps its place for as long as it likes, and how much of that it spent reading is not known
here. So a place counts as held for at most `LIFE_TIMES_MAX` times as long as is usual for what its request was thought
to take. What is usual is the median over the last few requests of each tenant: one tenant beside another cannot move
it, however many slow callers it has.
"""

from collections import deque
from typing import Final, NamedTuple

from headgate.model.units import Duration, Instant, TenantId

MILLE: Final = 1_000
_MEMORY: Final = 128
"""About so many requests are remembered."""
_SEEN_MIN: Final = 8
"""One or two requests say little about how long others take."""
_QUICKEST_OF: Final = 32
LIFE_TIMES_MAX: Final = 4
"""A place counts as held for at most so many times as long as is usual."""
_LIVES_OF_TENANT: Final = 8
_TENANTS: Final = 8
"""Of so many tenants, those served last, so many requests each say what is usual."""
_LOOKED_AT: Final = 64
"""Where more hold places than this, they are given back often enough."""


_NO_TENANT: Final = TenantId("")


class _Held(NamedTuple):
    since: Instant
    cost_ns: Duration
    """What the request was thought to take of an engine's time."""
    places: int
    tenant: TenantId


class _Lives:
    """For how long places were held of late, in thousandths of what was thought."""

    __slots__ = ("_of_tenant",)

    def __init__(self) -> None:
        self._of_tenant: dict[TenantId, deque[int]] = {}
        """The tenant that was served last is the last."""

    def note(self, tenant: TenantId, life: int) -> None:
        lives = self._of_tenant.pop(tenant, None)
        if lives is None:
            if len(self._of_tenant) >= _TENANTS:
                del self._of_tenant[next(iter(self._of_tenant))]
            lives = deque[int](maxlen=_LIVES_OF_TENANT)
        lives.append(life)
        self._of_tenant[tenant] = lives

    def clipped(self, life: int) -> int:
        """The same, but no longer than a few times the median. Of an even number the lower one of the middle counts."""
        known = sorted(each for lives in self._of_tenant.values() for each in lives)
        if len(known) < _SEEN_MIN:
            return life
        return min(life, LIFE_TIMES_MAX * max(1, known[(len(known) - 1) // 2]))


class Turnover:
    """Of one pool."""

    __slots__ = ("_count", "_held_ns", "_last", "_lives", "_places", "_served_ns", "_taken")

    def __init__(self) -> None:
        self._served_ns = self._held_ns = self._count = 0
        """Of the requests that are remembered; their number in thousandths."""
        self._taken: dict[object, _Held] = {}
        self._places = 0
        """How many places those hold together."""
        self._last: deque[int] = deque(maxlen=_QUICKEST_OF)
        """For how long the last of them held theirs, in thousandths of what they were thought to take."""
        self._lives = _Lives()

    def take(
        self, holder: object, now: Instant, *, cost_ns: Duration, places: int = 1, tenant: TenantId = _NO_TENANT
    ) -> None:
        self._taken[holder] = _Held(now, cost_ns, places, tenant)
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
        cost_ns = max(1, held.cost_ns)
        life = MILLE * (now - held.since) // cost_ns
        counted = self._lives.clipped(life)
        self._lives.note(held.tenant, life)
        held_ns = now - held.since if counted == life else counted * cost_ns // MILLE
        self._served_ns += held.cost_ns - self._served_ns // _MEMORY
        self._held_ns += held_ns * held.places - self._held_ns // _MEMORY
        self._count += MILLE - self._count // _MEMORY
        self._last.append(counted)

    def pace(self, endpoints: int, places: int) -> int:
        """Thousandths of a nanosecond of engine time that so many endpoints serve per nanosecond.

        An endpoint never serves more than its own time, however short places are held.
        """
        at_most = MILLE * endpoints
        if len(self._last) < _SEEN_MIN or not self._held_ns:
            return at_most
        # Zero would be taken for a pool of which nothing is known.
        return min(at_most, max(1, MILLE * places * self._served_ns // self._held_ns))

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
