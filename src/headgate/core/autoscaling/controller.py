"""Runs the autoscaler alongside the scheduler, in any host.

The controller observes the scheduler's events, from which it measures demand and follows endpoint starts. Once per
period the host passes the scheduler's summary, and carries out the decisions. If a request finds no endpoint, the host
does not wait for the end of the period, because the request waits for an endpoint to start (`endpoint_missing`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from headgate.core.autoscaling.autoscaler import Autoscaler, ScaleDecision, ScalingMetrics
from headgate.core.autoscaling.demand import DemandObserver
from headgate.core.autoscaling.starts import ColdStart, Starts
from headgate.core.commands import Command, End, Hold
from headgate.core.events import (
    EndpointJoined,
    EndpointLeaving,
    EndpointNotReady,
    EndpointProbed,
    EndpointReady,
    Event,
)
from headgate.core.summary import Summary
from headgate.model.outcome import Outcome
from headgate.model.scaling import ScalingRules
from headgate.model.units import SECOND, Duration, Instant, PoolName

EARLY_TICK_NS_MIN: Final = Duration(SECOND // 2)
"""Minimum interval between early decisions within one period."""
_UNSCALED: Final = ScalingRules()
_START_EVENTS: Final = frozenset((EndpointJoined, EndpointLeaving, EndpointProbed, EndpointReady, EndpointNotReady))
"""Types of events that begin, end or change an endpoint start. Most events are of other types."""


class AutoscalingController:
    def __init__(self, rules: Mapping[PoolName, ScalingRules], *, unscaled: ScalingRules = _UNSCALED) -> None:
        """Creates the controller. `unscaled` provides the period to use if no pool is autoscaled."""
        self._unscaled = unscaled
        self._demand = DemandObserver()
        self.rules: Mapping[PoolName, ScalingRules] = dict(rules)
        self.autoscaler = Autoscaler(rules)
        self.starts = Starts()
        self._may_be_empty = _can_scale_to_zero(rules)
        self.endpoint_missing = False
        """Whether a request has found no endpoint, while pools may have none. The host resets it."""
        self.figures: tuple[ScalingMetrics, ...] = ()
        """Metrics from the last period."""

    def change_rules(self, rules: Mapping[PoolName, ScalingRules]) -> None:
        self.rules = dict(rules)
        self._may_be_empty = _can_scale_to_zero(rules)
        self.autoscaler.change_rules(rules)

    @property
    def period_ns(self) -> Duration:
        """Shortest period of any pool, which applies to all pools."""
        return min((rules.period_ns for rules in self.rules.values()), default=self._unscaled.period_ns)

    def desired(self) -> dict[PoolName, int]:
        return {pool: self.autoscaler.desired(pool) for pool in self.rules}

    def observe(self, event: Event, commands: Sequence[Command], now: Instant, *, weight: int = 1) -> ColdStart | None:
        """Observes one event. An arriving request counts `weight` times.

        If the event completes a cold start, records and returns it.
        """
        self._demand.observe(event, commands, now, weight=weight)
        if (
            self._may_be_empty
            and not self.endpoint_missing
            and any(_is_endpoint_missing(command) for command in commands)
        ):
            self.endpoint_missing = True
        if type(event) not in _START_EVENTS:
            return None
        cold_start = self.starts.observe(event, now)
        if cold_start is None or cold_start.pool not in self.rules:
            return None
        self.autoscaler.record_cold_start(cold_start.pool, cold_start.took_ns)
        return cold_start

    def change_floors(self, floors: Mapping[PoolName, int], now: Instant) -> list[ScaleDecision]:
        """Replaces the minimum counts set by operators. Returns the decisions that result from it."""
        return [] if floors == self.autoscaler.floors else self._decided(self.autoscaler.change_floors(floors), now)

    def reset(self) -> None:
        """Forgets figures and starts, because another process decides now."""
        self.figures, self.starts = (), Starts()

    def tick(self, summary: Summary, now: Instant) -> list[ScaleDecision]:
        """Returns the decisions at the end of a period."""
        self.starts.reconcile(summary.endpoints, now)
        self.figures = self._with_starts(self._demand.collect(summary, now), now)
        return self._decided(self.autoscaler.tick(self.figures, now), now)

    def tick_early(self, summary: Summary, now: Instant) -> list[ScaleDecision]:
        """Returns decisions between two periods, but only for pools without ready or starting endpoints."""
        figures = self._with_starts(self._demand.peek(summary, now, self.period_ns), now)
        if not self.figures:
            self.figures = figures
        empty = [each for each in figures if not each.ready and not each.warming]
        return self._decided(self.autoscaler.tick(empty, now, early=True), now)

    def _with_starts(self, figures: Sequence[ScalingMetrics], now: Instant) -> tuple[ScalingMetrics, ...]:
        return tuple(each._replace(starting_ns=self.starts.age_ns(each.pool, now)) for each in figures)

    def _decided(self, decisions: list[ScaleDecision], now: Instant) -> list[ScaleDecision]:
        for pool, endpoints in self.desired().items():
            self.starts.set_desired(pool, endpoints, now)
        return decisions


def _can_scale_to_zero(rules: Mapping[PoolName, ScalingRules]) -> bool:
    """Returns whether any pool may have zero endpoints."""
    return any(not each.endpoints_min for each in rules.values())


def _is_endpoint_missing(command: Command) -> bool:
    return isinstance(command, Hold) or (isinstance(command, End) and command.outcome is Outcome.NO_ENDPOINTS)
