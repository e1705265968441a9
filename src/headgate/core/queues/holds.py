"""Who is held until an endpoint has started, and how long does a start take?

A pool may have no endpoint at all, and is then given one when it is asked for. Whoever asks meanwhile is held, if its
class waits that long: it stands in the queue as all others, but is counted apart, so that it takes no place from those
who ask for what is there. It is held for all pools that it may use at once, and no longer once an endpoint of any of
them takes work; from then on it waits as everybody does.

How long a start takes is measured where the first of those who are held came before any endpoint was known. Where one
was on its way already nobody knows since when.
"""

from collections.abc import Iterable
from typing import Final

from headgate.core.counters import StartCounter
from headgate.core.routing.fleet import Fleet
from headgate.core.rules import Rules
from headgate.core.state import Request
from headgate.model.units import Duration, Instant, PoolName, RequestId

_LATE: Final = 8
"""A start that takes longer than the last one did is said to take such a part of it more."""


class _Start:
    """Of an endpoint of any of some pools."""

    __slots__ = ("began", "waiting")

    def __init__(self, began: Instant | None) -> None:
        self.began = began
        """None where nobody knows."""
        self.waiting: dict[RequestId, Request] = {}
        """Who is held for it. May be nobody any more while it is under way."""


class Holds:
    __slots__ = ("_took_ns", "starts")

    def __init__(self) -> None:
        self.starts: dict[tuple[PoolName, ...], _Start] = {}
        self._took_ns: dict[PoolName, Duration] = {}
        """How long the last start took that was measured."""

    def change_rules(self, rules: Rules) -> None:
        self._took_ns = {pool: took for pool, took in self._took_ns.items() if pool in rules.pools}

    def counters(self) -> tuple[StartCounter, ...]:
        return tuple(StartCounter(pool, took) for pool, took in self._took_ns.items())

    def restore(self, counters: Iterable[StartCounter]) -> None:
        self._took_ns = {each.pool: each.took_ns for each in counters}

    def expect(self, pools: tuple[PoolName, ...]) -> None:
        """Somebody has been held for these pools by others, and nobody knows since when."""
        self.starts.setdefault(pools, _Start(None))

    def add(self, request: Request, fleet: Fleet) -> None:
        if (start := self.starts.get(request.pools)) is None:
            known = any(pool in fleet.pools for pool in request.pools)
            start = self.starts[request.pools] = _Start(None if known else request.queued_since)
        start.waiting[request.ticket.request_id] = request

    def remove(self, request: Request) -> bool:
        """Whether it was held until here."""
        start = self.starts.get(request.pools)
        return start is not None and start.waiting.pop(request.ticket.request_id, None) is not None

    def over(self, fleet: Fleet, now: Instant) -> list[Request]:
        """Those who need not be held any longer, in the order in which they came."""
        free: list[Request] = []
        for pools, start in tuple(self.starts.items()):
            if fleet.live(pools):
                free += start.waiting.values()
                self._measure(pools, start, fleet, now)
                del self.starts[pools]
            elif not start.waiting and not fleet.warming(pools):
                del self.starts[pools]
        return free

    def _measure(self, pools: tuple[PoolName, ...], start: _Start, fleet: Fleet, now: Instant) -> None:
        if start.began is not None:
            for pool in pools:
                if fleet.live((pool,)):
                    self._took_ns[pool] = Duration(now - start.began)

    def expected_ns(self, pool: PoolName, pools: tuple[PoolName, ...], usual_ns: Duration, now: Instant) -> Duration:
        """How long until the first endpoint of the pool serves those who may use these pools."""
        took_ns, start = self._took_ns.get(pool, usual_ns), self.starts.get(pools)
        if start is None or start.began is None:
            return took_ns
        return Duration(max(took_ns // _LATE, took_ns - (now - start.began)))
