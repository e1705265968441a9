"""Which endpoints are there, and in what state?

The fleet keeps every endpoint that has been heard of: its coming and going, its places taken,
its health, and the moments at which it must be looked at again. It notes the pools in which
anything changed, so that the scheduler looks nowhere else.
"""

from collections.abc import Iterator

from headgate.core import health
from headgate.core.alarms import Alarms
from headgate.core.commands import Eject, Readmit
from headgate.core.routing.endpoints import EndpointRecord, PoolRecord
from headgate.model.endpoint import Endpoint, EndpointState
from headgate.model.policy import HealthRules
from headgate.model.units import Duration, EndpointId, Instant, PoolName, after, seconds


class Fleet:
    __slots__ = ("_returns", "_stalls", "changed", "endpoints", "pools", "rules")

    def __init__(self, rules: HealthRules) -> None:
        self.rules = rules
        self.endpoints: dict[EndpointId, EndpointRecord] = {}
        self.pools: dict[PoolName, PoolRecord] = {}
        self.changed: dict[PoolName, None] = {}
        """Pools where someone may have become dispatchable: an ordered set."""
        self._returns: Alarms[EndpointId] = Alarms()
        self._stalls: Alarms[EndpointId] = Alarms()

    def live(self, pools: tuple[PoolName, ...]) -> int:
        """How many endpoints of these pools take work."""
        count = 0
        for name in pools:
            if (pool := self.pools.get(name)) is not None:
                count += pool.live
        return count

    def warming(self, pools: tuple[PoolName, ...]) -> bool:
        """Whether an endpoint of these pools is starting."""
        return any(pool.warming for name in pools if (pool := self.pools.get(name)) is not None)

    def roomiest(self) -> PoolName | None:
        """Of the changed pools the one with the least loaded endpoint. Those without room are struck off."""
        best: PoolName | None = None
        fewest = 0
        for name in tuple(self.changed):
            pool = self.pools.get(name)
            endpoint = pool.least_loaded() if pool is not None else None
            if endpoint is None:
                del self.changed[name]
            elif best is None or endpoint.in_flight < fewest:
                best, fewest = name, endpoint.in_flight
        return best

    def next_wakeup(self) -> Iterator[Instant | None]:
        yield self._returns.next()
        yield self._stalls.next()

    # Coming and going

    def join(self, endpoint: Endpoint, now: Instant) -> None:
        record = self.endpoints.get(endpoint.id)
        if record is None:
            record = self.endpoints[endpoint.id] = EndpointRecord(endpoint, now)
            self.pools.setdefault(endpoint.pool, PoolRecord()).endpoints[endpoint.id] = record
        assert record.pool == endpoint.pool, f"endpoint {endpoint.id} changed its pool; it needs a name of its own"
        record.in_flight_max = endpoint.in_flight_max
        record.leaving = False
        self._place(record)

    def ready(self, endpoint_id: EndpointId) -> Readmit | None:
        record = self.endpoints.get(endpoint_id)
        if record is None or record.state is not EndpointState.WARMING:
            return None
        trusted = health.readied(record)
        self._place(record)
        return Readmit(endpoint_id, "the engine says it is ready") if trusted else None

    def unready(self, endpoint_id: EndpointId) -> None:
        record = self.endpoints.get(endpoint_id)
        if record is not None:
            record.state = EndpointState.WARMING
            self._returns.clear(endpoint_id)
            self._place(record)

    def leave(self, endpoint_id: EndpointId) -> None:
        record = self.endpoints.get(endpoint_id)
        if record is not None:
            record.leaving = True
            self._place(record)
            self._forget_if_gone(record)

    # Places

    def occupy(self, endpoint: EndpointRecord) -> None:
        endpoint.in_flight += 1
        self._place(endpoint)

    def began_stream(self, endpoint: EndpointRecord, now: Instant) -> None:
        """One of those in flight streams from here on: silence now means something.

        Before its first token an attempt may rightly be silent, for as long as its class allows.
        """
        if not endpoint.streams:
            self._stalls.set(endpoint.id, after(now, self.rules.stall_ns_max))
        endpoint.streams += 1

    def vacate(self, endpoint: EndpointRecord, *, streaming: bool) -> None:
        endpoint.in_flight -= 1
        if streaming:
            endpoint.streams -= 1
            if not endpoint.streams:
                self._stalls.clear(endpoint.id)
        self._place(endpoint)
        self._forget_if_gone(endpoint)

    # Health

    def change_rules(self, rules: HealthRules) -> None:
        self.rules = rules
        for endpoint in self.endpoints.values():
            if endpoint.streams:
                self._stalls.set(endpoint.id, after(endpoint.last_heard, rules.stall_ns_max))

    def succeeded(self, endpoint: EndpointRecord, now: Instant) -> Readmit | None:
        endpoint.last_heard = now
        if not health.succeeded(endpoint):
            return None
        self._place(endpoint)
        return Readmit(endpoint.id, "its trial request succeeded")

    def failed(self, endpoint: EndpointRecord, detail: str, now: Instant) -> Eject | None:
        if not health.failed(endpoint, self.rules):
            return None
        return self._eject(endpoint, detail, now)

    def return_due(self, now: Instant) -> None:
        """Puts on trial those whose ejection is over."""
        for endpoint_id in self._returns.pop_due(now):
            endpoint = self.endpoints[endpoint_id]
            endpoint.state = EndpointState.TRIAL
            self._place(endpoint)

    def stalled(self, now: Instant) -> dict[EndpointId, EndpointRecord]:
        """Those that hold streams and have given no sign of life for too long."""
        stalled: dict[EndpointId, EndpointRecord] = {}
        for endpoint_id in self._stalls.pop_due(now):
            endpoint = self.endpoints[endpoint_id]
            silent = now - endpoint.last_heard
            if silent >= self.rules.stall_ns_max:
                stalled[endpoint_id] = endpoint
                silent = 0
            self._stalls.set(endpoint_id, after(now, Duration(self.rules.stall_ns_max - silent)))
        return stalled

    def eject_stalled(self, endpoint: EndpointRecord, now: Instant) -> Eject | None:
        if not endpoint.serving:
            return None
        silence = seconds(Duration(now - endpoint.last_heard))
        return self._eject(endpoint, f"no sign of life for {silence}; streams in flight: {endpoint.streams}", now)

    def _eject(self, endpoint: EndpointRecord, reason: str, now: Instant) -> Eject:
        health.eject(endpoint, now, self.rules)
        self._returns.set(endpoint.id, endpoint.returns_at)
        self._place(endpoint)
        return Eject(endpoint.id, endpoint.returns_at, reason)

    # Bookkeeping

    def _place(self, endpoint: EndpointRecord) -> None:
        was_live = endpoint.counted_live
        self.pools[endpoint.pool].place(endpoint)
        self.changed[endpoint.pool] = None
        if was_live and not endpoint.live:
            # Whoever avoids what may now be its last endpoint, in whichever pool, no longer does so.
            self.changed.update(dict.fromkeys(self.pools))

    def _forget_if_gone(self, endpoint: EndpointRecord) -> None:
        if not endpoint.leaving or endpoint.in_flight:
            return
        self._returns.clear(endpoint.id)
        self._stalls.clear(endpoint.id)
        del self.endpoints[endpoint.id]
        pool = self.pools[endpoint.pool]
        del pool.endpoints[endpoint.id]
        if not pool.endpoints:
            del self.pools[endpoint.pool]
