"""What gives way while there is more than can be served?

Requests that may use the same pools share one fate: their pressure is measured, and ladders and a shedder act on it.
What happens at other pools is no concern of theirs. Nor is it a concern of a band how long those behind it wait, since
they do so for its sake: each band has a ladder of its own, which goes by the pressure of this band and of those before
it, and whatever is given up in a band is given up in those behind it as well.

Pressure is measured every period, and only as long as anybody waits who has a target, or something is given up; at all
other times there is nothing to do and no wake-up is asked for.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from headgate.core.admission.feasibility import wait_ns
from headgate.core.admission.gate import Refusal, drain
from headgate.core.admission.shedding import MILLION, Chances, Shedder, rank
from headgate.core.counters import RouteCounter
from headgate.core.degradation import Given, Ladder, allows_hedging, given, lowers_rung
from headgate.core.pressure import Pressure, kv_promised, pressing, standing
from headgate.core.queues.bands import Backlog
from headgate.core.queues.floors import Floors
from headgate.core.retry_budget import RetryBudget
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.rungs import lowered, usable
from headgate.core.rules import Rules
from headgate.core.state import Request
from headgate.core.summary import GivenUp
from headgate.model.outcome import Outcome
from headgate.model.policy import Promise
from headgate.model.units import BYTES_PER_TOKEN, ClassName, Duration, Instant, PoolName, after, seconds

_ROUTES_MAX: Final = 256
"""Of so many sets of pools the state is kept, whether or not it matters at the moment."""


class _Band:
    """What is felt by a band and those before it, and what it gives up."""

    __slots__ = ("ladder", "pressure")

    def __init__(self, ladder: Ladder) -> None:
        self.pressure = Pressure()
        self.ladder = ladder


class _Route:
    """What is known of those who may use the same pools."""

    __slots__ = ("_pinned", "bands", "felt_from", "pools", "shedder", "waiting")

    def __init__(self, pools: tuple[PoolName, ...], rules: Rules) -> None:
        self.pools = pools
        self.shedder = Shedder(rules.policy.shedding)
        self.bands: dict[int, _Band] = {}
        """All of the policy's, in the order of priority."""
        self.felt_from: dict[int, list[Pressure]] = {}
        """What those of a band are a part of: the pressure of their own band and of each one behind it."""
        self.waiting = 0
        """How many requests with a target wait."""
        self._pinned: int | None = None
        self._take(rules)

    def pin(self, levels: Mapping[PoolName, int]) -> None:
        """An operator keeps these pools at these levels; who may use several of them gives up the most."""
        level = max((levels[pool] for pool in self.pools if pool in levels), default=None)
        if level != self._pinned:
            self._pinned = level
            for each in self.bands.values():
                each.ladder.pin(level)

    def change_rules(self, rules: Rules) -> None:
        self.shedder.change_rules(rules.policy.shedding)
        self.waiting = 0
        self._take(rules)

    def _take(self, rules: Rules) -> None:
        before, bands = self.bands, _bands(rules)
        self.bands = {
            band: _Band(before[band].ladder if band in before else Ladder(rules.policy.ladder)) for band in bands
        }
        for each in self.bands.values():
            each.ladder.change_rules(rules.policy.ladder)
            if self._pinned is not None:
                each.ladder.pin(self._pinned)
        self.felt_from = {
            band: [self.bands[each].pressure for each in bands[place:]] for place, band in enumerate(bands)
        }

    def level(self, band: int) -> int:
        return max((each.ladder.level for number, each in self.bands.items() if number <= band), default=0)

    def refuses(self, request: Request) -> bool:
        band, standing = request.service_class.band, request.standing
        return any(each.ladder.refuses(standing) for number, each in self.bands.items() if number <= band)

    @property
    def highest_level(self) -> int:
        return max((each.ladder.level for each in self.bands.values()), default=0)

    @property
    def gives_way(self) -> bool:
        return self.shedder.fraction > 0 or self.highest_level > 0

    @property
    def moves(self) -> bool:
        return self.gives_way or any(each.ladder.moves for each in self.bands.values())

    def counter(self, now: Instant) -> RouteCounter:
        ladders = tuple(each.ladder.counter(band, now) for band, each in self.bands.items())
        pressure, ranks = self.shedder.remembered()
        return RouteCounter(self.pools, ladders, self.shedder.fraction, pressure, ranks)

    def restore(self, counter: RouteCounter, now: Instant) -> None:
        self.shedder.restore(fraction=counter.fraction, pressure=counter.pressure, ranks=counter.ranks)
        for each in counter.ladders:
            if each.band in self.bands:
                self.bands[each.band].ladder.restore(each, now)

    @property
    def matters(self) -> bool:
        return self.waiting > 0 or self.gives_way


