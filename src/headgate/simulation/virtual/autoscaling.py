"""Runs the autoscaler against a simulated fleet, request by request.

It is the simulated counterpart of `control/autoscaling.py`: the same controller observes the same events, decides at
the same intervals, and the fleet follows its decisions. A pool has a fixed number of places for engines, as many as its
`endpoints_max`. A scale-up first returns draining engines to service, then starts engines in free places. A scale-down
first releases engines that are still starting, then those with the fewest requests.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from headgate.core.autoscaling.autoscaler import ScaleDecision
from headgate.core.autoscaling.controller import EARLY_TICK_NS_MIN, AutoscalingController
from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.core.summary import Summary
from headgate.model.units import Instant, PoolName, after
from headgate.simulation.options import ScaledPool
from headgate.simulation.virtual.endpoint import VirtualEndpoint
from headgate.simulation.virtual.fleet import SimulatedFleet
from headgate.simulation.virtual.run_observer import ScaleEvent
from headgate.simulation.virtual.timeline import Timeline


class SimulatedAutoscaler:
    """An `Observer` of the scheduler. `summary` returns the scheduler's state."""

    def __init__(
        self,
        scaling: Mapping[PoolName, ScaledPool],
        endpoints: Iterable[VirtualEndpoint],
        fleet: SimulatedFleet,
        timeline: Timeline,
        *,
        summary: Callable[[], Summary],
        now: Callable[[], Instant],
    ) -> None:
        self.events: list[ScaleEvent] = []
        """Changes to the desired counts."""
        self._controller = AutoscalingController({pool: each.rules for pool, each in scaling.items()})
        self._cold_starts_ns = {pool: each.cold_start_ns for pool, each in scaling.items()}
        self._fleet = fleet
        self._timeline = timeline
        self._summary = summary
        self._now = now
        self._places: dict[PoolName, list[VirtualEndpoint]] = {pool: [] for pool in scaling}
        for each in endpoints:
            if each.spec.pool in self._places:
                self._places[each.spec.pool].append(each)
        self._desired: dict[PoolName, int] = {
            pool: sum(not each.spec.standby for each in places) for pool, places in self._places.items()
        }
        self._early_at: Instant | None = None
        """Time of the next early decision. None if none is due."""
        self._last_early_at = Instant(-EARLY_TICK_NS_MIN)

    def start(self) -> None:
        self._timeline.schedule(after(self._now(), self._controller.period_ns), self._tick, None)

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        self._controller.observe(event, commands, now)
        if self._controller.endpoint_missing and self._early_at is None:
            self._early_at = max(now, after(self._last_early_at, EARLY_TICK_NS_MIN))
            self._timeline.schedule(self._early_at, self._tick_early, None)

    def _tick(self, _: None) -> None:
        self._timeline.schedule(after(self._now(), self._controller.period_ns), self._tick, None)
        self._apply(self._controller.tick(self._summary(), self._now()))

    def _tick_early(self, _: None) -> None:
        self._early_at, self._last_early_at = None, self._now()
        self._controller.endpoint_missing = False
        self._apply(self._controller.tick_early(self._summary(), self._now()))

    def _apply(self, decisions: Sequence[ScaleDecision]) -> None:
        for pool, endpoints, reason in ((each.pool, each.endpoints, each.reason) for each in decisions):
            if endpoints != self._desired[pool]:
                self.events.append(ScaleEvent(self._now(), pool, self._desired[pool], endpoints, reason))
                self._desired[pool] = endpoints
            self._reconcile(pool)

    def _reconcile(self, pool: PoolName) -> None:
        """Adjusts the number of engines to the desired count."""
        places = self._places[pool]
        serving = [each for each in places if each.exists and not each.leaving]
        for each in sorted(serving, key=_release_order)[: max(0, len(serving) - self._desired[pool])]:
            self._fleet.release(each)
        missing = self._desired[pool] - len(serving)
        for each in [each for each in places if each.leaving][: max(0, missing)]:
            self._fleet.resume(each)
            missing -= 1
        for each in [each for each in places if not each.exists][: max(0, missing)]:
            self._fleet.start(each, self._cold_starts_ns[pool])


def _release_order(endpoint: VirtualEndpoint) -> tuple[bool, int, int]:
    """Sort key of engines to release. The smallest goes first."""
    return endpoint.up, len(endpoint.attempts), -endpoint.rank
