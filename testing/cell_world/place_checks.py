"""Checks that deciders stay within their own slots on an endpoint, and together within the documented formula."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.core.commands import Dispatch
from headgate.hosts.cell.leader.leader import Leader
from headgate.hosts.cell.protocol.shares import places_of
from headgate.hosts.cell.protocol.views import MemberPresence
from headgate.model.units import SECOND, EndpointId
from testing.cell_world.engines import Engine, Running
from testing.cell_world.faults import Kind
from testing.cell_world.process import Process

if TYPE_CHECKING:
    from testing.cell_world.world import World


class PlaceChecks:
    def __init__(self, world: World) -> None:
        self._world = world

    def check_grant(self, process: Process, order: Dispatch, running: Running) -> None:
        made = self._world.grants.get((running.decider, order.request_id, order.attempt))
        if made is None:
            return
        late = self._world.now - made - self._world.timing.max_elapsed(self._world.timing.start_within_ns)
        if late > 0:
            self._world.violated(f"{order.request_id} was started {late} ns after its grant expired")
        leading, leader = self._world.leaders[running.decider]
        key = (process.name, order.request_id, order.attempt, order.endpoint_id)
        # If two processes share a name, the scheduler forgets one when it receives a message from the other.
        known = process.name not in self._world.doubled
        if known and leading.node.leader is leader and key not in leader.assigned_attempts():
            self._world.violated(f"{key} was started but is not in the assignment table of {running.decider}")

    def check_decider(self, engine: Engine, running: Running) -> None:
        """Check that a decider does not exceed its own slots and KV tokens on an endpoint."""
        own = [each for each in engine.running.values() if each.decider == running.decider]
        places, kv_tokens = engine.endpoint.in_flight_max, engine.kv_tokens
        if running.decider.startswith("island"):
            # Earlier attempts count too. They may exceed the share, but an island starts no attempts beyond it.
            own = [each for each in engine.running.values() if each.life == running.life]
            share = self._world.island_shares[running.decider]
            places, kv_tokens = places_of(share, engine.endpoint.id, places), kv_tokens // share.total
        else:
            own = [each for each in own if not self._presumed_dead(each) and each.member not in self._world.liars]
        if len(own) > places:
            self._world.violated(
                f"{running.decider} has {len(own)} attempts at {engine.endpoint.id}; its limit is {places}"
            )
        held = sum(each.kv_tokens for each in own)
        if held > kv_tokens and len(own) > 1:
            self._world.violated(
                f"{running.decider} holds {held} KV tokens at {engine.endpoint.id}; its limit is {kv_tokens}"
            )

    def check_assignments(self, leader: Leader, endpoint_id: EndpointId) -> None:
        """Check that a scheduler grants only slots that are free among the members it knows.

        Running attempts, grants that may still be used, and islands' shares all occupy slots.
        """
        engine, standings = self._world.engines[endpoint_id], leader.presences()
        places = engine.endpoint.in_flight_max
        taken = 0
        for process in self._world.processes.values():
            name = process.name
            if not process.up or process.node.member.followed_epoch != leader.epoch or name not in standings:
                continue
            booked = {each[1:3] for each in leader.assigned_attempts() if each[0] == name and each[3] == endpoint_id}
            if name in self._world.doubled:
                # The scheduler cannot distinguish the two processes. Its own assignments are counted once.
                taken += len(booked) if self._world.processes_named(name)[0] is process else 0
                continue
            there = {(each.request_id, each.attempt) for each in engine.running.values() if each.life == process.life}
            if name in self._world.liars:
                there = set()
            member = process.node.member
            share = places_of(member.island_share or member.share, endpoint_id, places) if process.gateway else 0
            if self._world.has_second_cell and leader.members()[name].incarnation != member.incarnation:
                # A restarted process uses the share from its file, which does not account for the second cell. The
                # scheduler keeps the previous process's share.
                taken += len(booked)
            elif standings[name] is MemberPresence.ABSENT and not leader.has_reported(name):
                # The member's attempts are unknown, so its share is reserved.
                taken += max(len(booked), share)
            elif standings[name] is MemberPresence.ABSENT or member.island_share is not None:
                # Grants that have not reached the member never will. The member uses its share instead.
                taken += max(len(there), len(booked), share)
            else:
                taken += len(there | booked)
        if taken + 1 > places:
            self._world.violated(
                f"epoch {leader.epoch.number} grants a slot at {endpoint_id}, but {taken} of {places} are taken"
            )

    def _presumed_dead(self, running: Running) -> bool:
        """Whether the scheduler may treat the attempt as gone: its gateway died or has been silent for long enough."""
        process = self._world.processes.get(running.life[0])
        if process is None or running.orphaned or process.life != running.life or not process.up:
            return True
        _, leader = self._world.leaders[running.decider]
        lost_ns = self._world.timing.lost_after_ns - SECOND
        silent = any(each.over > running.since and each.lasts_ns >= lost_ns for each in process.troubles)
        key = (running.member, running.request_id, running.attempt)
        return silent and key not in {each[:3]: None for each in leader.assigned_attempts()}

    def check_sum(self, engine: Engine) -> None:
        """Check all deciders' attempts together against the documented formula."""
        places, there = engine.endpoint.in_flight_max, len(engine.running)
        allowed = places
        others = {each.decider: None for each in engine.running.values()}
        newest = max((each for each in others if each.startswith("epoch")), key=_number, default=None)
        for decider in others:
            if decider.startswith("island"):
                allowed += places_of(self._world.island_shares[decider], engine.endpoint.id, places)
            elif decider != newest:
                allowed += places
        epochs = [each for each in engine.running.values() if each.decider.startswith("epoch")]
        allowed += len([each for each in epochs if self._presumed_dead(each) or each.member in self._world.liars])
        if len(self._world.faults) == 1:
            orphans = len([each for each in engine.running.values() if each.orphaned])
            most = (
                places if self._world.faults[0].kind is Kind.CRASH else 2 * places - places // len(self._world.gateways)
            )
            # A long fault, such as message loss, can split the cell several times. Each split may add another full set
            # of slots.
            most += places * max(0, self._world.findings.epochs - 2)
            allowed = min(allowed, most + orphans)
        if there > allowed:
            self._world.violated(f"{there} attempts at {engine.endpoint.id}; the limit is {allowed}")
        self._world.findings.worst_percent = max(self._world.findings.worst_percent, 100 * there // places)
        self._world.findings.worst_kv_percent = max(
            self._world.findings.worst_kv_percent, 100 * engine.kv_held // engine.kv_tokens
        )


def _number(decider: str) -> int:
    return int(decider.split()[1])