def _bands(rules: Rules) -> list[int]:
    return sorted({each.band for each in rules.policy.classes})


class Overload:
    __slots__ = (
        "_chances",
        "_climbs",
        "_cost_bands",
        "_given",
        "_giving_way",
        "_pins",
        "_routes",
        "_rules",
        "_sheds",
        "_tick_at",
        "_waiting",
    )

    def __init__(self, rules: Rules) -> None:
        self._routes: dict[tuple[PoolName, ...], _Route] = {}
        self._chances = Chances()
        self._pins: dict[PoolName, int] = {}
        self._tick_at: Instant | None = None
        self._waiting = 0
        """How many requests with a target wait."""
        self._giving_way = False
        self._take(rules)

    def change_rules(self, rules: Rules, waiting: Iterable[Request]) -> None:
        """Levels and fractions outlast a policy. Those who wait are forgotten here, and are to be queued again."""
        self._take(rules)
        self._waiting = 0
        for request in waiting:
            request.pressing = 0
        self._routes = {pools: route for pools, route in self._routes.items() if route.gives_way}
        for route in self._routes.values():
            route.change_rules(rules)

    def _take(self, rules: Rules) -> None:
        self._rules = rules
        self._sheds, self._climbs = rules.policy.shedding.enabled, rules.policy.ladder.enabled
        self._given: dict[tuple[ClassName, int], Given] = {}
        keeping = {each.band for each in rules.policy.classes if each.promise is not Promise.COST}
        self._cost_bands = [band for band in _bands(rules) if band not in keeping]

    def _route(self, pools: tuple[PoolName, ...]) -> _Route:
        if (route := self._routes.get(pools)) is None:
            if len(self._routes) >= _ROUTES_MAX:
                self._routes = {name: each for name, each in self._routes.items() if each.matters}
            route = self._routes[pools] = _Route(pools, self._rules)
            if self._pins:
                route.pin(self._pins)
                self._giving_way = self._giving_way or route.gives_way
        return route

    def pin(self, levels: dict[PoolName, int], fleet: Fleet, floors: Floors) -> None:
        """What operators have ordered, in place of what they had."""
        if levels != self._pins:
            self._pins = levels
            for route in self._routes.values():
                route.pin(levels)
            self._give_way(fleet, floors)

    # For those who look

    def allows_hedging(self, pools: tuple[PoolName, ...]) -> bool:
        route = self._routes.get(pools)
        return route is None or allows_hedging(route.highest_level)

    def given_up(self) -> Iterator[GivenUp]:
        found: dict[PoolName, tuple[int, int]] = {}
        for route in self._routes.values():
            for pool in route.pools:
                level, fraction = found.get(pool, (0, 0))
                found[pool] = (max(level, route.highest_level), max(fraction, route.shedder.fraction))
        return (GivenUp(pool, level, fraction) for pool, (level, fraction) in found.items())

    # Arrival

    def degrade(self, request: Request, fleet: Fleet, *, level_min: int = 0) -> None:
        """Takes from a request what its class gives up at the present level of the pools that it may use.

        Or at a higher one, because of who asks.
        """
        request.level = 0
        if self._pins:
            self._route(request.pools)
        route = self._routes.get(request.pools) if self._giving_way else None
        level = max(level_min, 0 if route is None else route.level(request.service_class.band))
        if not level:
            return
        key = (request.service_class.name, level)
        if (found := self._given.get(key)) is None:
            found = self._given[key] = given(request.service_class, level)
        pools = self._pools(request, found, level)
        if not fleet.live(pools):
            pools = request.pools
        if found.service_class is not request.service_class or pools != request.pools:
            request.level = level
        if found.model is not None and pools != request.pools:
            request.model = found.model
        request.service_class, request.pools = found.service_class, pools

    def _pools(self, request: Request, found: Given, level: int) -> tuple[PoolName, ...]:
        """Where it is served at this level; where it was, if its class may not use those pools."""
        pools: tuple[PoolName, ...] = ()
        if found.model is not None and (model := self._rules.models.get(found.model)) is not None:
            pools = usable(model.pools, request.service_class)
        elif lowers_rung(request.service_class, level) and self._is_easy(request):
            model = self._rules.models[request.model]
            pools = usable(lowered(request.pools, model), request.service_class)
        return pools or request.pools

    def _is_easy(self, request: Request) -> bool:
        return request.ticket.prompt_bytes // BYTES_PER_TOKEN <= self._rules.policy.ladder.easy_tokens

    def refusal(
        self, request: Request, backlog: Backlog, fleet: Fleet, budget: RetryBudget, now: Instant
    ) -> Refusal | None:
        """Whether it is refused so that others are served; its caller is told how long what waits takes to drain."""
        if not self._sheds and not self._climbs:
            return None
        route = self._route(request.pools)
        plan = self._rules.tenants[request.ticket.tenant].plan
        over_share = self.stand(request, backlog, fleet)
        if self._giving_way and route.refuses(request):
            who = f'plan "{plan}"' + (" with more than their share waiting" if over_share else "")
            why = f"at level {route.level(request.service_class.band)} of the ladder requests of {who} are refused"
        elif (
            self._sheds
            and self._is_shed(request, route, now, over_share=over_share)
            and not self._floor_waits(request, backlog, fleet)
        ):
            percent = -(-route.shedder.fraction * 100 // MILLION)
            why = f"{percent} % of what arrives is refused, the lowest priority first"
        else:
            return None
        wait = drain(request, backlog, budget, now)
        reason = f"pool {', '.join(route.pools)} is overloaded, and {why}; wait {seconds(wait)}"
        return Refusal(Outcome.SHED, reason, request.service_class, wait)

    def stand(self, request: Request, backlog: Backlog, fleet: Fleet) -> bool:
        """Notes where it stands among those who may be refused; whether its tenant is over its share."""
        over_share = self._is_over_share(request, backlog, fleet)
        request.standing = standing(self._rules.tenants[request.ticket.tenant].plan, over_share=over_share)
        return over_share

    def _is_over_share(self, request: Request, backlog: Backlog, fleet: Fleet) -> bool:
        """Whether its tenant has more waiting than others, and more than is served in half of the time it has.

        Whoever asks for less than its share has now and then a little more waiting than the others, but never for long.
        """
        if not backlog.work.is_over_share(request, self._rules.weight(request.account)):
            return False
        if fleet.learning(request.pools):
            return False
        in_time = request.begin_ns_max or request.service_class.queue_wait_ns_max
        return wait_ns(request, backlog, fleet, self._rules, enough=Duration(in_time // 2)) is not None

    def _is_shed(self, request: Request, route: _Route, now: Instant, *, over_share: bool) -> bool:
        plan = self._rules.tenants[request.ticket.tenant].plan
        chance = self._chances.of(request.account, now)
        request.shed_rank = rank(band=request.service_class.band, over_share=over_share, plan=plan, chance=chance)
        return route.shedder.refuses(request.shed_rank)

    def note_arrival(self, request: Request, shed_rank: int) -> None:
        """Remembers the rank of a request that was judged: the next ones are compared with it."""
        self._routes[request.pools].shedder.note(shed_rank)

    def _floor_waits(self, request: Request, backlog: Backlog, fleet: Fleet) -> bool:
        """Whether its band has a floor, and less waits in it than the floor serves in time."""
        service_class = request.service_class
        floor = self._rules.floors.get(service_class.band, 0)
        in_time = service_class.ttft_ns or service_class.queue_wait_ns_max
        waiting = backlog.work.in_band(request.pools, service_class.band)
        return 100 * waiting < floor * in_time * fleet.live(request.pools)

    # Queue

    def queued(self, request: Request) -> None:
        if (self._sheds or self._climbs) and (amount := pressing(request)):
            request.pressing = amount
            route = self._route(request.pools)
            route.waiting += 1
            self._waiting += 1
            for pressure in route.felt_from[request.service_class.band]:
                pressure.queued(request)

    def left(self, request: Request) -> None:
        """It waits no longer."""
        if request.pressing:
            route = self._routes[request.pools]
            route.waiting -= 1
            self._waiting -= 1
            for pressure in route.felt_from[request.service_class.band]:
                pressure.left(request)
            request.pressing = 0

    def lost(self, request: Request) -> None:
        """It could not be served in time."""
        if (route := self._routes.get(request.pools)) is not None:
            for pressure in route.felt_from[request.service_class.band]:
                pressure.lost(request)

    def went(self, request: Request) -> None:
        """It was sent, having waited."""
        if (route := self._routes.get(request.pools)) is not None:
            for pressure in route.felt_from[request.service_class.band]:
                pressure.went(request)

    # Every period

    def next_wakeup(self) -> Instant | None:
        return self._tick_at

    def watch(self, now: Instant) -> None:
        """Sees to it that the next period ends, if there is any reason to measure."""
        if not self._waiting and not self._giving_way:
            self._tick_at = None
        elif self._tick_at is None:
            self._tick_at = after(now, self._rules.policy.shedding.period_ns)

    def tick(self, fleet: Fleet, floors: Floors, now: Instant) -> None:
        """Ends a period if it is over."""
        if self._tick_at is None or now < self._tick_at:
            return
        self._tick_at = after(now, self._rules.policy.shedding.period_ns)
        for route in self._routes.values():
            if route.matters:
                self._end_period(route, fleet, now)
        self._give_way(fleet, floors)

    def _give_way(self, fleet: Fleet, floors: Floors) -> None:
        """Looks at what all give up, and holds bands at their floors, or lets them go."""
        self._giving_way = False
        held: dict[PoolName, frozenset[int]] = {}
        for route in self._routes.values():
            if route.gives_way:
                self._giving_way = True
                if bands := self._held(route):
                    held.update(dict.fromkeys(route.pools, bands))
        if held != floors.held:
            # Who was held may go where there is room already.
            fleet.changed.update(dict.fromkeys(floors.held))
            floors.held = held

    def _end_period(self, route: _Route, fleet: Fleet, now: Instant) -> None:
        period = self._rules.policy.shedding.period_ns
        endpoints, kv, everybody = fleet.live(route.pools), kv_promised(fleet, route.pools), 0
        learning = fleet.learning(route.pools)
        for band in route.bands.values():
            felt = band.pressure.measure(period, endpoints=endpoints, kv=kv, learning=learning)
            everybody = felt[-1]
            if self._climbs:
                band.ladder.tick(felt, now)
        if self._sheds:
            route.shedder.steer(everybody)

    # For a successor

    def counters(self, now: Instant) -> tuple[RouteCounter, ...]:
        """Of those who give up something, or are about to."""
        return tuple(route.counter(now) for route in self._routes.values() if route.moves)

    def restore(
        self, counters: Iterable[RouteCounter], fleet: Fleet, floors: Floors, *, then: Instant, now: Instant
    ) -> None:
        for each in counters:
            self._route(each.pools).restore(each, then)
        self._give_way(fleet, floors)
        self.watch(now)

    def _held(self, route: _Route) -> frozenset[int]:
        """Bands that get their floor and no more, because one before them is pressed."""
        holding = [number for number, band in route.bands.items() if band.ladder.holds_at_floor]
        return frozenset(band for band in self._cost_bands if holding and min(holding) <= band)
