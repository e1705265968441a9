"""What is known of engines, requests and attempts, and what follows from it?

Books in the plainest way: lists that are searched from end to end, no heaps, no sums that are carried on, no turns.
How much a request is predicted to take is read from the scheduler, since that is tested elsewhere. Everything that
follows from it is reckoned here once more: what has been promised at an endpoint, who fits there, how loaded it is, how
long a newcomer would wait, which band is due, and what each tenant has been charged.
"""

from dataclasses import dataclass, field
from itertools import combinations
from math import isqrt

from headgate.core.cost import cost_ns
from headgate.core.events import EndpointMeasured
from headgate.core.measure import soonest_ns
from headgate.core.routing.rungs import narrowed
from headgate.core.routing.turnover import Turnover
from headgate.core.rules import Rules
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import (
    ClassName,
    Duration,
    EndpointId,
    Instant,
    ModelName,
    PoolName,
    RequestId,
    TenantId,
    after,
)

NEVER = Instant(2**63)
SERVING = (EndpointState.READY, EndpointState.TRIAL)


@dataclass(eq=False)
class Engine:
    """An endpoint in our books. One that left and came again is another one."""

    id: EndpointId
    pool: PoolName
    limit: int
    last_heard: Instant
    quiet_since: Instant
    """When the present silence of its streams began to count."""
    device: str = ""
    zone: str = ""
    leaving: bool = False
    state: EndpointState = EndpointState.WARMING
    failures: int = 0
    ejections: int = 0
    returns_at: Instant | None = None
    itl_ns: int = 0
    decode_percent: int = 100
    prefill_percent: int = 100
    """How fast it is beside what was said of it: learned by the scheduler, read here."""
    talks: bool = False
    silent: bool = False
    """Whether its engine told of itself, and whether it has stopped."""
    silent_at: Instant | None = None
    """When it will have, unless it speaks before."""
    foreign: int = 0
    kv_foreign: int = 0
    passed_over: bool = False
    limit_percent: int = 100
    grown_percent: int = 100
    grows_at: Instant | None = None
    ready_at: Instant = Instant(0)
    """How far its slow start is, when it goes on, and when it began."""

    queued: list[int] = field(default_factory=list[int])
    """Running requests in its last reports, if all of these also had waiting ones and room in the KV cache."""
    sequences: int | None = None
    """The limit of running requests that was learned from these reports."""

    @property
    def places(self) -> int:
        """Number of requests that it accepts at once."""
        percent = min(self.limit_percent, self.grown_percent)
        return min(self.limit, max(1, self.limit * percent // 100))

    def own_places(self, places: int) -> int:
        """The number of these places that may be filled, given the learned limit."""
        return places if self.sequences is None else min(places, self.sequences + max(4, self.sequences // 4))

    def report(self, said: EndpointMeasured) -> None:
        """Updates the learned limit from one report of the engine."""
        if self.state is not EndpointState.READY:
            self.queued, self.sequences = [], None
        if self.sequences is not None and said.running > self.sequences:
            self.sequences = said.running if said.waiting else None
        has_room = said.kv_percent is not None and said.kv_percent <= 80
        is_full = said.waiting and said.running and has_room and not self.foreign
        self.queued = [*self.queued, said.running] if is_full else []
        if self.queued and max(self.queued) - min(self.queued) > max(1, 5 * max(self.queued) // 100):
            self.queued = self.queued[-1:]
        if self.sequences is None and len(self.queued) >= 4:
            self.sequences = max(self.queued)

    @property
    def live(self) -> bool:
        return self.state in SERVING and not self.leaving

    @property
    def warming(self) -> bool:
        return self.state is EndpointState.WARMING and not self.leaving


@dataclass
class Prediction:
    """What a request is thought to take."""

    prompt_tokens: int
    cached_tokens: int
    """What some endpoint probably holds of the prompt."""
    output_tokens: int = 0
    output_tokens_most: int = 0
    cost_ns: int = 0


@dataclass(eq=False)
class Asked:
    """A request in our books, from its arrival to its end."""

    ticket: Ticket
    service_class: ServiceClass
    pools: tuple[PoolName, ...]
    model: ModelName
    account: TenantId
    sequence: int
    queued_since: Instant
    predicted: Prediction
    long: bool = False
    expires: Instant = NEVER
    """When its class gives it up, if it still waits then."""
    target: Instant | None = None
    """By when its answer should begin by its class, from its arrival on: what it is ordered by."""
    promised: Instant | None = None
    """The same from when it was held no longer: after which it is not worth sending."""
    begin_by: Instant | None = None
    complete_by: Instant | None = None
    queued: bool = True
    waited: int = 0
    attempts: int = 0
    first_token: bool = False
    fell_back: bool = False
    avoid: Engine | None = None
    hold: PoolName | None = None
    """Among whose held requests it is counted while it is queued."""
    is_held: bool = False
    held: int = 0

    def held_no_longer(self, now: Instant) -> None:
        """What its class promises, and how long it may wait, counts from here on."""
        self.is_held = False
        self.held += now - self.queued_since
        self.waited += now - self.queued_since
        self.queued_since = now
        ttft_ns = self.service_class.ttft_ns
        self.promised = None if self.promised is None or ttft_ns is None else after(now, ttft_ns)

    @property
    def prompt_tokens(self) -> int:
        return self.predicted.prompt_tokens

    @property
    def cached_tokens(self) -> int:
        return self.predicted.cached_tokens

    @property
    def deadline(self) -> Instant | None:
        """The nearest of the caller's deadlines that still count."""
        deadlines = [self.complete_by, None if self.first_token else self.begin_by]
        return min((each for each in deadlines if each is not None), default=None)

    def is_late(self, now: Instant) -> bool:
        return self.deadline is not None and self.deadline <= now

    @property
    def precedence(self) -> tuple[bool, Instant, int]:
        """Those that come back go first, then those whose answers are due first, then the oldest."""
        moments = [each for each in (self.target, self.begin_by, self.complete_by) if each is not None]
        return (self.avoid is None, min(moments, default=NEVER), self.sequence)

    @property
    def line(self) -> tuple[object, ...]:
        """Those that may go to the same places, and are alike, go one after another."""
        reserved_for = self.service_class.name if self.service_class.reserve_percent else None
        return (self.account, self.service_class.band, self.pools, self.avoid, self.long, reserved_for)


@dataclass(eq=False)
class Open:
    """An attempt in our books, from `Dispatch` to `AttemptEnded`."""

    request_id: RequestId
    number: int
    engine: Engine
    stream: bool
    service_class: ClassName
    band: int
    account: TenantId
    prompt_tokens: int
    cached_tokens: int
    """What its engine probably holds of the prompt: read from the scheduler."""
    kv_tokens: int
    """What has been promised to it."""
    charged: int
    """In engine time by its tenant's weight."""
    tokens_charged: int
    heard_at: Instant
    charged_most: int = 0
    places: int = 1
    """One for each prompt of an array."""
    tokens: int = 0
    left_with: tuple[int, int, int] | None = None
    """Prompt tokens, cached tokens and answer tokens when its caller left or its deadline passed."""
    prefilled_at: Instant | None = None
    """When its prompt should have been computed, where nothing will be heard of it."""
    began: bool = False
    delivered: bool = False
    """Whether its first token was reported as delivered to the caller."""
    computed: bool = False
    """Whether its prompt has been, or should have been."""
    streaming: bool = False
    """Whether it is streamed and its first token has come."""
    let_go: bool = False
    """Whether another attempt of its request spoke first."""
    abort_ordered: bool = False

    @property
    def pending_tokens(self) -> int:
        """What is still to be computed of its prompt."""
        return 0 if self.computed else self.prompt_tokens - self.cached_tokens

    @property
    def turns(self) -> "Turns":
        return (self.band, self.engine.pool, self.account)


Turns = tuple[int, PoolName, TenantId]
"""Band, pool and account: what turns are counted by."""
Pair = tuple[int, PoolName, TenantId, TenantId]


@dataclass
class Books:
    rules: Rules
    engines: dict[EndpointId, Engine] = field(default_factory=dict)
    asked: dict[RequestId, Asked] = field(default_factory=dict)
    open: dict[tuple[RequestId, int], Open] = field(default_factory=dict)
    arrived: int = 0
    ended: dict[RequestId, Outcome] = field(default_factory=dict)
    credit: dict[TenantId, int] = field(default_factory=dict)
    firsts: list[tuple[PoolName, Instant]] = field(default_factory=list)
    extras: list[tuple[PoolName, Instant]] = field(default_factory=list)
    floors: dict[tuple[PoolName, int], int] = field(default_factory=dict)
    """What bands with a floor have earned at each pool, in hundredths of engine time."""
    held: dict[PoolName, frozenset[int]] = field(default_factory=dict)
    """Bands that the ladder holds at their floors: read from the scheduler."""
    turnovers: dict[PoolName, Turnover] = field(default_factory=dict)
    """Times for which served requests hold their places, learned by the scheduler and only read here."""
    lead: dict[Pair, int] = field(default_factory=dict)
    """Per band, pool and pair of tenants that both wait there: by how much more the first was charged since."""
    charged_most: dict[Turns, int] = field(default_factory=dict)
    in_flight_most: dict[Turns, int] = field(default_factory=dict)
    """The largest charge for one attempt, and for all that were in flight at one time, under this policy."""
    predecessor: "Books | None" = None
    """Those of the scheduler whose place this one has taken."""
    exact: bool = False
    """Whether the counters from which it began had all that was in these."""

    # Engines

    def live(self, pools: tuple[PoolName, ...]) -> list[Engine]:
        return [each for each in self.engines.values() if each.live and each.pool in pools]

    def at(self, engine: Engine) -> list[Open]:
        return [each for each in self.open.values() if each.engine is engine]

    def streams(self, engine: Engine) -> int:
        """Those that have begun: before its first token an attempt may rightly be silent."""
        return sum(each.streaming for each in self.at(engine))

    def sharers(self, engine: Engine) -> list[Engine]:
        """Those on the same device."""
        if not engine.device:
            return [engine]
        return [each for each in self.engines.values() if each.device == engine.device]

    def held_at(self, engine: Engine) -> "Held":
        """What the endpoint and all on its device hold together."""
        sharers = self.sharers(engine)
        attempts = [attempt for each in sharers for attempt in self.at(each)]
        return Held(
            in_flight=[each.service_class for each in attempts for _ in range(each.places)],
            pending_tokens=sum(each.pending_tokens for each in attempts),
            kv_used=sum(each.prompt_tokens + each.tokens for each in attempts),
            kv_reserved=sum(each.kv_tokens for each in attempts),
            foreign=sum(each.foreign for each in sharers),
            kv_foreign=sum(each.kv_foreign for each in sharers),
            itl_ns=max(each.itl_ns for each in sharers),
        )

    def has_headroom(self, engine: Engine) -> bool:
        """Whether it takes anybody at the moment."""
        pending_tokens, terms = self.held_at(engine).pending_tokens, self.rules.terms(engine.pool)
        return 100 * pending_tokens < terms.rules.pending_percent * terms.speed.chunk_tokens and self.is_open(engine)

    def is_open(self, engine: Engine) -> bool:
        """The same for one who does not mind the prompts before its own."""
        if not engine.live or engine.passed_over:
            return False
        held, terms = self.held_at(engine), self.rules.terms(engine.pool)
        if len(held.in_flight) + held.foreign >= engine.places:
            return False
        if sum(each.places for each in self.at(engine)) >= engine.own_places(engine.places):
            return False
        if engine.state is EndpointState.TRIAL and self.at(engine):
            return False
        too_slow = terms.tpot_ns is not None and 100 * held.itl_ns > terms.rules.measured_percent * terms.tpot_ns
        return not too_slow and self.holds(engine, prompt_tokens=1, kv_tokens=2)

    def holds(self, engine: Engine, *, prompt_tokens: int, kv_tokens: int, places: int = 1) -> bool:
        """Whether so much more does not fill its memory, nor make its steps too long. Who is alone always may come."""
        held, terms = self.held_at(engine), self.rules.terms(engine.pool)
        if not held.in_flight:
            return True
        promised = held.kv_reserved + held.kv_foreign + kv_tokens
        if terms.kv_tokens is not None and 100 * promised > terms.rules.kv_percent * terms.kv_tokens:
            return False
        if terms.tpot_ns is None:
            return True
        sequences = len(held.in_flight) + held.foreign + places
        step_ps = terms.speed.decode_ps(sequences, kv_tokens=held.kv_used + held.kv_foreign + prompt_tokens)
        return engine.decode_percent * step_ps <= terms.rules.predicted_percent * terms.tpot_ns * 1_000

    def is_open_to(self, engine: Engine, name: ClassName) -> bool:
        """Whether a place is free beside those that are kept for other classes and that these do not use."""
        in_flight = self.held_at(engine).in_flight
        places = engine.limit if engine.device else engine.own_places(engine.limit)
        kept = [
            max(0, percent * places // 100 - in_flight.count(owner))
            for owner, percent in self.rules.terms(engine.pool).reserves
            if owner != name
        ]
        return not self.rules.terms(engine.pool).reserves or len(in_flight) + sum(kept) < places

    def load_ns(self, engine: Engine) -> int:
        """How long the pending prompts take there, and by how much a step is longer for those who are there."""
        held, speed = self.held_at(engine), self.rules.speed(engine.pool)
        pending_ps = speed.prefill_token_ps * held.pending_tokens
        slower_ps = speed.decode_sequence_ps * (len(held.in_flight) + held.foreign)
        slower_ps += speed.kv_token_ps * (held.kv_used + held.kv_foreign)
        slowness_ps = max(0, engine.decode_percent - 125) * speed.step_ps
        return (engine.prefill_percent * pending_ps + engine.decode_percent * slower_ps + slowness_ps) // 100_000

    def lane(self, pool: PoolName) -> int:
        """How many endpoints of the pool may compute long prompts at the same time."""
        return max(1, len(self.live((pool,))) * self.rules.policy.headroom.long_percent // 100)

    def lane_is_taken(self, pool: PoolName) -> bool:
        pending = [
            sum(attempt.pending_tokens for attempt in self.at(each))
            for each in self.engines.values()
            if each.pool == pool
        ]
        return sum(each >= self.rules.policy.headroom.long_tokens for each in pending) >= self.lane(pool)

    # Requests

    def measure(self, request: Asked, mean: int, most: int) -> None:
        """What it takes, and where it is meant to go, if answers have so many tokens."""
        ticket, caps, rules = request.ticket, request.service_class.caps, self.rules
        limits = [each for each in (caps.output_tokens, ticket.output_tokens_max) if each is not None]
        mean, most = min([mean, *limits]), min([most, *limits])
        answers = ticket.prompts * (ticket.n if caps.n is None else min(ticket.n, caps.n))
        predicted = request.predicted
        predicted.output_tokens, predicted.output_tokens_most = mean * answers, most * answers
        request.pools = self.meant(request.pools, request)
        request.long = predicted.prompt_tokens >= rules.policy.headroom.long_tokens
        speed = rules.speed(request.pools[0])
        predicted.cost_ns = cost_ns(
            speed,
            predicted.prompt_tokens,
            predicted.output_tokens,
            cached=predicted.cached_tokens,
            prompts=ticket.prompts,
        )

    def meant(self, pools: tuple[PoolName, ...], request: Asked) -> tuple[PoolName, ...]:
        """Of these pools those that are meant for a request of this size."""
        return narrowed(
            pools,
            self.rules.pools,
            lambda among: len(self.live(among)),
            prompt_tokens=request.predicted.prompt_tokens,
            output_tokens=request.predicted.output_tokens,
        )

    def last_moment(self, request: Asked, now: Instant) -> Instant:
        """When it is no longer worth sending, by its class, if it is queued at this moment."""
        service_class = request.service_class
        if request.is_held:
            return after(now, Duration(max(0, service_class.start_wait_ns - request.held)))  # type: ignore[operator]
        patience = after(now, Duration(max(0, service_class.queue_wait_ns_max - request.waited + request.held)))
        if request.promised is None:
            return patience
        begins = Instant(request.promised - soonest_ns(request, self.rules.speed(request.pools[0])))  # type: ignore[arg-type]
        return min(patience, max(now, begins))

    @property
    def queued(self) -> list[Asked]:
        return [each for each in self.asked.values() if each.queued]

    def start_awaited(self, request: Asked) -> PoolName | None:
        """The pool for whose first endpoint it may be held, if anybody is."""
        if request.service_class.start_wait_ns is None:
            return None
        empty = [name for name in request.pools if name in self.rules.pools and self.rules.pools[name].hold_max]
        warming = [each.pool for each in self.engines.values() if each.warming]
        return next(iter([name for name in empty if name in warming] + empty), None)

    def hold_is_full(self, pool: PoolName) -> bool:
        return sum(each.hold == pool for each in self.queued) >= self.rules.pools[pool].hold_max

    def heads(self) -> list[Asked]:
        """The first of each line."""
        first: dict[tuple[object, ...], Asked] = {}
        for request in self.queued:
            other = first.get(request.line)
            if other is None or request.precedence < other.precedence:
                first[request.line] = request
        return list(first.values())

    def may_use(self, engine: Engine, request: Asked) -> bool:
        """Whether it may go to this endpoint at all, were there room."""
        if not engine.live or engine.pool not in request.pools:
            return False
        return engine is not request.avoid or self.live(request.pools) == [engine]

    def fits(self, engine: Engine, request: Asked) -> bool:
        """Whether it could go to this endpoint at this moment, whatever the endpoint holds of its prompt."""
        return (
            self.has_headroom(engine)
            and not (request.long and self.lane_is_taken(engine.pool))
            and self.fits_beside(engine, request)
        )

    def fits_beside(self, engine: Engine, request: Asked) -> bool:
        """Whether it could go there if most of its prompt is there, so that neither prompts nor the lane matter."""
        predicted = request.predicted
        return (
            self.may_use(engine, request)
            and self.is_open(engine)
            and self.is_open_to(engine, request.service_class.name)
            and self.holds(
                engine,
                prompt_tokens=predicted.prompt_tokens,
                kv_tokens=predicted.prompt_tokens + predicted.output_tokens_most,
                places=request.ticket.prompts,
            )
        )

    def fits_at(self, pool: PoolName, request: Asked) -> bool:
        return any(each.pool == pool and self.fits(each, request) for each in self.engines.values())

    def waits_longer(self, request: Asked, than: int, now: Instant) -> bool:
        """Whether a newcomer would surely wait for longer behind what waits already."""
        ahead = self.ahead(request)
        pools = {each.pool for each in self.engines.values() if each.pool in request.pools}
        pace = sum(self.pace(pool, long=request.long) for pool in pools) or 1_000
        free_in = min((self.free_in_ns(pool, ahead // len(pools), now) for pool in pools), default=0)
        wait, grain = ahead * 1_000 // pace, min((self.grain_ns(pool) for pool in pools), default=0)
        return wait + isqrt(wait * grain * 1_000 // pace) > than or free_in > than

    def ahead(self, request: Asked) -> int:
        """Engine time that is served before a new request."""
        alike = [each for each in self.queued if each.pools == request.pools]
        band = request.service_class.band
        before = sum(each.predicted.cost_ns for each in alike if each.service_class.band < band)
        beside: dict[TenantId, int] = {}
        for each in alike:
            if each.service_class.band == band and each.long == request.long:
                beside[each.account] = beside.get(each.account, 0) + each.predicted.cost_ns
        own = beside.pop(request.account, 0)
        if not before and not own:
            return 0
        weight, with_it = self.rules.weight(request.account), own + request.predicted.cost_ns
        return before + own + sum(min(work, with_it * self.rules.weight(who) // weight) for who, work in beside.items())

    def free_in_ns(self, pool: PoolName, ahead: int, now: Instant) -> int:
        """Minimum time until a place is free there."""
        live = self.live((pool,))
        if any(self.has_headroom(each) for each in live):
            return 0
        return self.turnovers[pool].free_in_ns(sum(each.own_places(each.places) for each in live), Duration(ahead), now)

    def grain_ns(self, pool: PoolName) -> int:
        live = self.live((pool,))
        return self.turnovers[pool].grain_ns(len(live), sum(each.own_places(each.places) for each in live))

    def pace(self, pool: PoolName, *, long: bool) -> int:
        """Engine time that the pool serves, in thousandths of elapsed time."""
        live = self.live((pool,))
        pace = self.turnovers[pool].pace(len(live), sum(each.own_places(each.places) for each in live))
        return pace * self.lane(pool) // max(1, len(live)) if long else pace

    # Bands

    def is_due(self, pool: PoolName, band: int) -> bool:
        """Whether a band has earned its floor at this pool."""
        return self.floors.get((pool, band), 0) > 0

    def goes_before(self, pool: PoolName, band: int, other: int) -> bool:
        """Whether the other band must not be served there while somebody of this one could be."""
        if band in self.held.get(pool, ()) and not self.is_due(pool, band):
            return False
        return (not self.is_due(pool, band), band) < (not self.is_due(pool, other), other)

    def count_served(self, pool: PoolName, band: int, cost: int) -> None:
        """A band that was served begins anew; every band that still waits earns its share of what was served."""
        floors = self.rules.floors
        if band in floors:
            self.floors[pool, band] = -100 * cost
        waiting = {each.service_class.band for each in self.queued if pool in each.pools}
        for each in waiting & set(floors):
            if not self.is_due(pool, each):
                self.floors[pool, each] = self.floors.get((pool, each), 0) + floors[each] * cost

    # Turns

    def charge(self, turns: Turns, difference: int) -> None:
        """Notes that an account was charged more, or less."""
        band, pool, account = turns
        for key in self.lead:
            if key[:2] == (band, pool):
                self.lead[key] += difference * ((key[2] == account) - (key[3] == account))
        in_flight = sum(each.charged_most for each in self.open.values() if each.turns == turns)
        self.in_flight_most[turns] = max(self.in_flight_most.get(turns, 0), in_flight)

    def charge_attempt(self, attempt: Open, charge: int) -> None:
        """Notes what an attempt has been charged altogether."""
        difference, attempt.charged = charge - attempt.charged, charge
        attempt.charged_most = max(attempt.charged_most, charge)
        self.charged_most[attempt.turns] = max(self.charged_most.get(attempt.turns, 0), charge)
        self.charge(attempt.turns, difference)

    def forget_those_who_passed(self, band: int, pool: PoolName) -> None:
        """Who waits for a pool where nothing of it fits saves up nothing meanwhile, as if it came later."""
        waiting = [each for each in self.heads() if each.service_class.band == band and pool in each.pools]
        able = {each.account for each in waiting if self.fits_at(pool, each)}
        self.lead = {key: lead for key, lead in self.lead.items() if key[:2] != (band, pool) or set(key[2:]) <= able}

    def keep_pairs_that_wait(self) -> None:
        waiting: dict[tuple[int, PoolName], set[TenantId]] = {}
        for request in self.queued:
            for pool in request.pools:
                waiting.setdefault((request.service_class.band, pool), set()).add(request.account)
        pairs = [
            (band, pool, *pair)
            for (band, pool), accounts in waiting.items()
            for pair in combinations(sorted(accounts), 2)
        ]
        self.lead = {key: self.lead.get(key, 0) for key in pairs}

    def lead_max(self, pair: Pair) -> int:
        """How far apart two tenants may be: twice the largest request of either and all that they had in flight."""
        band, pool, one, other = pair
        both = [(band, pool, one), (band, pool, other)]
        largest = max(self.charged_most.get(each, 0) for each in both)
        return 2 * (largest + sum(self.in_flight_most.get(each, 0) for each in both))

    def change_rules(self, policy: Policy, policy_hash: str) -> None:
        """Turns begin anew with a new policy, but for what is in flight."""
        self.rules = Rules(policy, policy_hash)
        self.floors = {key: earned for key, earned in self.floors.items() if key[1] in self.rules.floors}
        self.lead, self.charged_most, self.in_flight_most = {}, {}, {}
        for attempt in self.open.values():
            attempt.charged_most = attempt.charged
            self.charged_most[attempt.turns] = max(self.charged_most.get(attempt.turns, 0), attempt.charged)


@dataclass(frozen=True)
class Held:
    """What is under way at a place."""

    in_flight: list[ClassName]
    pending_tokens: int
    kv_used: int
    kv_reserved: int
    foreign: int
    kv_foreign: int
    itl_ns: int
