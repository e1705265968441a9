"""Processes that are started by mistake: one under a name that is in use, or a second cell under the cell's name.

They are killed when the fault is over. The second cell has a copy of the first cell's configuration file, or a file
with its own endpoint, model and tenant; one of its members may have the name of a member of the first cell.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from headgate.hosts.cell.protocol.names import (
    NAME_ANSWER_NS_MAX,
    NAME_LEASE_NS,
    NAME_LOOK_NS,
    NAME_RENEW_NS,
    RENEWALS_SEEN_MIN,
)
from headgate.model.units import MILLISECOND, SECOND, Duration, RequestId, after
from testing.cell_world.faults import DOUBLES, Fault, Kind
from testing.cell_world.process import Process
from testing.cell_world.site import Site, copy_of, drawn_patience, drawn_ticket, foreign

if TYPE_CHECKING:
    from testing.cell_world.world import World

_SETTLED_NS = Duration(NAME_ANSWER_NS_MAX + NAME_RENEW_NS + RENEWALS_SEEN_MIN * (NAME_RENEW_NS + NAME_LOOK_NS))
"""Time after which one of two processes with the same name has left, once both reach the store and the name is free.

A claim that the store did not answer is repeated after an interval of renewal. One process then gets the name, and the
other one sees it renewed at its next looks.
"""
_RESTART_NS = SECOND
"""Time after which a supervisor restarts a process that exited with an error, as in the unit of `deploy/systemd`."""
_EVERY_NS = Duration(250 * MILLISECOND)
"""Mean time between two requests at each of these gateways."""


class Doubles:
    def __init__(self, world: World) -> None:
        self._world = world
        self._random = Random(f"{world.seed} doubles")
        self._started: dict[Fault, list[Process]] = {}
        self._requests = 0

    def start(self, fault: Fault) -> None:
        world = self._world
        started: list[Process] = []
        if fault.kind is Kind.TWIN:
            started.append(self._process(fault.target, world.site, "twin"))
        else:
            names = ["h0", world.site.gateways[0] if fault.degree % 2 else "h1"]
            site = copy_of(world.site, names) if fault.degree < 2 else foreign(names, self._random)
            world.engines |= site.engines
            started += [self._process(name, site, "of the second cell") for name in names]
        self._started[fault] = started
        for process in started:
            process.start()

    def _process(self, name: str, site: Site, what: str) -> Process:
        gateway = name in site.gateways
        return Process(name, self._world, site, gateway=gateway, key=f"{name} ({what})")

    def end(self, fault: Fault) -> None:
        """Kill all of them and restart the process that could not start because of them."""
        world = self._world
        for process in self._started[fault]:
            self._check_that_one_has_the_name(process)
            process.retire()
            world.processes.pop(process.key, None)
            original = world.processes.get(process.name)
            if original is not None and (original.draining or not original.up):
                original.end_grace()

    def exited(self, process: Process) -> None:
        """A process has exited with an error because another process had its name: its supervisor restarts it.

        If the other process still runs, `end` restarts this one when the fault is over. The other process may also be
        gone already: a paused process, or one with slow messages, sees the renewed entry after its rival was killed.
        """
        mistaken = process.key != process.name or process.site is not self._world.site
        rivals = [each for started in self._started.values() for each in started if each.name == process.name]
        if mistaken or any(not each.retired for each in rivals):
            return
        life = process.lives
        self._world.after(_RESTART_NS, lambda: process.start() if process.lives == life else None)

    def _check_that_one_has_the_name(self, process: Process) -> None:
        """Check that one of two processes with the same name leaves soon after both reach the store.

        If the store has the entry of a third process, which was killed, neither gets the name before it expires.
        """
        world = self._world
        live = [each for each in world.named(process.name) if each.up and not each.node.member.nameless]
        others = [each for each in world.faults if each.at <= world.now and each.kind not in DOUBLES]
        incarnations = [each.names.incarnation for each in live if each.names is not None]
        expired = after(world.store.names.extended_for_others(process.name, *incarnations), NAME_LEASE_NS)
        since = max([expired, *(each.began_at for each in live), *(each.over for each in others)])
        if len(live) > 1 and world.now - since > _SETTLED_NS:
            world.violated(f"{[each.key for each in live]} are all called {process.name}")

    def began(self, process: Process) -> None:
        """Send requests to a process that has started."""
        if process.gateway:
            self._arrive(process)

    def _arrive(self, process: Process) -> None:
        if process.retired or not process.up:
            return
        self._requests += 1
        ticket = drawn_ticket(RequestId(f"d{self._requests}"), process.site, self._random)
        self._world.tickets[ticket.request_id] = ticket
        process.arrive(ticket, drawn_patience(self._random))
        wait = Duration(self._random.randrange(2 * _EVERY_NS))
        self._world.after(wait, lambda: self._arrive(process))
