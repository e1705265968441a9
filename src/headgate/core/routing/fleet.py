"""Which endpoints are there, and in what state?

The fleet is every endpoint that has been heard of: its coming and going is told here. Where it stands among the others
is kept by `placement`, whether it is fit to serve by `fleet_health`, and what is in flight there by `occupancy`.
"""

from collections.abc import Iterable
from typing import Final, assert_never

from headgate.core.commands import Readmit
from headgate.core.counters import EndpointCounter, LearnedSpeed
from headgate.core.events import (
    EndpointJoined,
    EndpointLeaving,
    EndpointMeasured,
    EndpointProbed,
    EndpointReadied,
    EndpointUnreadied,
    FleetEvent,
)
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.fleet_health import FleetHealth
from headgate.core.routing.occupancy import Occupancy
from headgate.core.routing.placement import Placement
from headgate.core.routing.pools import PoolRecord
from headgate.core.routing.turnover import MILLE
from headgate.core.rules import Rules
from headgate.model.endpoint import Endpoint, EndpointState
from headgate.model.money import EndpointTime
from headgate.model.speed import EngineSpeed
from headgate.model.units import Duration, EndpointId, Instant, PoolName

_NO_SUMS: Final = (0, 0, 0, 0, 0)


class Fleet:
    __slots__ = (
        "_counted_by",
        "_drained",
        "_placement",
        "_recalled",
        "_rules",
        "changed",
        "endpoints",
        "health",
        "lost",
        "occupancy",
        "pools",
    )

    def __init__(self, rules: Rules, *, counted_by: int = 1) -> None:
        self._rules = rules
        self._counted_by = counted_by
        """How many schedulers share its endpoints: so small is the part of their time that is counted here."""
        self._drained: tuple[EndpointId, ...] = ()
        self._recalled: dict[EndpointId, EndpointCounter] = {}
        """What an earlier scheduler knew of endpoints that have not joined yet."""
        self._placement = placement = Placement()
        self.endpoints, self.pools = placement.endpoints, placement.pools
        self.changed, self.lost = placement.changed, placement.lost
        self.health = FleetHealth(rules, placement)
        self.occupancy = Occupancy(placement, self.health)

    def live(self, pools: tuple[PoolName, ...]) -> int:
        """How many endpoints of these pools take work."""
        count = 0
        for name in pools:
            if (pool := self.pools.get(name)) is not None:
                count += pool.live
        return count

    def pace(self, pools: tuple[PoolName, ...], *, long: bool) -> int:
        """The engine time that these pools serve for `long` or other prompts, in thousandths of the elapsed time.

        The result is at least the time of one endpoint: if none accepts work, nothing is known.
        """
        pace = 0
        for name in pools:
            if (pool := self.pools.get(name)) is not None:
                pace += pool.pace(long=long)
        return pace or MILLE

    def speed(self, pool: PoolName) -> EngineSpeed:
        """The speed by which requests to a pool are estimated."""
        known = self.pools.get(pool)
        return self._rules.speed(pool) if known is None else known.speed.estimate

    def learning(self, pools: tuple[PoolName, ...]) -> bool:
        """Whether the speed of any of these pools is still a guess, by which nothing may be rejected."""
        return any(known.learning for name in pools if (known := self.pools.get(name)) is not None)

    def grain_ns(self, pools: tuple[PoolName, ...]) -> Duration:
        """The engine time of a mean request, if places are the bottleneck in all of these pools."""
        return min((pool.grain_ns for name in pools if (pool := self.pools.get(name)) is not None), default=Duration(0))

    def has_places(self, pools: tuple[PoolName, ...]) -> bool:
        """Whether any endpoint of these pools has headroom."""
        return any(pool.places for name in pools if (pool := self.pools.get(name)) is not None)

    def free_in_ns(self, pools: tuple[PoolName, ...], ahead_ns: Duration, now: Instant) -> Duration:
        """The minimum time until a place is free after this much engine time, shared evenly by the pools.

        0 if unknown.
        """
        known = [pool for name in pools if (pool := self.pools.get(name)) is not None]
        share_ns = Duration(ahead_ns // max(1, len(known)))
        return min((pool.free_in_ns(share_ns, now) for pool in known), default=Duration(0))

    def warming(self, pools: tuple[PoolName, ...]) -> bool:
        """Whether an endpoint of these pools is starting."""
        return any(pool.warming for name in pools if (pool := self.pools.get(name)) is not None)

    def roomiest(self) -> PoolName | None:
        """Of the changed pools the one with the least loaded endpoint. Those without room are struck off."""
        best: PoolName | None = None
        least_ns = 0
        for name in tuple(self.changed):
            pool = self.pools.get(name)
            if pool is None or not pool.places:
                del self.changed[name]
            elif len(self.changed) == 1:
                return name
            else:
                endpoint = pool.least_loaded()
                assert endpoint is not None, f"pool {name} counts an endpoint with headroom that is nowhere"
                if best is None or endpoint.load_ns < least_ns:
                    best, least_ns = name, endpoint.load_ns
        return best

    def waited_for(self, pools: tuple[PoolName, ...]) -> None:
        """Who waits for these pools has changed. Where no endpoint has headroom, that will be seen when one has."""
        for name in pools:
            if (pool := self.pools.get(name)) is not None and pool.places:
                self.changed[name] = None

    # Coming and going

    def told(self, event: FleetEvent, now: Instant) -> Readmit | None:
        match event:
            case EndpointJoined(endpoint):
                self.join(endpoint, now)
            case EndpointReadied(endpoint_id):
                return self.ready(endpoint_id, now)
            case EndpointUnreadied(endpoint_id):
                self.unready(endpoint_id, now)
            case EndpointMeasured():
                self.measured(event, now)
            case EndpointProbed():
                self.probed(event, now)
            case EndpointLeaving(endpoint_id):
                self.leave(endpoint_id, now)
            case _:
                assert_never(event)
        return None

    def join(self, endpoint: Endpoint, now: Instant) -> None:
        record = self.endpoints.get(endpoint.id)
        if record is None:
            if (pool := self.pools.get(endpoint.pool)) is None:
                pool = self.pools[endpoint.pool] = PoolRecord(self._rules.terms(endpoint.pool))
            record = self.endpoints[endpoint.id] = EndpointRecord(
                endpoint, pool.terms, now, counted_by=self._counted_by
            )
            record.drained = endpoint.id in self._drained
            pool.add(record)
            self._recall(record)
        assert record.pool == endpoint.pool, f"endpoint {endpoint.id} changed its pool; it needs a name of its own"
        record.in_flight_max, record.zone = endpoint.in_flight_max, endpoint.zone
        record.leaving = False
        record.bound()
        self._placement.move_to_device(record, endpoint.device)
        self._placement.place(record)

    def ready(self, endpoint_id: EndpointId, now: Instant) -> Readmit | None:
        record = self.endpoints.get(endpoint_id)
        if record is None or record.state is not EndpointState.WARMING:
            return None
        return self.health.readied(record, now)

    def unready(self, endpoint_id: EndpointId, now: Instant) -> None:
        if (record := self.endpoints.get(endpoint_id)) is not None:
            self.health.unreadied(record, now)

    def measured(self, said: EndpointMeasured, now: Instant) -> None:
        if (record := self.endpoints.get(said.endpoint_id)) is not None:
            self.health.measured(record, said, now)

    def probed(self, result: EndpointProbed, now: Instant) -> None:
        if (record := self.endpoints.get(result.endpoint_id)) is not None:
            self.health.probed(record, result, now)

    def drain(self, endpoint_ids: tuple[EndpointId, ...]) -> None:
        """Operators have ordered that nothing new goes to these, and to no others."""
        if endpoint_ids == self._drained:
            return
        self._drained = endpoint_ids
        for endpoint in self.endpoints.values():
            drained = endpoint.id in endpoint_ids
            if drained is not endpoint.drained:
                endpoint.drained = drained
                self._placement.place(endpoint)

    def leave(self, endpoint_id: EndpointId, now: Instant) -> None:
        record = self.endpoints.get(endpoint_id)
        if record is not None:
            record.time.advance(now)
            record.leaving = True
            self._placement.forget_prefixes(record)
            self._placement.place(record)
            self.occupancy.forget_if_gone(record)

    def take_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """How each endpoint has spent its time since this was last asked."""
        return self._placement.left.take((each.time for each in self.endpoints.values()), now)

    # From one scheduler to the next

    def counters(self) -> tuple[EndpointCounter, ...]:
        """What is known of each endpoint, be it there or only known from before."""
        known = tuple(
            EndpointCounter(each.id, *each.learned.counters(), each.ejections) for each in self.endpoints.values()
        )
        return known + tuple(self._recalled.values())

    def restore(self, counters: Iterable[EndpointCounter]) -> None:
        """To be applied to each of them when it joins."""
        self._recalled = {each.endpoint_id: each for each in counters}

    def learned_speeds(self) -> tuple[LearnedSpeed, ...]:
        """The speed of each endpoint that has joined."""
        return tuple(
            LearnedSpeed(each.id, each.pool, each.learned.settled, *each.learned.counters())
            for each in self.endpoints.values()
        )

    def recall_speeds(self, speeds: Iterable[LearnedSpeed]) -> None:
        """To be applied to each endpoint when it joins. A speed that had not settled has yet to be learned."""
        self.restore(
            EndpointCounter(each.endpoint_id, each.factors, each.sums if each.settled else _NO_SUMS, 0)
            for each in speeds
        )

    def _recall(self, endpoint: EndpointRecord) -> None:
        if (known := self._recalled.pop(endpoint.id, None)) is not None:
            endpoint.recall(known.factors, known.sums)
            self.pools[endpoint.pool].speed.learned(endpoint.learned)
            # Whoever was ejected is on trial once it says that it is ready.
            endpoint.ejections = known.ejections

    def adopt(self, endpoint_id: EndpointId, pool: PoolName, now: Instant) -> EndpointRecord:
        """The endpoint where something is in flight; one that nobody knows is taken to be leaving, until it joins."""
        record = self.endpoints.get(endpoint_id)
        if record is None:
            self.join(Endpoint(endpoint_id, pool, in_flight_max=0), now)
            record = self.endpoints[endpoint_id]
            record.leaving = True
        return record

    def change_rules(self, rules: Rules, now: Instant) -> None:
        self._rules = rules
        for name, pool in self.pools.items():
            pool.take_terms(rules.terms(name))
        for endpoint in self.endpoints.values():
            endpoint.take_terms(self.pools[endpoint.pool].terms)
            endpoint.time.change_speed(endpoint.terms.speed, now)
            self._placement.place(endpoint)
        self.health.change_rules(rules)
