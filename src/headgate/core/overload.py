"""Overload control: decides which requests are degraded or rejected.

Requests that share a set of pools form a group. Pressure is measured per group, and degradation and load shedding react
to it. Other pools have no influence. Requests in lower priority bands wait because of the bands above them, so each
band has a degradation level of its own that depends on the pressure of that band and of the bands above it. A level
also applies to all bands below.

Pressure is measured every period while a request with a target is queued or any degradation or shedding is active.
Otherwise nothing is computed and no timer is set.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from headgate.core.admission.feasibility import wait_ns
from headgate.core.admission.gate import Rejection, class_drain_time
from headgate.core.admission.shedding import MILLION, Shedder, ShedDraws, rank
from headgate.core.counters import PoolGroupCounter
from headgate.core.degradation import Degradation, DegradedClass, allows_hedging, degraded_class, lowers_tier
from headgate.core.pressure import Pressure, added_pressure, kv_reserved_permille, sheddability
from headgate.core.queues.backlog import Backlog
from headgate.core.queues.min_shares import MinShares
from headgate.core.request_state import Request
from headgate.core.retry_budget import RetryBudget
from headgate.core.routing.fleet import FleetState
from headgate.core.routing.model_routes import route_pools
from headgate.core.routing.model_tiers import allowed_pools, next_lower_tier
from headgate.core.rules import Rules
from headgate.core.summary import PoolDegradation
from headgate.model.outcome import Outcome
from headgate.model.policy import OptimizationGoal
from headgate.model.units import BYTES_PER_TOKEN, ClassName, Duration, Instant, PoolName, after, format_seconds

_GROUPS_MAX: Final = 256
"""Maximum number of pool sets whose state is kept even though it currently has no effect."""


class _Band:
    """Pressure on a priority band and the bands above it, and the resulting degradation."""

    __slots__ = ("degradation", "pressure")

    def __init__(self, ladder: Degradation) -> None:
        self.pressure = Pressure()
        self.degradation = ladder


class _PoolGroup:
    """Overload state of the requests that share a set of pools."""

    __slots__ = ("_pinned", "bands", "pools", "pressures_from", "shedder", "waiting")

    def __init__(self, pools: tuple[PoolName, ...], rules: Rules) -> None:
        self.pools = pools
        self.shedder = Shedder(rules.policy.shedding)
        self.bands: dict[int, _Band] = {}
        """All priority bands of the policy, highest priority first."""
        self.pressures_from: dict[int, list[Pressure]] = {}
        """For each band, the pressures to which its requests contribute: its own and those of all lower bands."""
        self.waiting = 0
        """Number of queued requests with a target."""
        self._pinned: int | None = None
        self._apply_rules(rules)

    def pin(self, levels: Mapping[PoolName, int]) -> None:
        """Pins the degradation level. If the pools have different pinned levels, the highest applies."""
        level = max((levels[pool] for pool in self.pools if pool in levels), default=None)
        if level != self._pinned:
            self._pinned = level
            for each in self.bands.values():
                each.degradation.pin(level)

    def change_rules(self, rules: Rules) -> None:
        self.shedder.change_rules(rules.policy.shedding)
        self.waiting = 0
        self._apply_rules(rules)

    def _apply_rules(self, rules: Rules) -> None:
        before, bands = self.bands, _bands(rules)
        self.bands = {
            band: _Band(before[band].degradation if band in before else Degradation(rules.policy.degradation))
            for band in bands
        }
        for each in self.bands.values():
            each.degradation.change_rules(rules.policy.degradation)
            if self._pinned is not None:
                each.degradation.pin(self._pinned)
        self.pressures_from = {
            band: [self.bands[each].pressure for each in bands[place:]] for place, band in enumerate(bands)
        }

    def level(self, band: int) -> int:
        return max((each.degradation.level for number, each in self.bands.items() if number <= band), default=0)

    def rejects(self, request: Request) -> bool:
        band, standing = request.service_class.band, request.sheddability
        return any(each.degradation.rejects(standing) for number, each in self.bands.items() if number <= band)

    @property
    def highest_level(self) -> int:
        return max((each.degradation.level for each in self.bands.values()), default=0)

    @property
    def is_degraded(self) -> bool:
        return self.shedder.fraction > 0 or self.highest_level > 0

    @property
    def is_changing(self) -> bool:
        return self.is_degraded or any(each.degradation.is_active for each in self.bands.values())

    def counter(self, now: Instant) -> PoolGroupCounter:
        ladders = tuple(each.degradation.counter(band, now) for band, each in self.bands.items())
        pressure, ranks = self.shedder.recent()
        return PoolGroupCounter(self.pools, ladders, self.shedder.fraction, pressure, ranks)

    def restore(self, counter: PoolGroupCounter, now: Instant) -> None:
        self.shedder.restore(fraction=counter.fraction, pressure=counter.pressure, ranks=counter.ranks)
        for each in counter.degradations:
            if each.band in self.bands:
                self.bands[each.band].degradation.restore(each, now)

    @property
    def is_active(self) -> bool:
        return self.waiting > 0 or self.is_degraded


def _bands(rules: Rules) -> list[int]:
    return sorted({each.band for each in rules.policy.classes})


class Overload:
    __slots__ = (
        "_cost_bands",
        "_degraded_classes",
        "_degrades",
        "_draws",
        "_groups",
        "_is_degraded",
        "_pins",
        "_rules",
        "_sheds",
        "_waiting",
        "tick_at",
    )

    def __init__(self, rules: Rules) -> None:
        self._groups: dict[tuple[PoolName, ...], _PoolGroup] = {}
        self._draws = ShedDraws()
        self._pins: dict[PoolName, int] = {}
        self.tick_at: Instant | None = None
        """End of the current period. None if there is no reason to measure."""
        self._waiting = 0
        """Number of queued requests with a target."""
        self._is_degraded = False
        self._apply_rules(rules)

    def change_rules(self, rules: Rules, waiting: Iterable[Request]) -> None:
        """Applies new rules and keeps levels and shed fractions. The caller must requeue waiting requests."""
        self._apply_rules(rules)
        self._waiting = 0
        for request in waiting:
            request.added_pressure = 0
        self._groups = {pools: route for pools, route in self._groups.items() if route.is_degraded}
        for route in self._groups.values():
            route.change_rules(rules)

    def _apply_rules(self, rules: Rules) -> None:
        self._rules = rules
        self._sheds, self._degrades = rules.policy.shedding.enabled, rules.policy.degradation.enabled
        self._degraded_classes: dict[tuple[ClassName, tuple[PoolName, ...], int], DegradedClass] = {}
        keeping = {each.band for each in rules.policy.classes if each.optimize_for is not OptimizationGoal.COST}
        self._cost_bands = [band for band in _bands(rules) if band not in keeping]

    def _group(self, pools: tuple[PoolName, ...]) -> _PoolGroup:
        if (route := self._groups.get(pools)) is None:
            if len(self._groups) >= _GROUPS_MAX:
                self._groups = {name: each for name, each in self._groups.items() if each.is_active}
            route = self._groups[pools] = _PoolGroup(pools, self._rules)
            if self._pins:
                route.pin(self._pins)
                self._is_degraded = self._is_degraded or route.is_degraded
        return route

    def pin(self, levels: dict[PoolName, int], fleet: FleetState, min_shares: MinShares) -> None:
        """Replaces the levels pinned by operators."""
        if levels != self._pins:
            self._pins = levels
            for route in self._groups.values():
                route.pin(levels)
            self._update_degradation(fleet, min_shares)

    # Observation

    def allows_hedging(self, pools: tuple[PoolName, ...]) -> bool:
        route = self._groups.get(pools)
        return route is None or allows_hedging(route.highest_level)

    def is_under_pressure(self, pools: tuple[PoolName, ...]) -> bool:
        """Returns whether requests that may use any of these pools are degraded or shed."""
        return self._is_degraded and any(
            each.is_degraded and not frozenset(pools).isdisjoint(each.pools) for each in self._groups.values()
        )

    def degradation_by_pool(self) -> Iterator[PoolDegradation]:
        found: dict[PoolName, tuple[int, int]] = {}
        for route in self._groups.values():
            for pool in route.pools:
                level, fraction = found.get(pool, (0, 0))
                found[pool] = (max(level, route.highest_level), max(fraction, route.shedder.fraction))
        return (PoolDegradation(pool, level, fraction) for pool, (level, fraction) in found.items())

    # Arrival

    def degrade(self, request: Request, fleet: FleetState, level_min: int = 0) -> None:
        """Degrades a request to the current level of its pools, or to `level_min` if that is higher."""
        request.level = 0
        if not level_min and not self._is_degraded and not self._pins:
            return
        if self._pins:
            self._group(request.pools)
        route = self._groups.get(request.pools) if self._is_degraded else None
        level = max(level_min, 0 if route is None else route.level(request.service_class.band))
        if not level:
            return
        # The pools of a class depend on the tenant if hosted providers are excluded.
        key = (request.service_class.name, request.service_class.pools, level)
        if (found := self._degraded_classes.get(key)) is None:
            found = self._degraded_classes[key] = degraded_class(request.service_class, level)
        pools = self._pools(request, found, level)
        if not fleet.live_count(pools):
            pools = request.pools
        if found.service_class is not request.service_class or pools != request.pools:
            request.level = level
        if found.model is not None and pools != request.pools:
            request.model = found.model
        request.service_class, request.pools = found.service_class, pools

    def _pools(self, request: Request, found: DegradedClass, level: int) -> tuple[PoolName, ...]:
        """Returns the pools that serve the request at this level, or its own pools if its class may not use those."""
        pools: tuple[PoolName, ...] = ()
        if found.model is not None and (model := self._rules.models.get(found.model)) is not None:
            pools = allowed_pools(model.pools, request.service_class)
        elif lowers_tier(request.service_class, level) and self._is_easy(request):
            model = self._rules.models[request.model]
            pools = allowed_pools(next_lower_tier(request.pools, model), request.service_class)
            if request.route:
                routed = route_pools(model, request.route)
                pools = tuple(each for each in pools if each in routed)
        return pools or request.pools

    def _is_easy(self, request: Request) -> bool:
        return (
            request.ticket.prompt_bytes // BYTES_PER_TOKEN <= self._rules.policy.degradation.downgrade_prompt_tokens_max
        )

    def rejection(
        self, request: Request, backlog: Backlog, fleet: FleetState, retry_budget: RetryBudget, now: Instant
    ) -> Rejection | None:
        """Returns a rejection, with the time the queue needs to drain, if the request must be shed."""
        if not self._sheds and not self._degrades:
            return None
        route = self._group(request.pools)
        over_share = self.set_sheddability(request, backlog, fleet)
        if not self._sheds and not self._is_degraded:
            return None
        if self._is_degraded and route.rejects(request):
            plan = self._rules.tenants[request.ticket.tenant].plan
            who = f'plan "{plan}"' + (" from tenants over their fair share" if over_share else "")
            why = f"at degradation level {route.level(request.service_class.band)} requests on {who} are rejected"
        elif (
            self._sheds
            and self._is_shed(request, route, now, over_share=over_share)
            and not self._is_within_min_share(request, backlog, fleet)
        ):
            percent = -(-route.shedder.fraction * 100 // MILLION)
            why = f"{percent} % of arriving requests are rejected, lowest priority first"
        else:
            return None
        wait = class_drain_time(request, backlog, retry_budget, now)
        reason = f"pool {', '.join(route.pools)} is overloaded and {why}; retry in {format_seconds(wait)}"
        return Rejection(Outcome.SHED, reason, request.service_class, wait)

    def set_sheddability(self, request: Request, backlog: Backlog, fleet: FleetState) -> bool:
        """Sets the request's sheddability and returns whether its tenant is over its fair share."""
        # Without queued requests, no tenant is over its share.
        over_share = backlog.length > 0 and self._is_over_share(request, backlog, fleet)
        request.sheddability = sheddability(self._rules.tenants[request.ticket.tenant].plan, over_share)
        return over_share

    def _is_over_share(self, request: Request, backlog: Backlog, fleet: FleetState) -> bool:
        """Returns whether the tenant has more work queued than others, and more than can be served in half of its
        target time.

        A tenant below its fair share sometimes has slightly more queued than the others, but never for long.
        """
        if not backlog.work.is_over_share(request, self._rules.weight(request.account)):
            return False
        if fleet.is_learning(request.pools):
            return False
        in_time = request.overload_ttft_ns or request.service_class.queue_wait_ns_max
        return wait_ns(request, backlog, fleet, self._rules, threshold_ns=Duration(in_time // 2)) is not None

    def _is_shed(self, request: Request, route: _PoolGroup, now: Instant, *, over_share: bool) -> bool:
        plan = self._rules.tenants[request.ticket.tenant].plan
        chance = self._draws.draw(request.account, now)
        request.shed_rank = rank(band=request.service_class.band, over_share=over_share, plan=plan, draw=chance)
        return route.shedder.rejects(request.shed_rank)

    def record_arrival(self, request: Request, shed_rank: int) -> None:
        """Records the rank of a request for comparison with later arrivals."""
        self._groups[request.pools].shedder.record_arrival(shed_rank)

    def _is_within_min_share(self, request: Request, backlog: Backlog, fleet: FleetState) -> bool:
        """Returns whether the band has a minimum share and its queued work can be served in time with that share."""
        service_class = request.service_class
        floor = self._rules.min_shares.get(service_class.band, 0)
        in_time = service_class.ttft_ns or service_class.queue_wait_ns_max
        if request.e2e_ns is not None:
            in_time = request.overload_ttft_ns or in_time
        waiting = backlog.work.in_band(request.pools, service_class.band)
        return 100 * waiting < floor * in_time * fleet.live_count(request.pools)

    # Queue

    def enqueued(self, request: Request) -> None:
        if (self._sheds or self._degrades) and (amount := added_pressure(request)):
            request.added_pressure = amount
            route = self._group(request.pools)
            route.waiting += 1
            self._waiting += 1
            for pressure in route.pressures_from[request.service_class.band]:
                pressure.enqueued(request)

    def dequeued(self, request: Request) -> None:
        """Removes a request that is no longer waiting."""
        if request.added_pressure:
            route = self._groups[request.pools]
            route.waiting -= 1
            self._waiting -= 1
            for pressure in route.pressures_from[request.service_class.band]:
                pressure.dequeued(request)
            request.added_pressure = 0

    def record_lost(self, request: Request) -> None:
        """Records a request that could not be served in time."""
        if (route := self._groups.get(request.pools)) is not None:
            for pressure in route.pressures_from[request.service_class.band]:
                pressure.record_lost(request)

    def record_dispatched(self, request: Request) -> None:
        """When a request is sent, records how long it was queued."""
        route = self._groups.get(request.pools)
        if route is not None and (ttft_ns := request.overload_ttft_ns):
            for pressure in route.pressures_from[request.service_class.band]:
                pressure.record_dispatched(request, ttft_ns)

    # Periodic measurement

    def watch(self, now: Instant) -> None:
        """Schedules the end of the next period if there is a reason to measure."""
        if not self._waiting and not self._is_degraded:
            self.tick_at = None
        elif self.tick_at is None:
            self.tick_at = after(now, self._rules.policy.shedding.period_ns)

    def tick(self, fleet: FleetState, min_shares: MinShares, now: Instant) -> None:
        """Ends the period if it is over."""
        if self.tick_at is None or now < self.tick_at:
            return
        self.tick_at = after(now, self._rules.policy.shedding.period_ns)
        for route in self._groups.values():
            if route.is_active:
                self._end_period(route, fleet, now)
        self._update_degradation(fleet, min_shares)

    def _update_degradation(self, fleet: FleetState, min_shares: MinShares) -> None:
        """Updates which priority bands are limited to their minimum share."""
        self._is_degraded = False
        held: dict[PoolName, frozenset[int]] = {}
        for route in self._groups.values():
            if route.is_degraded:
                self._is_degraded = True
                if bands := self._limited_bands(route):
                    held.update(dict.fromkeys(route.pools, bands))
        if held != min_shares.limited_bands:
            # Requests that are no longer limited may fit into existing capacity.
            fleet.dispatchable.update(dict.fromkeys(min_shares.limited_bands))
            min_shares.limited_bands = held

    def _end_period(self, route: _PoolGroup, fleet: FleetState, now: Instant) -> None:
        period = self._rules.policy.shedding.period_ns
        endpoints, kv, everybody = fleet.live_count(route.pools), kv_reserved_permille(fleet, route.pools), 0
        learning = fleet.is_learning(route.pools)
        for band in route.bands.values():
            felt = band.pressure.measure(period, endpoints=endpoints, kv=kv, learning=learning)
            everybody = felt[-1]
            if self._degrades:
                band.degradation.tick(felt, now)
        if self._sheds:
            route.shedder.update(everybody)

    # Snapshot

    def counters(self, now: Instant) -> tuple[PoolGroupCounter, ...]:
        """Returns the state of pool sets whose level is above 0 or may be about to rise."""
        return tuple(route.counter(now) for route in self._groups.values() if route.is_changing)

    def restore(
        self,
        counters: Iterable[PoolGroupCounter],
        fleet: FleetState,
        min_shares: MinShares,
        *,
        taken_at: Instant,
        now: Instant,
    ) -> None:
        for each in counters:
            self._group(each.pools).restore(each, taken_at)
        self._update_degradation(fleet, min_shares)
        self.watch(now)

    def _limited_bands(self, route: _PoolGroup) -> frozenset[int]:
        """Returns the bands limited to their minimum share because a higher band is under pressure."""
        holding = [number for number, band in route.bands.items() if band.degradation.limits_to_min_share]
        return frozenset(band for band in self._cost_bands if holding and min(holding) <= band)
