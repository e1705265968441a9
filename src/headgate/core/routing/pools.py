"""The endpoints of one pool, ordered by load.

Endpoints with headroom are kept in heaps by load, one per zone, so that the least loaded ones are found without
visiting the others.
"""

from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush
from typing import Final

from headgate.core.routing.endpoints import EndpointRecord, EndpointSettings
from headgate.core.routing.pool_speed import PoolSpeed
from headgate.core.routing.prefix_index import PrefixIndex
from headgate.core.routing.response_times import ResponseTimes
from headgate.core.routing.session_index import SessionIndex
from headgate.core.routing.turnover import Turnover
from headgate.model.endpoint import EndpointState
from headgate.model.units import Duration, EndpointId, Instant

_STALE_ENTRIES_MAX: Final = 64
# Enum members that every request needs: Python 3.11 looks them up slowly.
_READY: Final = EndpointState.READY
_TRIAL: Final = EndpointState.TRIAL

_Entry = tuple[int, int, EndpointRecord]
"""Load, order number, endpoint. The entry is stale if the endpoint's order number has changed."""


class PoolRecord:
    """Endpoints of one pool, with their counts and heaps."""

    __slots__ = (
        "_heaps",
        "_limit",
        "_order",
        "_slots",
        "endpoints",
        "headroom_count",
        "live_count",
        "long_count",
        "prefixes",
        "response_times",
        "sessions",
        "settings",
        "speed",
        "turnover",
    )

    def __init__(self, terms: EndpointSettings) -> None:
        self.settings = terms
        self.speed = PoolSpeed(terms.speed, assumed=terms.speed_assumed)
        self.endpoints: dict[EndpointId, EndpointRecord] = {}
        self.live_count = 0
        """Number of live endpoints."""
        self._limit = 0
        """Total concurrency limit of the live endpoints."""
        self.turnover = Turnover()
        self.prefixes, self.sessions, self.response_times = PrefixIndex(), SessionIndex(), ResponseTimes()
        self._slots: dict[int, EndpointRecord] = {}
        self.long_count = 0
        """Number of endpoints that are processing a long prompt."""
        self._heaps: dict[str, list[_Entry]] = {}
        """Heap of endpoints by load for each zone. Stale entries are dropped when they reach the top."""
        self.headroom_count = 0
        """Number of endpoints with headroom."""
        self._order = 0

    def add(self, endpoint: EndpointRecord) -> None:
        while endpoint.slot in self._slots:
            endpoint.slot += 1
        self._slots[endpoint.slot] = self.endpoints[endpoint.id] = endpoint
        endpoint.response_times.pool = self.response_times

    def endpoint_at(self, slot: int) -> EndpointRecord:
        return self._slots[slot]

    def apply_settings(self, terms: EndpointSettings) -> None:
        self.settings = terms
        self.speed.change(terms.speed, assumed=terms.speed_assumed)

    def place(self, endpoint: EndpointRecord) -> None:
        """Updates counts and heaps after the endpoint has changed."""
        state = endpoint.state
        live = (state is _READY or state is _TRIAL) and not endpoint.leaving and not endpoint.drained
        if live is not endpoint.live:
            self.live_count += live - endpoint.live
            endpoint.live = live
        limit = endpoint.limit if live else 0
        if endpoint.sequence_limit.learned is not None:
            limit = endpoint.sequence_limit.bound(limit)
        if limit != endpoint.counted_limit:
            self._limit += limit - endpoint.counted_limit
            endpoint.counted_limit = limit
        self.place_load(endpoint)

    def place_load(self, endpoint: EndpointRecord) -> None:
        """Like `place`, for a change that affects only the endpoint's load: it stays live or not, with its limit."""
        has_long = endpoint.pending_tokens >= self.settings.rules.long_prompt_tokens
        if has_long is not endpoint.counted_long:
            self.long_count += has_long - endpoint.counted_long
            endpoint.counted_long = has_long
        if endpoint.has_headroom():
            if endpoint.heap_entry is None:
                self.headroom_count += 1
            self._order = endpoint.heap_entry = order = self._order + 1
            self._push((endpoint.load_ns(), order, endpoint))
        elif endpoint.heap_entry is not None:
            self.headroom_count -= 1
            endpoint.heap_entry = None

    def _push(self, entry: _Entry) -> None:
        zone = entry[2].zone
        if self.headroom_count == 1:
            # The only endpoint with headroom: all other entries are stale.
            self._heaps[zone] = [entry]
            return
        if (heap := self._heaps.get(zone)) is None:
            heap = self._heaps[zone] = []
        heappush(heap, entry)
        if len(heap) > 2 * self.headroom_count + _STALE_ENTRIES_MAX:
            heap[:] = [each for each in heap if each[2].heap_entry == each[1]]
            heapify(heap)

    @property
    def long_lane_size(self) -> int:
        """Size of the long lane: the number of endpoints that may process long prompts at the same time."""
        return max(1, self.live_count * self.settings.rules.long_lane_percent // 100)

    def service_rate(self, *, long: bool) -> int:
        """Returns the engine time that the pool provides per unit of elapsed time, in thousandths."""
        pace = self.turnover.service_rate(self.live_count, self._limit)
        return pace * self.long_lane_size // max(1, self.live_count) if long else pace

    @property
    def mean_request_ns(self) -> Duration:
        """Mean engine time of a request if slots are the bottleneck, otherwise 0."""
        return self.turnover.mean_request_ns(self.live_count, self._limit)

    def free_in_ns(self, ahead_ns: Duration, now: Instant) -> Duration:
        """Returns the minimum time until a slot is free for a request with `ahead_ns` of engine time ahead of it."""
        return Duration(0) if self.headroom_count else self.turnover.free_in_ns(self._limit, ahead_ns, now)

    def remove(self, endpoint: EndpointRecord) -> None:
        """Removes an endpoint that is not live."""
        del self.endpoints[endpoint.id], self._slots[endpoint.slot]
        self.speed.forget(endpoint.speed_estimator)
        zones = {each.zone: None for each in self.endpoints.values()}
        self._heaps = {zone: heap for zone, heap in self._heaps.items() if zone in zones}

    def least_loaded(self, zone: str = "") -> EndpointRecord | None:
        """Returns the endpoint with headroom that has the lowest sum of load and distance from the zone."""
        heap = self._nearest(zone) if self.headroom_count else None
        return heap[0][2] if heap else None

    def first_by_load(
        self,
        passes: Callable[[EndpointRecord], bool],
        *,
        scanned_max: int,
        zone: str = "",
        uncounted: Collection[EndpointRecord] = (),
    ) -> EndpointRecord | None:
        """Returns the first endpoint that passes, in ascending order of load plus distance from the zone.

        Only endpoints with headroom are scanned, at most `scanned_max` of them, not counting those in `uncounted`.
        """
        seen: list[tuple[list[_Entry], _Entry]] = []
        found: EndpointRecord | None = None
        scanned = 0
        while scanned < scanned_max and (heap := self._nearest(zone)):
            seen.append((heap, heappop(heap)))
            endpoint = seen[-1][1][2]
            if passes(endpoint):
                found = endpoint
                break
            scanned += endpoint not in uncounted
        for heap, entry in seen:
            heappush(heap, entry)
        return found

    def _nearest(self, zone: str) -> "list[_Entry] | None":
        """Returns the heap whose first endpoint has the lowest load plus distance, or None if there is no headroom."""
        best: list[_Entry] | None = None
        least_ns = least_order = 0
        for heap in self._heaps.values():
            while heap and heap[0][2].heap_entry != heap[0][1]:
                heappop(heap)
            if heap:
                load_ns, order, endpoint = heap[0]
                if zone:
                    load_ns += endpoint.distance_ns(zone)
                if best is None or load_ns < least_ns or (load_ns == least_ns and order < least_order):
                    best, least_ns, least_order = heap, load_ns, order
        return best

    @property
    def is_warming(self) -> bool:
        """Whether an endpoint of the pool is starting."""
        return any(
            each.state is EndpointState.WARMING and not each.leaving and not each.drained
            for each in self.endpoints.values()
        )

    def next_available_ns(self, now: Instant, warm_up: Duration) -> Duration | None:
        """Returns the time until the next endpoint may become live, or None if none is expected.

        An ejected endpoint that is unresponsive is not expected to become live, although it is tried again when its
        ejection ends.
        """
        waits = [
            warm_up if endpoint.state is EndpointState.WARMING else Duration(max(0, endpoint.ejected_until - now))
            for endpoint in self.endpoints.values()
            if not endpoint.leaving and not endpoint.drained and not _is_lost(endpoint, now)
        ]
        return min(waits, default=None)


def _is_lost(endpoint: EndpointRecord, now: Instant) -> bool:
    return endpoint.state is EndpointState.EJECTED and endpoint.unresponsive(now)
