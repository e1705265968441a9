"""Slot turnover of a pool: how fast its slots serve the queue, and when the next slot becomes free.

An endpoint accepts a limited number of concurrent requests (`in_flight_max`). If this limit is the bottleneck, requests
wait for slots instead of engine time, and the wait depends on how long other requests occupy their slots. Two values
are learned from recently finished requests:

- the ratio of estimated engine time served to slot time;
- the shortest slot time relative to the request's estimate. If all responses are about equally long, slots become free
  in bursts, and a request that misses one burst has to wait for the next.

A caller that reads slowly can occupy its slot for any length of time, and the core does not know how much time is spent
on reading. A request's slot time is therefore capped at `HOLD_TIMES_MAX` times the usual slot time for its estimate.
The usual slot time is the median over the last few requests of each tenant, so a single tenant with many slow callers
cannot change it.
"""

from bisect import bisect_left, insort
from collections import deque
from typing import Final

from headgate.model.units import Duration, Instant, TenantId

MILLE: Final = 1_000
_SAMPLES_KEPT: Final = 128
"""Approximate number of requests in the decaying sums."""
_SAMPLES_MIN: Final = 8
"""Minimum number of finished requests before the learned values are used."""
_QUICKEST_OF: Final = 32
HOLD_TIMES_MAX: Final = 4
"""Maximum slot time that is counted, as a multiple of the usual slot time."""
_SAMPLES_PER_TENANT: Final = 8
_TENANTS: Final = 8
"""The usual slot time is the median over the last `_SAMPLES_PER_TENANT` requests of each of the last `_TENANTS`
tenants."""
_HELD_SCANNED_MAX: Final = 64
"""If more requests than this occupy slots, slots become free so often that the wait for one is not estimated."""


_NO_TENANT: Final = TenantId("")


_HeldPlace = tuple[Instant, Duration, int, TenantId]
"""Start, estimated engine time of the request, number of slots, tenant."""


class _HoldTimes:
    """Recent slot times, in thousandths of the requests' estimates."""

    __slots__ = ("_of_tenant", "_sorted")

    def __init__(self) -> None:
        self._of_tenant: dict[TenantId, deque[int]] = {}
        """Slot times by tenant. The most recently served tenant is last."""
        self._sorted: list[int] = []
        """All slot times in `_of_tenant`, in ascending order."""

    def record(self, tenant: TenantId, hold_time: int) -> None:
        lives = self._of_tenant.pop(tenant, None)
        if lives is None:
            if len(self._of_tenant) >= _TENANTS:
                for each in self._of_tenant.pop(next(iter(self._of_tenant))):
                    self._forget(each)
            lives = deque[int]()
        elif len(lives) >= _SAMPLES_PER_TENANT:
            self._forget(lives.popleft())
        lives.append(hold_time)
        insort(self._sorted, hold_time)
        self._of_tenant[tenant] = lives

    def _forget(self, hold_time: int) -> None:
        del self._sorted[bisect_left(self._sorted, hold_time)]

    def clipped(self, hold_time: int) -> int:
        """Returns `hold_time`, but at most `HOLD_TIMES_MAX` times the median (the lower of the two middle values)."""
        count = len(self._sorted)
        if count < _SAMPLES_MIN:
            return hold_time
        most = HOLD_TIMES_MAX * (self._sorted[(count - 1) // 2] or 1)
        return hold_time if hold_time < most else most


class Turnover:
    """Turnover of one pool's slots."""

    __slots__ = ("_count", "_held_ns", "_hold_times", "_last", "_places", "_served_ns", "_taken")

    def __init__(self) -> None:
        self._served_ns = self._held_ns = self._count = 0
        """Decaying sums of engine time, slot time and requests. The number of requests is in thousandths."""
        self._taken: dict[object, _HeldPlace] = {}
        self._places = 0
        """Total number of slots in `_taken`."""
        self._last: deque[int] = deque(maxlen=_QUICKEST_OF)
        """Slot times of the last requests, in thousandths of their estimates."""
        self._hold_times = _HoldTimes()

    def occupy(
        self, holder: object, now: Instant, cost_ns: Duration, places: int = 1, tenant: TenantId = _NO_TENANT
    ) -> None:
        self._taken[holder] = (now, cost_ns, places, tenant)
        self._places += places

    def release(self, holder: object, now: Instant, *, served: bool) -> None:
        """Frees the slots of an attempt and learns from it if it completed (`served`).

        A failed attempt is repeated. The duration of an attempt that was rejected or whose client disconnected is no
        guide to other requests: clients that disconnect early must not make slots look fast.
        """
        held = self._taken.pop(holder, None)
        if held is None:
            return
        since, cost_ns, places, tenant = held
        self._places -= places
        if not served:
            return
        life = MILLE * (now - since) // (cost_ns or 1)
        counted = self._hold_times.clipped(life)
        self._hold_times.record(tenant, life)
        held_ns = now - since if counted == life else counted * (cost_ns or 1) // MILLE
        self._served_ns += cost_ns - self._served_ns // _SAMPLES_KEPT
        self._held_ns += held_ns * places - self._held_ns // _SAMPLES_KEPT
        self._count += MILLE - self._count // _SAMPLES_KEPT
        self._last.append(counted)

    def service_rate(self, endpoints: int, places: int) -> int:
        """Returns the engine time that `endpoints` endpoints provide per unit of elapsed time, in thousandths.

        An endpoint never provides more engine time than the elapsed time, even if slot times are very short.
        """
        at_most = MILLE * endpoints
        if len(self._last) < _SAMPLES_MIN or not self._held_ns:
            return at_most
        # Callers take zero to mean that the pool has no data.
        return min(at_most, max(1, MILLE * places * self._served_ns // self._held_ns))

    def mean_request_ns(self, endpoints: int, places: int) -> Duration:
        """Returns the mean engine time of a request if slots are the bottleneck, otherwise 0."""
        if self.service_rate(endpoints, places) == MILLE * endpoints:
            return Duration(0)
        return Duration(MILLE * self._served_ns // self._count)

    def free_in_ns(self, places: int, ahead_ns: Duration, now: Instant) -> Duration:
        """Returns the minimum time until a slot is free for a request with `ahead_ns` of engine time ahead of it.

        The result is 0 if a slot is free now, or if the requests ahead will occupy all slots again. `service_rate`
        covers that case.
        """
        taken = len(self._taken)
        if len(self._last) < _SAMPLES_MIN or self._places < max(1, places) or taken > _HELD_SCANNED_MAX:
            return Duration(0)
        ahead = ahead_ns * self._count // max(1, MILLE * self._served_ns)
        if ahead >= taken:
            return Duration(0)
        quickest = min(self._last)
        ends = sorted(since + cost_ns * quickest // MILLE for since, cost_ns, _, _ in self._taken.values())
        return Duration(max(0, ends[ahead] - now))
