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
"""

from collections.abc import Mapping
from typing import Final

from headgate.core.request_state import Request
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.placement import Placement
from headgate.core.routing.pools import PoolRecord
from headgate.model.units import Duration, Instant

TURN_LOADS: Final = 5
"""Length of a turn, as a multiple of the time to load an adapter: at most a sixth of the time is spent on loading."""


class AdapterTurns:
    __slots__ = ("_placement", "reserved")

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.reserved: dict[str, EndpointRecord] = {}
        """Endpoint on which each of these adapters has reserved the slot of a draining one."""

    def begin(self, endpoint: EndpointRecord, adapter: str, now: Instant) -> None:
        """Counts a request that is sent. If a slot was reserved for its adapter there, the reservation ends."""
        endpoint.adapters.begin(adapter, now)
        if endpoint.adapters.reserved_for == adapter:
            self._release(adapter)

    def reserve(self, request: Request, pool: PoolRecord, now: Instant) -> None:
        """Drains an adapter on an endpoint with headroom, if only the adapter slots keep the request from it."""
        adapter = request.adapter
        if adapter in self.reserved:
            return
        best: tuple[int, int, int] | None = None
        found: tuple[EndpointRecord, str] | None = None
        turn_ns = Duration(TURN_LOADS * pool.settings.adapter_load_ns)
        for endpoint in pool.endpoints.values():
            slots = endpoint.adapters
            if endpoint.heap_entry is None or slots.draining or not _may_use(request, endpoint):
                continue
            if not slots.is_full_without(adapter) or (oldest := slots.least_recent(turn_ns, now)) is None:
                continue
            rank = (slots.requests(oldest), endpoint.load_ns(), endpoint.slot)
            if best is None or rank < best:
                best, found = rank, (endpoint, oldest)
        if found is not None:
            endpoint, oldest = found
            endpoint.adapters.drain(oldest, reserved_for=adapter)
            self.reserved[adapter] = endpoint

    def release_unused(self, waiting: Mapping[str, int]) -> None:
        """Ends reservations that have had their chance or are no longer needed.

        Called when all queued requests have been offered the slots that are free. `waiting` contains the adapters that
        still have queued requests.
        """
        for adapter, endpoint in list(self.reserved.items()):
            slots = endpoint.adapters
            offered = slots.draining not in slots.in_use and endpoint.heap_entry is not None
            if offered or adapter not in waiting or not endpoint.live:
                self._release(adapter)

    def _release(self, adapter: str) -> None:
        endpoint = self.reserved.pop(adapter)
        endpoint.adapters.drain("", reserved_for="")
        if endpoint.heap_entry is not None:
            self._placement.dispatchable[endpoint.pool] = None


def _may_use(request: Request, endpoint: EndpointRecord) -> bool:
    return (
        endpoint.adapters.holds(request.adapter)
        and endpoint is not request.excluded
        and endpoint not in request.unreachable_endpoints
    )
