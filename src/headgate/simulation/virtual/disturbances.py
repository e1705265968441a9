"""Changes and faults of the engines, as the scenario has them."""

from collections.abc import Callable, Mapping

from headgate.core.events import EndpointJoined, EndpointLeaving, Event, PolicyChanged
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId, Instant, after
from headgate.simulation.engine.pace import NOMINAL
from headgate.simulation.virtual.endpoint import OpenAttempt, VirtualEndpoint
from headgate.simulation.virtual.scenario import Change, Crash, Fail, Fault, Hang, Leave, Limit, Reload, Slow
from headgate.simulation.virtual.timeline import Timeline


class Disturbances:
    """Of one run; the host puts each on the timeline."""

    def __init__(
        self,
        endpoints: Mapping[EndpointId, VirtualEndpoint],
        timeline: Timeline,
        *,
        now: Callable[[], Instant],
        tell: Callable[[Event], None],
        advance: Callable[[VirtualEndpoint], None],
        break_off: Callable[[VirtualEndpoint, OpenAttempt], None],
    ) -> None:
        """`advance` brings an engine to this instant; `break_off` ends an attempt whose engine dies."""
        self._endpoints = endpoints
        self._timeline = timeline
        self._now = now
        self._tell = tell
        self._advance = advance
        self._break_off = break_off

    def change(self, change: Change) -> None:
        match change:
            case Leave(endpoint_id):
                self._tell(EndpointLeaving(endpoint_id))
            case Limit(endpoint_id):
                spec = self._endpoints[endpoint_id].spec
                self._tell(EndpointJoined(Endpoint(endpoint_id, spec.pool, change.in_flight_max)))
            case Reload(policy):
                self._tell(PolicyChanged(policy, "changed in the scenario"))

    def befall(self, fault: Fault) -> None:
        endpoint, now = self._endpoints[fault.endpoint_id], self._now()
        if not endpoint.up:
            return
        self._advance(endpoint)
        match fault:
            case Crash():
                self._crash(endpoint, fault)
            case Hang():
                endpoint.engine.stall(now, after(now, fault.lasts_ns))
            case Fail():
                endpoint.fails_by = fault
            case Slow():
                endpoint.engine.change_speed(now, fault.speed)
                endpoint.slowed_by = fault
                self._timeline.at(after(now, fault.lasts_ns), self._recover, fault)

    def come_up(self, endpoint: VirtualEndpoint) -> None:
        endpoint.start(self._now())

    def _crash(self, endpoint: VirtualEndpoint, fault: Crash) -> None:
        now = self._now()
        for attempt in tuple(endpoint.attempts.values()):
            self._break_off(endpoint, attempt)
        endpoint.crash(now)
        self._timeline.at(after(now, fault.back_after_ns), self.come_up, endpoint)

    def _recover(self, fault: Slow) -> None:
        endpoint = self._endpoints[fault.endpoint_id]
        # A later one goes on, and a new engine never was slow.
        if endpoint.slowed_by is fault:
            self._advance(endpoint)
            endpoint.engine.change_speed(self._now(), NOMINAL)
