"""Runs the autoscaler and scales the fleets.

The service observes the scheduler, runs the autoscaler once per period and scales the fleets. Fleets that the gateway
cannot scale itself, such as DNS fleets, are scaled by another system that reads the same metrics.

If a request's pools have no endpoint, the autoscaler runs immediately for pools without endpoints, because the request
is waiting for one to start.

Demand is also reported for pools that are not autoscaled. For those, a sample of the requests is enough.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from headgate.core.autoscaling.autoscaler import ScaleDecision, ScalingMetrics
from headgate.core.autoscaling.controller import EARLY_TICK_NS_MIN, AutoscalingController
from headgate.core.autoscaling.starts import Start, StartPhase
from headgate.core.commands import Command
from headgate.core.events import Event, RequestArrived
from headgate.core.summary import Summary
from headgate.model.overrides import MinimumEndpoints, OperatorOverride
from headgate.model.scaling import ScalingRules
from headgate.model.units import SECOND, Duration, EndpointId, Instant, PoolName, format_seconds
from headgate.ports.fleet import Phase
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.log import log_event
from headgate.telemetry.scaling_metrics import PoolScaling

ScaleFleet = Callable[[PoolName, int], Awaitable[bool]]
"""Scales a pool's fleet. Returns whether the fleet's desired size has changed."""
UNSAMPLED_MAX: Final = 200
SAMPLE_EVERY: Final = 8
"""Sampling interval. If no pool is autoscaled, the first `UNSAMPLED_MAX` requests of a period are counted, then one in
`SAMPLE_EVERY`.
"""

_UNSCALED: Final = ScalingRules()
_START_PHASES: Final = {
    Phase.PENDING: StartPhase.NOT_SCHEDULED,
    Phase.PROCESS: StartPhase.STARTING,
    Phase.WEIGHTS: StartPhase.LOADING,
    Phase.WARM_UP: StartPhase.WARMING,
    Phase.JOIN: StartPhase.WARMING,
}


class AutoscalingService:
    def __init__(self, rules: Mapping[PoolName, ScalingRules], *, unscaled: ScalingRules = _UNSCALED) -> None:
        """Creates the service. `unscaled` provides the period to use if no pool is autoscaled."""
        self.phases: Callable[[], Mapping[EndpointId, Phase]] = dict
        """Returns the phases of endpoint starts, for fleets that observe them."""
        self._controller = AutoscalingController(rules, unscaled=unscaled)
        self._cold_starts: dict[PoolName, Histogram] = {pool: Histogram() for pool in rules}
        self._arrivals = 0
        """Number of requests in this period, if no pool is autoscaled."""
        self._endpoint_missing = asyncio.Event()
        """Set when no endpoint can serve a request, or a minimum count has changed."""
        self._minimums: tuple[MinimumEndpoints, ...] = ()
        self.reasons: dict[PoolName, str] = {}
        """Reason for the last change to each pool's desired size."""

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        weight = 1 if self.rules or not isinstance(event, RequestArrived) else self._weight()
        cold_start = self._controller.observe(event, commands, now, weight=weight)
        if cold_start is not None:
            pool, took_ns = cold_start
            self._cold_starts[pool].add(took_ns)
            log_event(logging.INFO, "cold start measured", pool=pool, took=format_seconds(took_ns))
        if self._controller.endpoint_missing:
            self._endpoint_missing.set()

    def _weight(self) -> int:
        """Returns how many requests the next one stands for."""
        self._arrivals += 1
        if self._arrivals <= UNSAMPLED_MAX:
            return 1
        return 0 if self._arrivals % SAMPLE_EVERY else SAMPLE_EVERY

    def change_rules(self, rules: Mapping[PoolName, ScalingRules]) -> None:
        if rules != self.rules:
            self._controller.change_rules(rules)
            self._cold_starts = {pool: self._cold_starts.get(pool) or Histogram() for pool in rules}

    def change_overrides(self, overrides: Iterable[OperatorOverride]) -> None:
        """Applies the operators' minimum counts without waiting for the end of the period."""
        minimums = tuple(each for each in overrides if isinstance(each, MinimumEndpoints))
        if minimums != self._minimums:
            self._minimums = minimums
            self._endpoint_missing.set()

    def started(self, pool: PoolName, took_ns: Duration) -> None:
        """Records an endpoint start that a fleet measured itself. This includes restarts at an unchanged desired
        size.
        """
        if pool in self.rules:
            self._controller.autoscaler.record_cold_start(pool, took_ns)

    @property
    def rules(self) -> Mapping[PoolName, ScalingRules]:
        return self._controller.rules

    @property
    def figures(self) -> tuple[ScalingMetrics, ...]:
        """Metrics from the last period."""
        return self._controller.figures

    def desired(self) -> dict[PoolName, int]:
        return self._controller.desired()

    def metrics(self) -> tuple[PoolScaling, ...]:
        """Returns the scaling metrics. They are empty until the first measurement, because other systems may scale
        based on them.
        """
        wanted, under_way, autoscaler = self.desired(), self.starts(), self._controller.autoscaler
        return tuple(
            PoolScaling(
                each.pool,
                endpoints_desired=wanted.get(each.pool),
                demand_ppm=each.demand_ppm,
                endpoints_ready=each.ready,
                starting=Counter(start.phase for start in under_way if start.pool == each.pool),
                oldest_start_age_ns=each.starting_ns,
                lead_time_ns=autoscaler.lead_ns(each.pool) if each.pool in self.rules else None,
                cold_starts=self._cold_starts.get(each.pool),
                correction_ppm=autoscaler.correction_ppm(each.pool) if each.pool in self.rules else None,
            )
            for each in self.figures
        )

    def starts(self) -> list[Start]:
        """Returns the endpoint starts in progress. The phase comes from the fleet or, failing that, from the probes."""
        phases = self.phases()
        return [_with_phase(start, phases) for start in self._controller.starts.in_progress()]

    def pools_status(self) -> Mapping[str, Mapping[str, object]]:
        """Returns the desired count of each autoscaled pool and its limits, for the status page."""
        return {
            pool: {
                "desired": self._controller.autoscaler.desired(pool),
                "endpoints_min": rules.endpoints_min,
                "endpoints_max": rules.most_endpoints,
                "cold_start_s": rules.cold_start_ns / SECOND,
                "lead_time_s": self._controller.autoscaler.lead_ns(pool) / SECOND,
            }
            for pool, rules in self.rules.items()
        }

    def starts_status(self, now: Instant) -> list[Mapping[str, object]]:
        """Returns the endpoint starts in progress, for the status page."""
        return [
            {
                "pool": start.pool,
                "endpoint": start.endpoint_id,
                "phase": start.phase.value,
                "age_s": round((now - start.since) / SECOND, 1),
            }
            for start in self.starts()
        ]

    async def run(
        self,
        summary: Callable[[], Summary],
        now: Callable[[], Instant],
        scale: ScaleFleet,
        decides: Callable[[], bool] = lambda: True,
    ) -> None:
        """Runs until cancelled. The shortest period of any pool applies to all pools.

        A process that does not make scheduling decisions does not see demand, so it does not scale.
        """
        loop = asyncio.get_running_loop()
        while True:
            over_s = loop.time() + self._controller.period_ns / SECOND
            while await self._wait_for_demand(over_s) and decides():
                await self._tick_early(summary(), now(), scale)
                await asyncio.sleep(min(EARLY_TICK_NS_MIN / SECOND, max(0.0, over_s - loop.time())))
            if not decides():
                self._controller.reset()
            else:
                await self._tick(summary(), now(), scale)

    async def _wait_for_demand(self, until_s: float) -> bool:
        """Waits until this time. Returns true early if there is no endpoint for a request or a minimum has changed."""
        try:
            async with asyncio.timeout_at(until_s):
                await self._endpoint_missing.wait()
        except TimeoutError:
            return False
        self._endpoint_missing.clear()
        self._controller.endpoint_missing = False
        return True

    async def _tick(self, summary: Summary, now: Instant, scale: ScaleFleet) -> None:
        self._arrivals = 0
        await self._apply((*self._change_floors(now), *self._controller.tick(summary, now)), scale)

    def _change_floors(self, now: Instant) -> list[ScaleDecision]:
        """Applies the operators' minimum counts that are in force now."""
        floors: dict[PoolName, int] = {}
        for each in self._minimums:
            if each.until > now and each.pool in self.rules:
                floors[each.pool] = max(each.endpoints, floors.get(each.pool, 0))
        return self._controller.change_floors(floors, now)

    async def _tick_early(self, summary: Summary, now: Instant, scale: ScaleFleet) -> None:
        """Runs the autoscaler between two periods, but only for pools without ready or starting endpoints, and for
        those whose minimum count an operator has changed.
        """
        await self._apply((*self._change_floors(now), *self._controller.tick_early(summary, now)), scale)

    async def _apply(self, decisions: Sequence[ScaleDecision], scale: ScaleFleet) -> None:
        for each in decisions:
            self.reasons[each.pool] = each.reason
            if await scale(each.pool, each.endpoints):
                log_event(logging.INFO, "pool scaled", pool=each.pool, endpoints=each.endpoints, reason=each.reason)


def _with_phase(start: Start, phases: Mapping[EndpointId, Phase]) -> Start:
    phase = None if start.endpoint_id is None else phases.get(start.endpoint_id)
    return start if phase is None else start._replace(phase=_START_PHASES[phase])
