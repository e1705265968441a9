"""Injects a scenario's faults and operator actions into a run."""

from collections.abc import Callable, Mapping

from headgate.core.events import EndpointJoined, EndpointLeaving, Event, PolicyChanged
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId, Instant, after
from headgate.simulation.options import NOMINAL_SPEED, Crash, Hang, RequestErrors, ScenarioFault, Slowdown
from headgate.simulation.virtual.endpoint import EngineLifetime, SimulatedAttempt, VirtualEndpoint
from headgate.simulation.virtual.scenario import EndpointRemoval, InFlightLimitChange, PolicyReload, ScenarioChange
from headgate.simulation.virtual.timeline import Timeline


class FaultInjector:
    """A run's faults and operator actions, scheduled by the host."""

    def __init__(
        self,
        endpoints: Mapping[EndpointId, VirtualEndpoint],
        timeline: Timeline,
        *,
        now: Callable[[], Instant],
        emit: Callable[[Event], None],
        advance: Callable[[VirtualEndpoint], None],
        fail_attempt: Callable[[VirtualEndpoint, SimulatedAttempt], None],
        restart: Callable[[EngineLifetime], None],
    ) -> None:
        """`advance` advances an engine to the current instant. `fail_attempt` ends an attempt on a crashing engine.
        `restart` makes a crashed engine respond again, unless it has been stopped.
        """
        self._endpoints = endpoints
        self._timeline = timeline
        self._now = now
        self._emit = emit
        self._advance = advance
        self._fail_attempt = fail_attempt
        self._restart = restart

    def apply_change(self, change: ScenarioChange) -> None:
        match change:
            case EndpointRemoval(endpoint_id):
                self._emit(EndpointLeaving(endpoint_id))
            case InFlightLimitChange(endpoint_id):
                spec = self._endpoints[endpoint_id].spec
                self._emit(EndpointJoined(Endpoint(endpoint_id, spec.pool, change.in_flight_max)))
            case PolicyReload(policy):
                self._emit(PolicyChanged(policy, "changed in the scenario"))

    def inject(self, fault: ScenarioFault) -> None:
        endpoint, now = self._endpoints[fault.endpoint_id], self._now()
        if not endpoint.up:
            return
        self._advance(endpoint)
        match fault:
            case Crash():
                self._crash(endpoint, fault)
            case Hang():
                endpoint.engine.stall(now, after(now, fault.duration_ns))
            case RequestErrors():
                endpoint.error_fault = fault
            case Slowdown():
                endpoint.engine.change_speed(now, fault.speed)
                endpoint.slowdown = fault
                self._timeline.schedule(after(now, fault.duration_ns), self._recover, fault)

    def _crash(self, endpoint: VirtualEndpoint, fault: Crash) -> None:
        now, lifetime = self._now(), endpoint.lifetime
        assert lifetime is not None, "the engine is up, but was never started"
        for attempt in tuple(endpoint.attempts.values()):
            self._fail_attempt(endpoint, attempt)
        endpoint.crash(now)
        self._timeline.schedule(after(now, fault.recover_after_ns), self._restart, lifetime)

    def _recover(self, fault: Slowdown) -> None:
        endpoint = self._endpoints[fault.endpoint_id]
        # A later slowdown continues, and a restarted engine is not slow.
        if endpoint.slowdown is fault:
            self._advance(endpoint)
            endpoint.engine.change_speed(self._now(), NOMINAL_SPEED)
