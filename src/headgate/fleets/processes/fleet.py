"""Which engine processes run on this machine for one pool, and how many?

The fleet wants a number of endpoints and holds as many slots (processes_slot.py), each with a process of its own. There
are never more slots than the fleet's maximum, those that drain included, because their memory is still taken: whoever
is wanted beyond waits for one of them. What is given up first is what costs least: an engine that is still starting,
then one that the scheduler does not trust, then the one with the least in flight.
"""

import asyncio
import os
from collections.abc import Callable, Collection
from dataclasses import replace

from headgate.fleets.processes.slot import Slot, Ways
from headgate.fleets.processes.terms import Ports, ProcessTerms
from headgate.model.endpoint import EndpointState
from headgate.model.units import EndpointId
from headgate.ports.fleet import FleetEndpoint, FleetObserver, Look, Lookup, Phase, WarmUp


class ProcessFleet:
    """Made inside a running loop; its owner starts and stops it."""

    def __init__(
        self,
        terms: ProcessTerms,
        *,
        endpoints: int,
        endpoints_min: int,
        endpoints_max: int,
        look: Look,
        warm_up: WarmUp,
        lookup: Lookup,
        observer: FleetObserver,
        ports_elsewhere: Callable[[], Collection[int]],
    ) -> None:
        """`ports_elsewhere` are those that other fleets of ours gave out, of which the system may not know yet."""
        self._terms = terms
        self._min, self._max = endpoints_min, endpoints_max
        self._wanted = self._within(endpoints)
        self._lookup = lookup
        self._ports_elsewhere = ports_elsewhere
        self._ports = Ports(*terms.options.ports, start=os.getpid() * 16)
        self._ways = Ways(look, warm_up, lookup, observer, take_port=self._take_port, changed=self._tell_changed)
        self._changed: Callable[[], None] = lambda: None
        self._slots: dict[int, Slot] = {}
        self._lives: dict[int, asyncio.Task[None]] = {}
        self._stopping = False

    @property
    def wanted(self) -> int:
        return self._wanted

    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        found = (slot.endpoint() for _, slot in sorted(self._slots.items()))
        return tuple(each for each in found if each is not None)

    def phases(self) -> dict[EndpointId, Phase]:
        """The phase of each endpoint that is starting."""
        return {slot.id: slot.phase for slot in self._slots.values() if slot.phase is not None}

    def pids(self) -> dict[str, int]:
        """The process of each endpoint that has one."""
        return {slot.id: slot.pid for slot in self._slots.values() if slot.pid is not None}

    def ports(self) -> set[int]:
        """Those that it has given out."""
        return {slot.port for slot in self._slots.values()}

    async def start(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self._settle()

    async def stop(self, *, drain: bool = False) -> None:
        self._stopping = True
        for slot in self._slots.values():
            slot.give_up(hurry=not drain)
        await asyncio.gather(*self._lives.values(), return_exceptions=True)

    async def scale(self, endpoints: int) -> None:
        self._wanted = self._within(endpoints)
        self._settle()

    def change(
        self,
        terms: ProcessTerms,
        *,
        look: Look,
        warm_up: WarmUp,
        endpoints: int | None,
        endpoints_min: int,
        endpoints_max: int,
    ) -> None:
        """Another configuration. Processes that run go on as they were started; the next are started by it.

        None wants as many endpoints as before, as far as the bounds allow.
        """
        if terms.options.ports != self._terms.options.ports:
            self._ports = Ports(*terms.options.ports, start=os.getpid() * 16)
        self._terms = terms
        self._min, self._max = endpoints_min, endpoints_max
        self._wanted = self._within(self._wanted if endpoints is None else endpoints)
        self._ways = replace(self._ways, look=look, warm_up=warm_up)
        for slot in self._slots.values():
            slot.change(terms, self._ways)
        self._tell_changed()
        self._settle()

    def _within(self, endpoints: int) -> int:
        return min(max(endpoints, self._min), self._max)

    # Slots

    def _settle(self) -> None:
        """Has as many slots wanted as the fleet wants, as far as there are places."""
        if self._stopping:
            return
        held = [slot for slot in self._slots.values() if slot.wanted]
        for slot in sorted(held, key=self._worth)[: max(0, len(held) - self._wanted)]:
            slot.give_up()
        missing = self._wanted - len(held)
        returning = [slot for slot in self._slots.values() if slot.returns] if missing > 0 else []
        for slot in returning[:missing]:
            slot.take_back()
        # After the maximum was lowered there may be more slots than places for a while, with any numbers.
        places = min(missing - len(returning), self._max - len(self._slots))
        free = [number for number in range(self._max) if number not in self._slots]
        for number in free[: max(0, places)]:
            self._open(number)

    def _worth(self, slot: Slot) -> tuple[bool, bool, int, int]:
        """The least is given up first."""
        known = self._lookup(slot.id)
        trusted = known is not None and known.state is EndpointState.READY
        return slot.serves, trusted, 0 if known is None else known.in_flight, -slot.number

    def _open(self, number: int) -> None:
        self._slots[number] = slot = self._new_slot(number)
        self._lives[number] = life = asyncio.create_task(slot.live(), name=f"endpoint {slot.id}")
        life.add_done_callback(lambda ended: self._ended(number, ended))

    def _new_slot(self, number: int) -> Slot:
        return Slot(number, self._terms, self._ways)

    def _ended(self, number: int, life: asyncio.Task[None]) -> None:
        del self._slots[number], self._lives[number]
        self._tell_changed()
        if not life.cancelled() and (mistake := life.exception()) is not None:
            message = f"the task {life.get_name()!r} ended by a mistake of ours"
            life.get_loop().call_exception_handler({"message": message, "exception": mistake, "task": life})
            return
        self._settle()

    def _take_port(self) -> int:
        return self._ports.take({*self.ports(), *self._ports_elsewhere()})

    def _tell_changed(self) -> None:
        self._changed()
