"""How does what the autoscaler wants become more or fewer endpoints?

It watches the scheduler as any observer does, asks the autoscaler once a period, and tells the fleets. A fleet that
cannot be scaled from here, such as one that is found by its name, is scaled by others who ask for the same figures.

Where a request finds no endpoint of its pools the autoscaler is asked at once about those pools that have none: until
one has started somebody waits.

How much is asked of a pool that is not scaled is told too, for whoever looks; there a part of the requests will do.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from headgate.core.autoscaling.autoscaler import Autoscaler, Figures, Scale
from headgate.core.autoscaling.signal import Demand
from headgate.core.autoscaling.starts import Start, StartPhase, Starts
from headgate.core.commands import Command, End, Hold
from headgate.core.events import (
    EndpointJoined,
    EndpointLeaving,
    EndpointProbed,
    EndpointReadied,
    EndpointUnreadied,
    Event,
    RequestArrived,
)
from headgate.core.summary import Summary
from headgate.model.outcome import Outcome
from headgate.model.scaling import ScalingRules
from headgate.model.units import SECOND, Duration, EndpointId, Instant, PoolName, seconds
from headgate.ports.fleet import Phase
from headgate.telemetry.histogram import Histogram
from headgate.telemetry.log import tell
from headgate.telemetry.scaling import PoolScaling

ScaleFleet = Callable[[PoolName, int], Awaitable[bool]]
"""Whether the fleet of the pool is another for it."""
BETWEEN_S: Final = 0.5
"""However many find no endpoint, the autoscaler is not asked more often between two periods."""
WHOLE_MAX: Final = 200
SAMPLED: Final = 8
"""Where no pool is scaled so many requests of a period are counted one by one, and of those after them one in eight."""

_UNSCALED: Final = ScalingRules()
_OF_STARTS: Final = frozenset((EndpointJoined, EndpointLeaving, EndpointProbed, EndpointReadied, EndpointUnreadied))
"""Kinds of events that begin, end or change a start; most events are of other kinds."""
_SHOWN: Final = {
    Phase.PENDING: StartPhase.NOT_SCHEDULED,
    Phase.PROCESS: StartPhase.STARTING,
    Phase.WEIGHTS: StartPhase.LOADING,
    Phase.WARM_UP: StartPhase.WARMING,
    Phase.JOIN: StartPhase.WARMING,
}


class Scaling:
    def __init__(self, rules: Mapping[PoolName, ScalingRules], *, unscaled: ScalingRules = _UNSCALED) -> None:
        """`unscaled` gives the period where no pool is scaled."""
        self.phases: Callable[[], Mapping[EndpointId, Phase]] = dict
        """The phases of starts that fleets observe themselves."""
        self._unscaled = unscaled
        self._rules: dict[PoolName, ScalingRules] = dict(rules)
        self._autoscaler = Autoscaler(rules)
        self._demand = Demand()
        self._starts = Starts()
        self._cold_starts: dict[PoolName, Histogram] = {pool: Histogram() for pool in rules}
        self._arrivals = 0
        """Of this period, where no pool is scaled."""
        self._may_be_empty = _may_be_empty(rules)
        self._found_none = asyncio.Event()
        """Set when a request has found no endpoint that could serve it."""
        self.reasons: dict[PoolName, str] = {}
        """Why each pool was last wanted to be other than it was."""
        self.figures: tuple[Figures, ...] = ()
        """As of the last period."""

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        weight = 1 if self._rules or not isinstance(event, RequestArrived) else self._weight()
        self._demand.saw(event, commands, now, weight=weight)
        if type(event) in _OF_STARTS:
            self._follow_starts(event, now)
        if self._may_be_empty and not self._found_none.is_set() and any(_found_none(command) for command in commands):
            self._found_none.set()

    def _follow_starts(self, event: Event, now: Instant) -> None:
        if (cold_start := self._starts.saw(event, now)) is not None and cold_start.pool in self._rules:
            pool, took_ns = cold_start
            self._autoscaler.started(pool, took_ns)
            self._cold_starts[pool].add(took_ns)
            tell(logging.INFO, "cold start measured", pool=pool, took=seconds(took_ns))

    def _weight(self) -> int:
        """For how many requests the next one counts."""
        self._arrivals += 1
        if self._arrivals <= WHOLE_MAX:
            return 1
        return 0 if self._arrivals % SAMPLED else SAMPLED

    def change_rules(self, rules: Mapping[PoolName, ScalingRules]) -> None:
        if rules != self._rules:
            self._rules = dict(rules)
            self._may_be_empty = _may_be_empty(rules)
            self._autoscaler.change_rules(rules)
            self._cold_starts = {pool: self._cold_starts.get(pool) or Histogram() for pool in rules}

    def started(self, pool: PoolName, took_ns: Duration) -> None:
        """A fleet that starts its endpoints itself has measured a start, also one that no raised want began."""
        if pool in self._rules:
            self._autoscaler.started(pool, took_ns)

    @property
    def rules(self) -> Mapping[PoolName, ScalingRules]:
        return self._rules

    def wanted(self) -> dict[PoolName, int]:
        return {pool: self._autoscaler.wanted(pool) for pool in self._rules}

    def told(self) -> tuple[PoolScaling, ...]:
        """For metrics. Whoever scales by them must not be told of a want before anything was measured."""
        wanted, under_way = self.wanted(), self.starts()
        return tuple(
            PoolScaling(
                each.pool,
                endpoints_wanted=wanted.get(each.pool),
                demand_ppm=each.demand_ppm,
                endpoints_ready=each.ready,
                starting=Counter(start.phase for start in under_way if start.pool == each.pool),
                oldest_start_ns=each.starting_ns,
                lead_ns=self._autoscaler.lead_ns(each.pool) if each.pool in self._rules else None,
                cold_starts=self._cold_starts.get(each.pool),
                correction_ppm=self._autoscaler.correction_ppm(each.pool) if each.pool in self._rules else None,
            )
            for each in self.figures
        )

    def starts(self) -> list[Start]:
        """Every start under way, in the phase that its fleet observes or else in the one that the probes show."""
        phases = self.phases()
        return [_shown(start, phases) for start in self._starts.under_way()]

    def starts_status(self, now: Instant) -> list[Mapping[str, object]]:
        """The starts under way, for operators."""
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
        """For ever. The shortest period of any pool is everybody's.

        Who does not decide sees no demand, so nothing is concluded from what it sees."""
        loop = asyncio.get_running_loop()
        while True:
            over_s = loop.time() + self._period_ns() / SECOND
            while await self._is_asked_for(over_s) and decides():
                await self._tick_early(summary(), now(), scale)
                await asyncio.sleep(min(BETWEEN_S, max(0.0, over_s - loop.time())))
            if not decides():
                self.figures, self._starts = (), Starts()
            else:
                await self._tick(summary(), now(), scale)

    def _period_ns(self) -> Duration:
        return min((rules.period_ns for rules in self._rules.values()), default=self._unscaled.period_ns)

    async def _is_asked_for(self, until_s: float) -> bool:
        """Whether a request finds no endpoint before this moment."""
        try:
            async with asyncio.timeout_at(until_s):
                await self._found_none.wait()
        except TimeoutError:
            return False
        self._found_none.clear()
        return True

    async def _tick(self, summary: Summary, now: Instant, scale: ScaleFleet) -> None:
        self._starts.reconcile(summary.endpoints, now)
        self.figures = self._with_starts(self._demand.figures(summary, now), now)
        self._arrivals = 0
        await self._order(self._autoscaler.tick(self.figures, now), now, scale)

    async def _tick_early(self, summary: Summary, now: Instant, scale: ScaleFleet) -> None:
        """Between two periods; for pools that have no endpoint, and none that is starting, alone."""
        figures = self._with_starts(self._demand.glance(summary, now, self._period_ns()), now)
        if not self.figures:
            self.figures = figures
        empty = [each for each in figures if not each.ready and not each.warming]
        await self._order(self._autoscaler.tick(empty, now, early=True), now, scale)

    def _with_starts(self, figures: Sequence[Figures], now: Instant) -> tuple[Figures, ...]:
        return tuple(each._replace(starting_ns=self._starts.age_ns(each.pool, now)) for each in figures)

    async def _order(self, orders: Sequence[Scale], now: Instant, scale: ScaleFleet) -> None:
        for pool, endpoints in self.wanted().items():
            self._starts.want(pool, endpoints, now)
        for order in orders:
            self.reasons[order.pool] = order.reason
            if await scale(order.pool, order.endpoints):
                tell(logging.INFO, "pool is scaled", pool=order.pool, endpoints=order.endpoints, reason=order.reason)


def _shown(start: Start, phases: Mapping[EndpointId, Phase]) -> Start:
    phase = None if start.endpoint_id is None else phases.get(start.endpoint_id)
    return start if phase is None else start._replace(phase=_SHOWN[phase])


def _may_be_empty(rules: Mapping[PoolName, ScalingRules]) -> bool:
    """Whether any pool may have no endpoint at all."""
    return any(not each.endpoints_min for each in rules.values())


def _found_none(command: Command) -> bool:
    return isinstance(command, Hold) or (isinstance(command, End) and command.outcome is Outcome.NO_ENDPOINTS)
