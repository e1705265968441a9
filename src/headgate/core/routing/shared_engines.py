"""Engines that several pools share.

The address of an engine may belong to several pools, for example if the engine serves several models. Each pool has its
own endpoint for the address, with its own prompts in flight. These endpoints share what belongs to the engine: its
slots, its adapter slots, its KV cache, its pending prompts, the limits and the foreign load that its metrics reveal,
and its time.

Pools that share an engine, directly or through other pools, form a group. A group has one order of priority bands and
one fair queue per band, because its requests compete for the same capacity.
"""

from collections.abc import Iterable
from typing import Final

from headgate.core.engine_time import EngineTime
from headgate.core.routing.adapter_slots import AdapterSlots
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.sequence_limit import SequenceLimit
from headgate.model.units import EndpointId, Instant, PoolName

PoolGroups = dict[PoolName, tuple[PoolName, ...]]
"""Pools of the group of each pool that shares an engine, in alphabetical order. The first one identifies the group."""

_DEVICE: Final = "engine "
"""Prefix of the device of a shared engine. No configured device name contains a space."""


def engine_device(engine: str) -> str:
    """Returns the device of an engine, or an empty name if the engine is not shared."""
    return f"{_DEVICE}{engine}" if engine else ""


class SharedEngines:
    __slots__ = ("_members", "changed", "groups")

    def __init__(self) -> None:
        self._members: dict[str, dict[EndpointId, EndpointRecord]] = {}
        """Endpoints of each engine, in the order in which they joined."""
        self.groups: PoolGroups = {}
        self.changed = False
        """Whether endpoints have joined or left an engine since the groups were computed."""

    def join(self, endpoint: EndpointRecord, engine: str, now: Instant) -> EngineTime | None:
        """Adds an endpoint to an engine. Returns the clock that the endpoint no longer uses, if any."""
        members = self._members.setdefault(engine, {})
        first = next(iter(members.values()), None)
        members[endpoint.id] = endpoint
        endpoint.engine = engine
        self._changed(members)
        if first is None:
            endpoint.engine_time.share()
            return None
        endpoint.sequence_limit = first.sequence_limit
        endpoint.adapters.move_to(first.adapters.slots)
        unused, endpoint.engine_time = endpoint.engine_time, first.engine_time
        if endpoint.serving:
            endpoint.engine_time.mark_ready(now)
        return unused

    def leave(self, endpoint: EndpointRecord) -> None:
        """Removes an endpoint from its engine. If others remain, it gets a clock and limits of its own."""
        members = self._members[endpoint.engine]
        del members[endpoint.id]
        if not members:
            del self._members[endpoint.engine]
        endpoint.engine, endpoint.company = "", ()
        self._changed(members)
        if members:
            first = next(iter(members.values()))
            shared = endpoint.engine_time
            endpoint.engine_time = shared.split_off(endpoint.id, endpoint.pool, ready=endpoint.serving)
            endpoint.sequence_limit = SequenceLimit()
            endpoint.adapters.move_to(AdapterSlots())
            shared.endpoint_id, shared.pool = first.id, first.pool

    def counts_time(self, endpoint: EndpointRecord) -> bool:
        """Returns whether the time of the endpoint's engine is reported under this endpoint."""
        return not endpoint.company or endpoint.engine_time.endpoint_id == endpoint.id

    def _changed(self, members: dict[EndpointId, EndpointRecord]) -> None:
        self.changed = True
        for each in members.values():
            each.company = tuple(other for other in members.values() if other is not each)

    def regroup(self) -> bool:
        """Computes the groups of pools again. Returns whether they have changed."""
        self.changed = False
        before, self.groups = self.groups, _groups({each.pool for each in of.values()} for of in self._members.values())
        return self.groups != before


def _groups(engines: Iterable[set[PoolName]]) -> PoolGroups:
    found: list[set[PoolName]] = []
    for pools in engines:
        apart = [each for each in found if not each & pools]
        found = [*apart, pools.union(*(each for each in found if each & pools))]
    return {name: tuple(sorted(pools)) for pools in found if len(pools) > 1 for name in pools}
