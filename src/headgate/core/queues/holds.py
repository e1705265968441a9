"""Requests held until an endpoint has started, and how long such starts have taken.

A pool that is scaled to zero starts an endpoint when a request needs one. Requests that arrive during the cold start
are held if their class sets `cold_start_wait_max`. They are queued like all others but counted separately, so they do
not count toward the queue limits for requests to running pools. A request is held for all pools that it may use. The
hold ends when any of these pools has a live endpoint. The request then waits like any other.

A start is measured only if the first held request arrived before any endpoint of its pools was known. Otherwise, there
is no way to know when the start began.
"""

from collections.abc import Iterable
from typing import Final

from headgate.core.counters import StartCounter
from headgate.core.request_state import Request
from headgate.core.routing.fleet import FleetState
from headgate.core.rules import Rules
from headgate.model.units import Duration, Instant, PoolName, RequestId

_OVERDUE_DIVISOR: Final = 8
"""The remaining time of a start is assumed to be at least the last start's duration divided by this."""


class _Start:
    """A start in progress: the first endpoint of any pool in a set."""

    __slots__ = ("began", "waiting")

    def __init__(self, began: Instant | None) -> None:
        self.began = began
        """Time at which the start began. None if unknown."""
        self.waiting: dict[RequestId, Request] = {}
        """Requests held for this start. Can be empty while the start is still in progress."""


class Holds:
    __slots__ = ("_took_ns", "starts")

    def __init__(self) -> None:
        self.starts: dict[tuple[PoolName, ...], _Start] = {}
        self._took_ns: dict[PoolName, Duration] = {}
        """Duration of each pool's last measured start."""

    def change_rules(self, rules: Rules) -> None:
        self._took_ns = {pool: took for pool, took in self._took_ns.items() if pool in rules.pools}

    def counters(self) -> tuple[StartCounter, ...]:
        return tuple(StartCounter(pool, took) for pool, took in self._took_ns.items())

    def restore(self, counters: Iterable[StartCounter]) -> None:
        self._took_ns = {each.pool: each.took_ns for each in counters}

    def expect(self, pools: tuple[PoolName, ...]) -> None:
        """Records that another scheduler has been holding requests for these pools for an unknown time."""
        self.starts.setdefault(pools, _Start(None))

    def add(self, request: Request, fleet: FleetState) -> None:
        if (start := self.starts.get(request.pools)) is None:
            known = any(pool in fleet.pools for pool in request.pools)
            start = self.starts[request.pools] = _Start(None if known else request.queued_since)
        start.waiting[request.ticket.request_id] = request

    def remove(self, request: Request) -> bool:
        """Ends the hold of a request. Returns whether the request was held."""
        start = self.starts.get(request.pools)
        return start is not None and start.waiting.pop(request.ticket.request_id, None) is not None

    def pop_released(self, fleet: FleetState, now: Instant) -> list[Request]:
        """Removes and returns requests that no longer need to be held, in order of arrival."""
        free: list[Request] = []
        for pools, start in tuple(self.starts.items()):
            if fleet.live_count(pools):
                free += start.waiting.values()
                self._measure(pools, start, fleet, now)
                del self.starts[pools]
            elif not start.waiting and not fleet.is_warming(pools):
                del self.starts[pools]
        return free

    def _measure(self, pools: tuple[PoolName, ...], start: _Start, fleet: FleetState, now: Instant) -> None:
        if start.began is not None:
            for pool in pools:
                if fleet.live_count((pool,)):
                    self._took_ns[pool] = Duration(now - start.began)

    def expected_ns(self, pool: PoolName, pools: tuple[PoolName, ...], usual_ns: Duration, now: Instant) -> Duration:
        """Returns the expected time until the pool's first endpoint is live, for a request that may use `pools`."""
        took_ns, start = self._took_ns.get(pool, usual_ns), self.starts.get(pools)
        if start is None or start.began is None:
            return took_ns
        return Duration(max(took_ns // _OVERDUE_DIVISOR, took_ns - (now - start.began)))
