"""Processes started by mistake: one with a name that is already in use, or a second cell with the cell's name.

They are killed when the fault ends. The second cell has a copy of the first cell's configuration file, or a file with
its own endpoint, model and tenant. One of its members may have the name of a member of the first cell.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from headgate.hosts.cell.protocol.member_names import (
    NAME_ANSWER_NS_MAX,
    NAME_LEASE_NS,
    NAME_POLL_NS,
    NAME_RENEW_NS,
    RENEWALS_SEEN_MIN,
)
from headgate.model.units import MILLISECOND, SECOND, Duration, RequestId, after
from testing.cell_world.cell_config import CellConfig, copied_config, draw_client_timeout, draw_ticket, foreign_config
from testing.cell_world.faults import DUPLICATES, Fault, Kind
from testing.cell_world.process import Process

if TYPE_CHECKING:
    from testing.cell_world.world import World

_SETTLED_NS = Duration(NAME_ANSWER_NS_MAX + NAME_RENEW_NS + RENEWALS_SEEN_MIN * (NAME_RENEW_NS + NAME_POLL_NS))
"""Time within which one of two processes with the same name leaves, once both can reach the store and the name is free.

A process repeats an unanswered claim after one renewal interval. One process then gets the name, and the other sees at
its next checks that the name has been renewed.
"""
_RESTART_NS = SECOND
"""Time after which a supervisor restarts a process that exited with an error, as configured in `deploy/systemd`."""
_EVERY_NS = Duration(250 * MILLISECOND)
"""Mean interval between requests to each of these gateways."""


class DuplicateProcesses:
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
            site = copied_config(world.site, names) if fault.degree < 2 else foreign_config(names, self._random)
            world.engines |= site.engines
            started += [self._process(name, site, "of the second cell") for name in names]
        self._started[fault] = started
        for process in started:
            process.start()

    def _process(self, name: str, site: CellConfig, what: str) -> Process:
        gateway = name in site.gateways
        return Process(name, self._world, site, gateway=gateway, key=f"{name} ({what})")

    def end(self, fault: Fault) -> None:
        """Kill the processes that this fault started, and restart the process that they prevented from starting."""
        world = self._world
        for process in self._started[fault]:
            self._check_that_one_has_the_name(process)
            process.retire()
            world.processes.pop(process.key, None)
            original = world.processes.get(process.name)
            if original is not None and (original.draining or not original.up):
                original.end_grace()

    def exited(self, process: Process) -> None:
        """Restart a process that exited with an error because another process had its name, as its supervisor would.

        If the other process is still running, `end` restarts this one when the fault ends. The other process may
        already be gone: a paused process, or one with slow messages, sees the renewed entry after its rival was killed.
        """
        mistaken = process.key != process.name or process.site is not self._world.site
        rivals = [each for started in self._started.values() for each in started if each.name == process.name]
        if mistaken or any(not each.retired for each in rivals):
            return
        life = process.lives
        self._world.after(_RESTART_NS, lambda: process.start() if process.lives == life else None)

    def _check_that_one_has_the_name(self, process: Process) -> None:
        """Check that one of two processes with the same name leaves soon after both can reach the store.

        If the store still has an entry from a third process that was killed, neither gets the name before that entry
        expires.
        """
        world = self._world
        live = [each for each in world.processes_named(process.name) if each.up and not each.node.member.lost_name]
        others = [each for each in world.faults if each.at <= world.now and each.kind not in DUPLICATES]
        incarnations = [each.names.incarnation for each in live if each.names is not None]
        expired = after(world.store.names.extended_for_others(process.name, *incarnations), NAME_LEASE_NS)
        since = max([expired, *(each.began_at for each in live), *(each.over for each in others)])
        if len(live) > 1 and world.now - since > _SETTLED_NS:
            world.violated(f"{[each.key for each in live]} all have the name {process.name}")

    def began(self, process: Process) -> None:
        """Start sending requests to a process that has just started."""
        if process.gateway:
            self._arrive(process)

    def _arrive(self, process: Process) -> None:
        if process.retired or not process.up:
            return
        self._requests += 1
        ticket = draw_ticket(RequestId(f"d{self._requests}"), process.site, self._random)
        self._world.tickets[ticket.request_id] = ticket
        process.arrive(ticket, draw_client_timeout(self._random))
        wait = Duration(self._random.randrange(2 * _EVERY_NS))
        self._world.after(wait, lambda: self._arrive(process))
