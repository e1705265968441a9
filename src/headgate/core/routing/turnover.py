"""How fast do the places of a pool serve the queue, and how soon is one free?

An engine may accept only so many requests at once (`in_flight_max`). Where that binds, a request waits for a place and
not for engine time, and its wait depends on how long others keep their places. Two things are learned from the requests
that ended last: the ratio of estimated engine time served to the time that places were held, and how long the quickest
request held its place, relative to its estimate. If all answers are about equally long, places become free in bursts,
and a request that misses one burst has to wait for the next.

A caller that reads slowly keeps its place for as long as it likes, and the time spent reading is not known here. So a
place counts as held for at most `LIFE_TIMES_MAX` times as long as is usual for its request's estimate. The usual time
is the median over the last few requests of each tenant: one tenant beside another cannot move it, however many slow
callers it has.
"""

from collections import deque
from typing import Final, NamedTuple

from headgate.model.units import Duration, Instant, TenantId

MILLE: Final = 1_000
_MEMORY: Final = 128
"""The approximate number of requests that are remembered."""
_SEEN_MIN: Final = 8
"""The minimum number of requests to learn from: one or two are no evidence of how long others take."""
_QUICKEST_OF: Final = 32
LIFE_TIMES_MAX: Final = 4
"""A place counts as held for at most this multiple of the usual time."""
_LIVES_OF_TENANT: Final = 8
_TENANTS: Final = 8
"""The usual time comes from the last `_LIVES_OF_TENANT` requests of each of the last `_TENANTS` tenants served."""
_LOOKED_AT: Final = 64
"""If more requests than this hold places, places become free often enough."""


_NO_TENANT: Final = TenantId("")


class _Held(NamedTuple):
    since: Instant
    cost_ns: Duration
    """The estimated engine time of the request."""
    places: int
    tenant: TenantId


class _Lives:
    """The times for which places were recently held, in thousandths of their estimates."""

    __slots__ = ("_of_tenant",)

    def __init__(self) -> None:
        self._of_tenant: dict[TenantId, deque[int]] = {}
        """In the order of service, the tenant served last at the end."""

    def note(self, tenant: TenantId, life: int) -> None:
        lives = self._of_tenant.pop(tenant, None)
        if lives is None:
            if len(self._of_tenant) >= _TENANTS:
                del self._of_tenant[next(iter(self._of_tenant))]
            lives = deque[int](maxlen=_LIVES_OF_TENANT)
        lives.append(life)
        self._of_tenant[tenant] = lives

    def clipped(self, life: int) -> int:
        """`life`, but at most `LIFE_TIMES_MAX` times the median (the lower one of two middle values)."""
        known = sorted(each for lives in self._of_tenant.values() for each in lives)
        if len(known) < _SEEN_MIN:
            return life
        return min(life, LIFE_TIMES_MAX * max(1, known[(len(known) - 1) // 2]))


class Turnover:
    """The turnover of one pool's places."""

    __slots__ = ("_count", "_held_ns", "_last", "_lives", "_places", "_served_ns", "_taken")

    def __init__(self) -> None:
        self._served_ns = self._held_ns = self._count = 0
        """Decaying sums over the remembered requests; the count is in thousandths."""
        self._taken: dict[object, _Held] = {}
        self._places = 0
        """The number of places that these hold together."""
        self._last: deque[int] = deque(maxlen=_QUICKEST_OF)
        """The times for which the last requests held their places, in thousandths of their estimates."""
        self._lives = _Lives()

    def take(
        self, holder: object, now: Instant, *, cost_ns: Duration, places: int = 1, tenant: TenantId = _NO_TENANT
    ) -> None:
        self._taken[holder] = _Held(now, cost_ns, places, tenant)
        self._places += places

    def give_back(self, holder: object, now: Instant, *, served: bool) -> None:
        """Frees the place, and learns only from attempts that were served to their end.

        A failed attempt is repeated, and the duration of an attempt that was refused or whose caller left is no
        evidence about others: a tenant that leaves at once must not make places look quick.
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
        """Thousandths of a nanosecond of engine time that `endpoints` endpoints serve per nanosecond.

        An endpoint never serves more than its own time, however short places are held.
        """
        at_most = MILLE * endpoints
        if len(self._last) < _SEEN_MIN or not self._held_ns:
            return at_most
        # Zero would mean a pool without any data.
        return min(at_most, max(1, MILLE * places * self._served_ns // self._held_ns))

    def grain_ns(self, endpoints: int, places: int) -> Duration:
        """The engine time of a mean request if places bind: they become free one by one, not evenly."""
        if self.pace(endpoints, places) == MILLE * endpoints:
            return Duration(0)
        return Duration(MILLE * self._served_ns // self._count)

    def free_in_ns(self, places: int, ahead_ns: Duration, now: Instant) -> Duration:
        """The minimum time until a place is free, after others have used `ahead_ns` of engine time.

        0 if not all places are taken, or if the requests ahead take all of them once more: `pace` covers that case.
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
