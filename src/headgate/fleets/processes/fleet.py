"""A pool's engine processes on this machine.

The fleet has one slot (`slot.py`) per desired endpoint, each with its own process. The number of slots, including
draining ones, never exceeds the fleet's maximum, because a draining engine still uses memory. Additional endpoints wait
until a slot is free. When the fleet shrinks, it removes starting engines first, then engines that are not ready, then
those with the fewest requests in flight.
"""

import asyncio
import os
from collections.abc import Callable, Collection
from dataclasses import replace

from headgate.fleets.processes.slot import Slot, SlotContext
from headgate.fleets.processes.spec import PortAllocator, ProcessSpec
from headgate.model.endpoint import EndpointState
from headgate.model.units import EndpointId
from headgate.ports.fleet import EndpointLookup, FleetEndpoint, FleetObserver, Phase, ProbeEngine, WarmUp


class ProcessFleet:
    """Fleet of local processes. Must be created inside an event loop; its owner starts and stops it."""

    def __init__(
        self,
        terms: ProcessSpec,
        *,
        endpoints: int,
        endpoints_min: int,
        endpoints_max: int,
        look: ProbeEngine,
        warm_up: WarmUp,
        lookup: EndpointLookup,
        observer: FleetObserver,
        other_ports: Callable[[], Collection[int]],
    ) -> None:
        """`other_ports` returns the ports assigned by other fleets, which may not be bound yet."""
        self._spec = terms
        self._min, self._max = endpoints_min, endpoints_max
        self._desired = self._clamp(endpoints)
        self._lookup = lookup
        self._other_ports = other_ports
        self._ports = PortAllocator(*terms.options.port_range, start=os.getpid() * 16)
        self._slot_context = SlotContext(
            look, warm_up, lookup, observer, allocate_port=self._allocate_port, changed=self._notify_changed
        )
        self._changed: Callable[[], None] = lambda: None
        self._slots: dict[int, Slot] = {}
        self._slot_tasks: dict[int, asyncio.Task[None]] = {}
        self._stopping = False

    @property
    def desired(self) -> int:
        return self._desired

    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        found = (slot.endpoint() for _, slot in sorted(self._slots.items()))
        return tuple(each for each in found if each is not None)

    def phases(self) -> dict[EndpointId, Phase]:
        """Returns the phase of each starting endpoint."""
        return {slot.id: slot.phase for slot in self._slots.values() if slot.phase is not None}

    def pids(self) -> dict[str, int]:
        """Returns the process ID of each endpoint that has a process."""
        return {slot.id: slot.pid for slot in self._slots.values() if slot.pid is not None}

    def ports(self) -> set[int]:
        """Returns the ports that this fleet has assigned."""
        return {slot.port for slot in self._slots.values()}

    async def start(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._reconcile()

    async def stop(self, *, drain: bool = False) -> None:
        self._stopping = True
        for slot in self._slots.values():
            slot.release(immediately=not drain)
        await asyncio.gather(*self._slot_tasks.values(), return_exceptions=True)

    async def scale(self, endpoints: int) -> None:
        self._desired = self._clamp(endpoints)
        self._reconcile()

    def reconfigure(
        self,
        terms: ProcessSpec,
        *,
        look: ProbeEngine,
        warm_up: WarmUp,
        endpoints: int | None,
        endpoints_min: int,
        endpoints_max: int,
    ) -> None:
        """Applies a new configuration. Running processes continue unchanged, and the new configuration applies to
        processes started later.

        If `endpoints` is None, the endpoint count stays the same, subject to the new limits.
        """
        if terms.options.port_range != self._spec.options.port_range:
            self._ports = PortAllocator(*terms.options.port_range, start=os.getpid() * 16)
        self._spec = terms
        self._min, self._max = endpoints_min, endpoints_max
        self._desired = self._clamp(self._desired if endpoints is None else endpoints)
        self._slot_context = replace(self._slot_context, look=look, warm_up=warm_up)
        for slot in self._slots.values():
            slot.reconfigure(terms, self._slot_context)
        self._notify_changed()
        self._reconcile()

    def _clamp(self, endpoints: int) -> int:
        return min(max(endpoints, self._min), self._max)

    # Slots

    def _reconcile(self) -> None:
        """Adjusts the slot count to the desired endpoint count, as far as the maximum permits."""
        if self._stopping:
            return
        held = [slot for slot in self._slots.values() if slot.desired]
        for slot in sorted(held, key=self._scale_down_key)[: max(0, len(held) - self._desired)]:
            slot.release()
        missing = self._desired - len(held)
        returning = [slot for slot in self._slots.values() if slot.can_resume] if missing > 0 else []
        for slot in returning[:missing]:
            slot.reclaim()
        # After the maximum has been lowered, there may be more slots than allowed, and their indexes may have any
        # value.
        places = min(missing - len(returning), self._max - len(self._slots))
        free = [number for number in range(self._max) if number not in self._slots]
        for number in free[: max(0, places)]:
            self._open_slot(number)

    def _scale_down_key(self, slot: Slot) -> tuple[bool, bool, int, int]:
        """Returns the sort key for removal. The slot with the smallest key is removed first."""
        known = self._lookup(slot.id)
        trusted = known is not None and known.state is EndpointState.READY
        return slot.is_serving, trusted, 0 if known is None else known.in_flight, -slot.number

    def _open_slot(self, number: int) -> None:
        self._slots[number] = slot = self._new_slot(number)
        self._slot_tasks[number] = life = asyncio.create_task(slot.run(), name=f"endpoint {slot.id}")
        life.add_done_callback(lambda ended: self._slot_ended(number, ended))

    def _new_slot(self, number: int) -> Slot:
        return Slot(number, self._spec, self._slot_context)

    def _slot_ended(self, number: int, life: asyncio.Task[None]) -> None:
        del self._slots[number], self._slot_tasks[number]
        self._notify_changed()
        if not life.cancelled() and (mistake := life.exception()) is not None:
            message = f"the task {life.get_name()!r} failed with an internal error"
            life.get_loop().call_exception_handler({"message": message, "exception": mistake, "task": life})
            return
        self._reconcile()

    def _allocate_port(self) -> int:
        return self._ports.allocate({*self.ports(), *self._other_ports()})

    def _notify_changed(self) -> None:
        self._changed()
