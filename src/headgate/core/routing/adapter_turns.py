"""Which LoRA adapter gives up its slot when another one needs it?

If all slots of the endpoints with headroom belong to other adapters, a request would wait as long as these have
requests in flight, which under load is for ever. When such a request is first in order, one of these adapters is
therefore drained: it gets no new requests on that endpoint, and when its last one has ended, its slot is reserved for
the waiting adapter. Among the adapters that have had their turn, the one whose last request was sent longest ago is
drained first.

- An adapter keeps its slot for at least one turn, a multiple of the time to load an adapter. Otherwise engines would
  spend their time with loading while more adapters than slots have requests.
- Other requests are not blocked: only the drained adapter and adapters without a slot on that endpoint wait, and only
  for requests in flight.
- A reserved slot that is free is offered once, when its endpoint has headroom. If no request of the adapter fits, or
  none is queued any more, the reservation ends, and every adapter can get the slot again.
- Each waiting adapter reserves at most one slot at a time, so it cannot drain the whole pool.

Many adapters may wait. The slots are therefore examined once per free place (`AdapterOpenings`), and not for each
adapter that waits for it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from headgate.core.request_state import Request
from headgate.core.routing.adapter_slots import HeldAdapters
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.placement import Placement
from headgate.model.units import Duration, Instant, PoolName

TURN_LOADS: Final = 5
"""Length of a turn, as a multiple of the time to load an adapter: at most a sixth of the time is spent on loading."""


class AdapterOpenings:
    """Adapters that the slots of some pools admit, and slots that can be drained."""

    __slots__ = ("_admitted", "_free", "_reserved", "drainable")

    def __init__(self, reserved: Mapping[str, EndpointRecord]) -> None:
        self._reserved = reserved
        self._admitted: set[str] = set()
        """Adapters that have a slot, or a reserved one that is free."""
        self._free: list[HeldAdapters] = []
        """Endpoints with a free slot for any adapter that they hold."""
        self.drainable: dict[EndpointRecord, str] = {}
        """Endpoints with headroom whose slots are all in use, with the adapter to drain on each."""

    def add(self, endpoint: EndpointRecord, now: Instant) -> None:
        has_headroom = endpoint.heap_entry is not None
        if not has_headroom and not endpoint.accepts_queued():
            return
        adapters, slots = endpoint.adapters, endpoint.adapters.slots
        self._admitted.update(each for each in slots.in_use if each != slots.draining)
        if slots.draining:
            if adapters.has_free_slot():
                self._admitted.add(slots.reserved_for)
        elif adapters.has_free_slot():
            self._free.append(adapters)
        elif has_headroom:
            oldest = slots.least_recent(Duration(TURN_LOADS * endpoint.settings.adapter_load_ns), now)
            if oldest is not None:
                self.drainable[endpoint] = oldest

    def is_blocked(self, adapter: str) -> bool:
        """Returns whether no request of the adapter can be sent now, or can drain a slot."""
        if adapter in self._admitted:
            return False
        # Without generators, because many adapters may be blocked.
        for adapters in self._free:
            if adapters.holds(adapter):
                return False
        if adapter not in self._reserved:
            for endpoint in self.drainable:
                if endpoint.adapters.holds(adapter):
                    return False
        return True


NO_OPENINGS: Final = AdapterOpenings({})


class AdapterTurns:
    __slots__ = ("_placement", "reserved")

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.reserved: dict[str, EndpointRecord] = {}
        """Endpoint on which each of these adapters has reserved the slot of a draining one."""

    def begin(self, endpoint: EndpointRecord, adapter: str, now: Instant) -> None:
        """Counts a request that is sent. If a slot was reserved for its adapter there, the reservation ends."""
        endpoint.adapters.begin(adapter, now)
        if endpoint.adapters.slots.reserved_for == adapter:
            self._release(adapter)

    def openings(self, pools: Iterable[PoolName], now: Instant) -> AdapterOpenings:
        found = AdapterOpenings(self.reserved)
        for name in pools:
            for endpoint in self._placement.pools[name].endpoints.values():
                found.add(endpoint, now)
        return found

    def reserve(self, request: Request, openings: AdapterOpenings) -> None:
        """Drains an adapter on an endpoint with headroom, if only the adapter slots keep the request from it."""
        adapter = request.adapter
        if adapter in self.reserved:
            return
        best: tuple[int, int, int] | None = None
        found: tuple[EndpointRecord, str] | None = None
        for endpoint, oldest in openings.drainable.items():
            slots = endpoint.adapters.slots
            if adapter in slots.in_use or not _may_use(request, endpoint):
                continue
            rank = (slots.requests(oldest), endpoint.load_ns(), endpoint.slot)
            if best is None or rank < best:
                best, found = rank, (endpoint, oldest)
        if found is not None:
            endpoint, oldest = found
            endpoint.adapters.slots.drain(oldest, reserved_for=adapter)
            self.reserved[adapter] = endpoint
            for each in (endpoint, *endpoint.company):
                openings.drainable.pop(each, None)

    def release_unused(self, waiting: Mapping[str, int]) -> None:
        """Ends reservations that have had their chance or are no longer needed.

        Called when all queued requests have been offered the slots that are free. `waiting` contains the adapters that
        still have queued requests.
        """
        for adapter, endpoint in list(self.reserved.items()):
            slots = endpoint.adapters.slots
            # An endpoint that has moved to another engine has left its reservation behind.
            lost = slots.reserved_for != adapter
            offered = slots.draining not in slots.in_use and endpoint.heap_entry is not None
            if lost or offered or adapter not in waiting or not endpoint.live:
                self._release(adapter)

    def _release(self, adapter: str) -> None:
        endpoint = self.reserved.pop(adapter)
        if endpoint.adapters.slots.reserved_for == adapter:
            endpoint.adapters.slots.end_drain()
        if endpoint.heap_entry is not None:
            self._placement.dispatchable[endpoint.pool] = None


def _may_use(request: Request, endpoint: EndpointRecord) -> bool:
    return (
        endpoint.pool in request.pools
        and endpoint.adapters.holds(request.adapter)
        and endpoint is not request.excluded
        and endpoint not in request.unreachable_endpoints
    )
