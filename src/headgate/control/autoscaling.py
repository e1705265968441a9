"""How does what the autoscaler wants become more or fewer endpoints?

It watches the scheduler as any observer does, asks the autoscaler once a period, and tells the fleets. A fleet that
cannot be scaled from here, such as one that is found by its name, is scaled by others who ask for the same figures.

Where a request finds no endpoint of its pools the autoscaler is asked at once about those pools that have none: until
one has started somebody waits.

How much is asked of a pool that is not scaled is told too, for whoever looks; there a part of the requests will do.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from headgate.core.autoscaling.autoscaler import Autoscaler, Figures, Scale
from headgate.core.autoscaling.signal import Demand
from headgate.core.commands import Command, End, Hold
from headgate.core.events import Event, RequestArrived
from headgate.core.summary import Summary
from headgate.model.outcome import Outcome
from headgate.model.scaling import ScalingRules
from headgate.model.units import SECOND, Duration, Instant, PoolName
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


class Scaling:
    def __init__(self, rules: Mapping[PoolName, ScalingRules], *, unscaled: ScalingRules = _UNSCALED) -> None:
        """`unscaled` gives the period where no pool is scaled."""
        self._unscaled = unscaled
        self._rules: dict[PoolName, ScalingRules] = dict(rules)
        self._autoscaler = Autoscaler(rules)
        self._demand = Demand()
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
        if self._may_be_empty and not self._found_none.is_set() and any(_found_none(command) for command in commands):
            self._found_none.set()

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

    def started(self, pool: PoolName, took_ns: Duration) -> None:
        if pool in self._rules:
            self._autoscaler.started(pool, took_ns)

    @property
    def rules(self) -> Mapping[PoolName, ScalingRules]:
        return self._rules

    def wanted(self) -> dict[PoolName, int]:
        return {pool: self._autoscaler.wanted(pool) for pool in self._rules}

    def told(self) -> tuple[PoolScaling, ...]:
        """For metrics. Whoever scales by them must not be told of a want before anything was measured."""
        wanted = self.wanted()
        return tuple(
            PoolScaling(
                each.pool,
                endpoints_wanted=wanted.get(each.pool),
                demand_ppm=each.demand_ppm,
                endpoints_ready=each.ready,
            )
            for each in self.figures
        )

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
                self.figures = ()
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
        self.figures = self._demand.figures(summary, now)
        self._arrivals = 0
        await self._order(self._autoscaler.tick(self.figures, now), scale)

    async def _tick_early(self, summary: Summary, now: Instant, scale: ScaleFleet) -> None:
        """Between two periods; for pools that have no endpoint, and none that is starting, alone."""
        figures = self._demand.glance(summary, now, self._period_ns())
        if not self.figures:
            self.figures = figures
        empty = [each for each in figures if not each.ready and not each.warming]
        await self._order(self._autoscaler.tick(empty, now, early=True), scale)

    async def _order(self, orders: Sequence[Scale], scale: ScaleFleet) -> None:
        for order in orders:
            self.reasons[order.pool] = order.reason
            if await scale(order.pool, order.endpoints):
                tell(logging.INFO, "pool is scaled", pool=order.pool, endpoints=order.endpoints, reason=order.reason)


def _may_be_empty(rules: Mapping[PoolName, ScalingRules]) -> bool:
    """Whether any pool may have no endpoint at all."""
    return any(not each.endpoints_min for each in rules.values())


def _found_none(command: Command) -> bool:
    return isinstance(command, Hold) or (isinstance(command, End) and command.outcome is Outcome.NO_ENDPOINTS)
