"""Simulated fleet: starts, probes, drains and stops the engines of a scenario.

A starting engine is probed at increasing intervals until it responds. While an engine is up, its metrics are reported
at the gateway's interval. A released engine gets no more requests, and stops when its last request has ended.
"""

from collections.abc import Callable, Iterable

from headgate.core.events import EndpointJoined, EndpointLeaving, EndpointMetricsReported, EndpointReady, Event
from headgate.model.endpoint import Endpoint
from headgate.model.units import MILLISECOND, Duration, Instant, after
from headgate.simulation.virtual.endpoint import EngineLifetime, VirtualEndpoint
from headgate.simulation.virtual.timeline import Timeline

FIRST_PROBE_INTERVAL_NS = Duration(500 * MILLISECOND)
"""Delay between the first two probes of a starting engine. It doubles with each probe."""


class SimulatedFleet:
    def __init__(
        self,
        timeline: Timeline,
        *,
        now: Callable[[], Instant],
        emit: Callable[[Event], None],
        advance: Callable[[VirtualEndpoint], None],
        probe_interval_ns: Duration,
    ) -> None:
        """`advance` advances an engine to the current instant."""
        self._timeline = timeline
        self._now = now
        self._emit = emit
        self._advance = advance
        self._probe_interval_ns = probe_interval_ns

    def open(self, endpoints: Iterable[VirtualEndpoint]) -> None:
        """Starts the engines of the scenario, each at its time. Standby engines wait for the autoscaler."""
        for endpoint in endpoints:
            if endpoint.spec.standby:
                continue
            if endpoint.spec.starts_at > self._now():
                self._timeline.schedule(endpoint.spec.starts_at, self._start, endpoint)
            else:
                self._start(endpoint)

    def _start(self, endpoint: VirtualEndpoint) -> None:
        self.start(endpoint, endpoint.spec.cold_start_ns)

    def start(self, endpoint: VirtualEndpoint, cold_start_ns: Duration) -> None:
        now, spec = self._now(), endpoint.spec
        lifetime = endpoint.begin(now)
        self._emit(EndpointJoined(Endpoint(spec.id, spec.pool, spec.in_flight_max)))
        if cold_start_ns:
            self._timeline.schedule(after(now, cold_start_ns), self.finish_start, lifetime)
        else:
            self.finish_start(lifetime)
        self._probe(lifetime)
        self._timeline.schedule(after(now, self._probe_interval_ns), self._read_metrics, lifetime)

    def finish_start(self, lifetime: EngineLifetime) -> None:
        """Makes the engine respond, after a cold start or a crash."""
        if not lifetime.ended:
            lifetime.endpoint.start(self._now())

    def release(self, endpoint: VirtualEndpoint) -> None:
        """Drains an engine. The host stops it at the end of the instant in which it has become empty."""
        endpoint.leaving = True
        self._advance(endpoint)
        self._emit(EndpointLeaving(endpoint.spec.id))

    def resume(self, endpoint: VirtualEndpoint) -> None:
        """Returns a draining engine to service."""
        endpoint.leaving = False
        self._emit(EndpointJoined(Endpoint(endpoint.spec.id, endpoint.spec.pool, endpoint.spec.in_flight_max)))

    def _probe(self, lifetime: EngineLifetime) -> None:
        """Probes a starting engine."""
        endpoint = lifetime.endpoint
        if lifetime.ended:
            return
        if endpoint.up:
            self._emit(EndpointReady(endpoint.spec.id))
        else:
            lifetime.probe_interval_ns = min(
                2 * lifetime.probe_interval_ns or FIRST_PROBE_INTERVAL_NS, self._probe_interval_ns
            )
            self._timeline.schedule(Instant(self._now() + lifetime.probe_interval_ns), self._probe, lifetime)

    def _read_metrics(self, lifetime: EngineLifetime) -> None:
        """Reports the engine's load to the decider, if the engine is up."""
        endpoint = lifetime.endpoint
        if lifetime.ended:
            return
        self._timeline.schedule(after(self._now(), self._probe_interval_ns), self._read_metrics, lifetime)
        if endpoint.up:
            self._advance(endpoint)
            state = endpoint.engine.state()
            kv_percent = round(100 * state.kv_used_fraction)
            self._emit(EndpointMetricsReported(endpoint.spec.id, state.running, state.waiting, kv_percent))
