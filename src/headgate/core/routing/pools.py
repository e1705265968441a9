"""The endpoints of a pool, and the least loaded of them.

Endpoints with headroom are kept in a heap by load, so that the few least loaded ones are found without visiting the
others, however many there are.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from headgate.core.routing.endpoints import EndpointRecord, Terms
from headgate.core.routing.pool_speed import PoolSpeed
from headgate.core.routing.prefix_index import PrefixIndex
from headgate.core.routing.turnover import Turnover
from headgate.model.endpoint import EndpointState
from headgate.model.units import Duration, EndpointId, Instant

_HUSKS_TOLERATED: Final = 64

_Entry = tuple[int, int, EndpointRecord]
"""Load, the place that it had then, endpoint."""


class PoolRecord:
    """The endpoints of one pool."""

    __slots__ = (
        "_heaps",
        "_limit",
        "_order",
        "_slots",
        "endpoints",
        "live",
        "long",
        "places",
        "prefixes",
        "speed",
        "terms",
        "turnover",
    )

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.speed = PoolSpeed(terms.speed, assumed=terms.speed_assumed)
        self.endpoints: dict[EndpointId, EndpointRecord] = {}
        self.live = 0
        """How many endpoints take work."""
        self._limit = 0
        """Total number of requests that the live endpoints accept at once."""
        self.turnover = Turnover()
        self.prefixes = PrefixIndex()
        self._slots: dict[int, EndpointRecord] = {}
        self.long = 0
        """At how many of them a long prompt is being computed."""
        self._heaps: dict[str, list[_Entry]] = {}
        """Of each zone by load. Hold some entries that no longer count: they are dropped when they come up."""
        self.places = 0
        """How many have headroom."""
        self._order = 0

    def add(self, endpoint: EndpointRecord) -> None:
        while endpoint.slot in self._slots:
            endpoint.slot += 1
        self._slots[endpoint.slot] = self.endpoints[endpoint.id] = endpoint

    def at(self, slot: int) -> EndpointRecord:
        return self._slots[slot]

    def take_terms(self, terms: Terms) -> None:
        self.terms = terms
        self.speed.change(terms.speed, assumed=terms.speed_assumed)

    @property
    def learning(self) -> bool:
        """Whether the speed of its engines is still a guess."""
        return self.speed.learning(len(self.endpoints))

    def place(self, endpoint: EndpointRecord) -> None:
        """Puts the endpoint where it belongs after any change of it."""
        state = endpoint.state
        serving = state is EndpointState.READY or state is EndpointState.TRIAL
        live = serving and not endpoint.leaving and not endpoint.drained
        if live is not endpoint.live:
            self.live += live - endpoint.live
            endpoint.live = live
        limit = endpoint.sequences.bound(endpoint.limit) if live else 0
        if limit != endpoint.counted_limit:
            self._limit += limit - endpoint.counted_limit
            endpoint.counted_limit = limit
        has_long = endpoint.pending_tokens >= self.terms.rules.long_tokens
        if has_long is not endpoint.counted_long:
            self.long += has_long - endpoint.counted_long
            endpoint.counted_long = has_long
        if endpoint.place is not None:
            self.places -= 1
            endpoint.place = None
        if endpoint.headroom:
            self._order += 1
            self.places += 1
            endpoint.place = self._order
            if (heap := self._heaps.get(endpoint.zone)) is None:
                heap = self._heaps[endpoint.zone] = []
            heappush(heap, (endpoint.load_ns, self._order, endpoint))
            if len(heap) > 2 * self.places + _HUSKS_TOLERATED:
                heap[:] = [entry for entry in heap if entry[2].place == entry[1]]
                heapify(heap)

    @property
    def lane(self) -> int:
        """How many endpoints may compute a long prompt at the same time: the others are for the short ones."""
        return max(1, self.live * self.terms.rules.long_percent // 100)

    def pace(self, *, long: bool) -> int:
        """The engine time that is served here, in thousandths of the elapsed time."""
        pace = self.turnover.pace(self.live, self._limit)
        return pace * self.lane // max(1, self.live) if long else pace

    @property
    def grain_ns(self) -> Duration:
        """The engine time of a mean request if places are the bottleneck, else 0."""
        return self.turnover.grain_ns(self.live, self._limit)

    def free_in_ns(self, ahead_ns: Duration, now: Instant) -> Duration:
        """The minimum time until a place is free for a request with this much engine time ahead of it."""
        return Duration(0) if self.places else self.turnover.free_in_ns(self._limit, ahead_ns, now)

    def remove(self, endpoint: EndpointRecord) -> None:
        """Forgets an endpoint that takes no work."""
        del self.endpoints[endpoint.id], self._slots[endpoint.slot]
        self.speed.forget(endpoint.learned)
        zones = {each.zone: None for each in self.endpoints.values()}
        self._heaps = {zone: heap for zone, heap in self._heaps.items() if zone in zones}

    def least_loaded(self, zone: str = "") -> EndpointRecord | None:
        """The endpoint with headroom whose load plus distance from the zone is smallest."""
        heap = self._nearest(zone) if self.places else None
        return heap[0][2] if heap else None

    def by_load(self, zone: str = "") -> Iterator[EndpointRecord]:
        """Endpoints with headroom, in ascending order of load plus distance from the zone.

        Whoever stops early leaves the rest untouched.
        """
        seen: list[tuple[list[_Entry], _Entry]] = []
        try:
            while heap := self._nearest(zone):
                seen.append((heap, heappop(heap)))
                yield seen[-1][1][2]
        finally:
            for heap, entry in seen:
                heappush(heap, entry)

    def _nearest(self, zone: str) -> "list[_Entry] | None":
        """The heap whose first endpoint has the least load and distance; None where nobody has headroom."""
        best: list[_Entry] | None = None
        least_ns = least_order = 0
        for heap in self._heaps.values():
            while heap and heap[0][2].place != heap[0][1]:
                heappop(heap)
            if heap:
                load_ns, order, endpoint = heap[0]
                if zone:
                    load_ns += endpoint.distance_ns(zone)
                if best is None or load_ns < least_ns or (load_ns == least_ns and order < least_order):
                    best, least_ns, least_order = heap, load_ns, order
        return best

    @property
    def warming(self) -> bool:
        """Whether an endpoint is expected of which nobody knows how long it has been starting."""
        return any(
            each.state is EndpointState.WARMING and not each.leaving and not each.drained
            for each in self.endpoints.values()
        )

    def soonest(self, now: Instant, warm_up: Duration) -> Duration | None:
        """How long until an endpoint that does not take work at the moment may do so; None if none can."""
        waits = [
            warm_up if endpoint.state is EndpointState.WARMING else Duration(max(0, endpoint.returns_at - now))
            for endpoint in self.endpoints.values()
            if not endpoint.leaving and not endpoint.drained
        ]
        return min(waits, default=None)
