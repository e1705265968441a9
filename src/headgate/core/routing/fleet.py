"""The fleet: all known endpoints and their pools.

Endpoints join and leave here. `placement` indexes them by device, pool and headroom, `fleet_health` decides whether
they may serve, and `occupancy` tracks the attempts in flight.
"""

from collections.abc import Iterable
from typing import Final, assert_never

from headgate.core.commands import Readmit
from headgate.core.counters import EndpointCounter, LearnedSpeed
from headgate.core.events import (
    EndpointJoined,
    EndpointLeaving,
    EndpointMetricsReported,
    EndpointNotReady,
    EndpointProbed,
    EndpointReady,
    FleetEvent,
)
from headgate.core.routing.adapter_turns import AdapterTurns
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.fleet_health import FleetHealth
from headgate.core.routing.occupancy import Occupancy
from headgate.core.routing.operator_drains import OperatorDrains
from headgate.core.routing.placement import Placement
from headgate.core.routing.pools import PoolRecord
from headgate.core.routing.provider_quotas import ProviderQuotas
from headgate.core.routing.turnover import MILLE
from headgate.core.rules import Rules
from headgate.core.timers import NEVER
from headgate.model.endpoint import Endpoint, EndpointState
from headgate.model.money import EndpointTime
from headgate.model.speed import EngineSpeed
from headgate.model.units import Duration, EndpointId, Instant, PoolName

_NO_SUMS: Final = (0, 0, 0, 0, 0)


class FleetState:
    __slots__ = (
        "_placement",
        "_restored",
        "_rules",
        "_scheduler_count",
        "adapter_turns",
        "dispatchable",
        "drains",
        "endpoints",
        "engines",
        "health",
        "occupancy",
        "pools",
        "pools_with_losses",
        "quotas",
    )

    def __init__(self, rules: Rules, *, scheduler_count: int = 1) -> None:
        self._rules = rules
        self._scheduler_count = scheduler_count
        """Number of schedulers that share the endpoints. Each counts this fraction of the endpoints' time."""
        self._restored: dict[EndpointId, EndpointCounter] = {}
        """Restored state of endpoints that have not joined yet."""
        self._placement = placement = Placement()
        self.endpoints, self.pools = placement.endpoints, placement.pools
        self.dispatchable, self.pools_with_losses = placement.dispatchable, placement.pools_with_losses
        self.engines = placement.engines
        self.health = FleetHealth(rules, placement)
        self.occupancy = Occupancy(placement, self.health)
        self.adapter_turns = AdapterTurns(placement)
        self.drains = OperatorDrains(placement)
        self.quotas = ProviderQuotas(placement, self.health.timer_heap)

    def live_count(self, pools: tuple[PoolName, ...]) -> int:
        """Returns the number of live endpoints in these pools."""
        count = 0
        for name in pools:
            if (pool := self.pools.get(name)) is not None:
                count += pool.live_count
        return count

    def service_rate(self, pools: tuple[PoolName, ...], *, long: bool) -> int:
        """Returns the engine time that these pools provide per unit of elapsed time, in thousandths, for `long` or
        other prompts.

        If no endpoint is live, the result assumes one endpoint, because no better estimate is available.
        """
        if self.engines.groups:
            return self._shared_service_rate(pools, long=long)
        pace = 0
        for name in pools:
            if (pool := self.pools.get(name)) is not None:
                pace += pool.service_rate(long=long)
        return pace or MILLE

    def _shared_service_rate(self, pools: tuple[PoolName, ...], *, long: bool) -> int:
        """Like `service_rate`, for pools whose groups serve the queue together. Each engine counts once."""
        groups, pace = self.engines.groups, 0
        for name in dict.fromkeys(each for first in pools for each in groups.get(first, (first,))):
            if (pool := self.pools.get(name)) is not None and pool.live_count:
                parts = sum(MILLE // (1 + _live(each.company)) for each in pool.endpoints.values() if each.live)
                pace += pool.service_rate(long=long) * parts // (MILLE * pool.live_count)
        return pace or MILLE

    def speed(self, pool: PoolName) -> EngineSpeed:
        """Returns the engine speed used for cost estimates in a pool."""
        known = self.pools.get(pool)
        return self._rules.speed(pool) if known is None else known.speed.estimate

    def is_learning(self, pools: tuple[PoolName, ...]) -> bool:
        """Whether the speed of any of these pools is still a guess, which must not cause rejections."""
        for name in pools:
            known = self.pools.get(name)
            if known is not None and known.speed.is_learning(len(known.endpoints)):
                return True
        return False

    def mean_request_ns(self, pools: tuple[PoolName, ...]) -> Duration:
        """Returns the mean engine time of a request if slots are the bottleneck in all of these pools, otherwise 0."""
        return min(
            (pool.mean_request_ns for name in pools if (pool := self.pools.get(name)) is not None), default=Duration(0)
        )

    def has_places(self, pools: tuple[PoolName, ...]) -> bool:
        """Whether any endpoint of these pools has headroom."""
        for name in pools:
            pool = self.pools.get(name)
            if pool is not None and pool.headroom_count:
                return True
        return False

    def free_in_ns(self, pools: tuple[PoolName, ...], ahead_ns: Duration, now: Instant) -> Duration:
        """Returns the minimum time until a slot is free for a request with `ahead_ns` of engine time ahead of it.

        The work ahead is assumed to be spread evenly over the pools. The result is 0 if unknown.
        """
        known = [pool for name in pools if (pool := self.pools.get(name)) is not None]
        share_ns = Duration(ahead_ns // max(1, len(known)))
        return min((pool.free_in_ns(share_ns, now) for pool in known), default=Duration(0))

    def is_warming(self, pools: tuple[PoolName, ...]) -> bool:
        """Whether an endpoint of these pools is starting."""
        return any(pool.is_warming for name in pools if (pool := self.pools.get(name)) is not None)

    def least_loaded_pool(self) -> PoolName | None:
        """Returns the changed pool with the least loaded endpoint, an overflow pool only if no other pool has changed.

        Drops pools without headroom from `dispatchable`.
        """
        best: PoolName | None = None
        least_ns = 0
        # A copy, because the loop drops names.
        for name in list(self.dispatchable):
            pool = self.pools.get(name)
            if pool is None or not pool.headroom_count:
                del self.dispatchable[name]
            elif len(self.dispatchable) == 1:
                return name
            else:
                endpoint = pool.least_loaded()
                assert endpoint is not None, f"pool {name} counts endpoints with headroom but its heaps are empty"
                load_ns = endpoint.load_ns()
                if name in self._rules.overflow_pools:
                    load_ns += NEVER
                if best is None or load_ns < least_ns:
                    best, least_ns = name, load_ns
        return best

    def queue_changed(self, pools: tuple[PoolName, ...]) -> None:
        """Marks these pools for dispatch after their queues have changed.

        Pools without headroom are skipped, because they are marked when an endpoint gets headroom.
        """
        for name in pools:
            if (pool := self.pools.get(name)) is not None and pool.headroom_count:
                self.dispatchable[name] = None

    def recheck_all_pools(self) -> None:
        """Marks every pool as changed, so that all queued requests are considered again."""
        self._placement.recheck_all_pools()

    # Endpoint events

    def handle(self, event: FleetEvent, now: Instant) -> Readmit | None:
        match event:
            case EndpointJoined(endpoint):
                self.join(endpoint, now)
            case EndpointReady(endpoint_id):
                return self.mark_ready(endpoint_id, now)
            case EndpointNotReady(endpoint_id):
                self.mark_not_ready(endpoint_id, now)
            case EndpointMetricsReported():
                self.record_metrics(event, now)
            case EndpointProbed():
                self.record_probe(event, now)
            case EndpointLeaving(endpoint_id):
                self.leave(endpoint_id, now)
            case _:
                assert_never(event)
        return None

    def join(self, endpoint: Endpoint, now: Instant) -> None:
        record = self.endpoints.get(endpoint.id)
        if record is None:
            if (pool := self.pools.get(endpoint.pool)) is None:
                pool = self.pools[endpoint.pool] = PoolRecord(self._rules.endpoint_settings(endpoint.pool))
            record = self.endpoints[endpoint.id] = EndpointRecord(
                endpoint, pool.settings, now, scheduler_count=self._scheduler_count
            )
            record.drained = self.drains.drains(record)
            pool.add(record)
            self._restore_endpoint(record)
        assert record.pool == endpoint.pool, f"endpoint {endpoint.id} changed its pool; give it a new id instead"
        record.in_flight_configured, record.zone = endpoint.in_flight_max, endpoint.zone
        record.in_flight_max = record.settings.in_flight_limit(endpoint.in_flight_max)
        record.adapters.change(endpoint.adapters, endpoint.max_lora)
        if endpoint.adapters:
            self._rules.discover_adapters(endpoint.pool, endpoint.adapters)
        record.leaving = False
        record.update_limit()
        self._placement.move(record, endpoint, now)
        if self.engines.changed:
            self.drains.update()
        self._placement.place(record)

    def mark_ready(self, endpoint_id: EndpointId, now: Instant) -> Readmit | None:
        record = self.endpoints.get(endpoint_id)
        if record is None or record.state is not EndpointState.WARMING:
            return None
        return self.health.mark_ready(record, now)

    def mark_not_ready(self, endpoint_id: EndpointId, now: Instant) -> None:
        if (record := self.endpoints.get(endpoint_id)) is not None:
            self.health.mark_not_ready(record, now)

    def record_metrics(self, metrics: EndpointMetricsReported, now: Instant) -> None:
        if (record := self.endpoints.get(metrics.endpoint_id)) is not None:
            self.health.record_metrics(record, metrics, now)

    def record_probe(self, result: EndpointProbed, now: Instant) -> None:
        if (record := self.endpoints.get(result.endpoint_id)) is not None:
            self.health.record_probe(record, result, now)

    def leave(self, endpoint_id: EndpointId, now: Instant) -> None:
        record = self.endpoints.get(endpoint_id)
        if record is not None:
            record.engine_time.advance(now)
            record.leaving = True
            self._placement.forget_prefixes(record)
            self._placement.place(record)
            self.occupancy.forget_if_gone(record)

    def pop_times(self, now: Instant) -> tuple[EndpointTime, ...]:
        """Returns how each endpoint has spent its time since the last call."""
        engines = self._placement.engines
        clocks = (each.engine_time for each in self.endpoints.values() if engines.counts_time(each))
        return self._placement.departed_times.pop_all(clocks, now)

    # Handover between schedulers

    def counters(self) -> tuple[EndpointCounter, ...]:
        """Returns the learned state of each endpoint, including endpoints that have not joined yet."""
        known = tuple(
            EndpointCounter(each.id, *each.speed_estimator.counters(), each.ejections)
            for each in self.endpoints.values()
        )
        return known + tuple(self._restored.values())

    def restore(self, counters: Iterable[EndpointCounter]) -> None:
        """Stores endpoint states. Each is applied when its endpoint joins."""
        self._restored = {each.endpoint_id: each for each in counters}

    def learned_speeds(self) -> tuple[LearnedSpeed, ...]:
        """Returns the learned speed of each endpoint that has joined."""
        return tuple(
            LearnedSpeed(each.id, each.pool, each.speed_estimator.converged, *each.speed_estimator.counters())
            for each in self.endpoints.values()
        )

    def restore_speeds(self, speeds: Iterable[LearnedSpeed]) -> None:
        """Stores learned speeds, to be applied when each endpoint joins.

        A speed that has not converged is only an initial value for further learning.
        """
        self.restore(
            EndpointCounter(each.endpoint_id, each.factors, each.sums if each.converged else _NO_SUMS, 0)
            for each in speeds
        )

    def _restore_endpoint(self, endpoint: EndpointRecord) -> None:
        if (known := self._restored.pop(endpoint.id, None)) is not None:
            endpoint.restore_speed(known.factors, known.sums)
            self.pools[endpoint.pool].speed.update(endpoint.speed_estimator)
            # An endpoint that was ejected goes on trial when its engine reports ready.
            endpoint.ejections = known.ejections

    def adopt(self, endpoint_id: EndpointId, pool: PoolName, now: Instant) -> EndpointRecord:
        """Returns the endpoint of an adopted attempt. An unknown endpoint counts as leaving until it joins."""
        record = self.endpoints.get(endpoint_id)
        if record is None:
            self.join(Endpoint(endpoint_id, pool, in_flight_max=0), now)
            record = self.endpoints[endpoint_id]
            record.leaving = True
        return record

    def change_rules(self, rules: Rules, now: Instant) -> None:
        self._rules = rules
        for name, pool in self.pools.items():
            pool.apply_settings(rules.endpoint_settings(name))
        for endpoint in self.endpoints.values():
            if endpoint.adapters.held:
                rules.discover_adapters(endpoint.pool, endpoint.adapters.held)
            endpoint.apply_settings(self.pools[endpoint.pool].settings)
            endpoint.update_limit()
            endpoint.engine_time.change_speed(endpoint.settings.speed, now)
            self._placement.place(endpoint)
        self.health.change_rules(rules)


def _live(endpoints: Iterable[EndpointRecord]) -> int:
    return sum(each.live for each in endpoints)
