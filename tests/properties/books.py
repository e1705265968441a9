"""Reference state of endpoints, requests and attempts, used to compute expected decisions.

The reference state uses lists that are scanned completely, instead of heaps, running sums and turns. It reads the
predicted size and duration of a request from the scheduler, because other tests cover predictions. It computes
everything else independently: reservations on an endpoint, requests that fit there, endpoint load, a new request's wait
time, the band to serve and each tenant's charge.
"""

from dataclasses import dataclass, field
from itertools import combinations
from math import isqrt

from headgate.core.cost import cost_ns, first_token_on_busy_endpoint_ns
from headgate.core.events import EndpointMetricsReported
from headgate.core.routing.model_tiers import live_pools_for_size
from headgate.core.routing.turnover import Turnover
from headgate.core.rules import Rules
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, ServiceClass
from headgate.model.ticket import Ticket
from headgate.model.units import (
    SECOND,
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
PROBE_NS = Duration(10 * SECOND)
"""Timeout for activity while the probe is failing, and for a trial without requests while it passes."""
SERVING = (EndpointState.READY, EndpointState.TRIAL)


@dataclass(eq=False)
class Engine:
    """An endpoint in the reference state. An endpoint that has left and rejoined is a new `Engine`."""

    id: EndpointId
    pool: PoolName
    limit: int
    last_heard: Instant
    quiet_since: Instant
    """Time since which the endpoint's streams have been silent."""
    device: str = ""
    zone: str = ""
    leaving: bool = False
    state: EndpointState = EndpointState.WARMING
    failures: int = 0
    ejections: int = 0
    returns_at: Instant | None = None
    probe_passes: bool = False
    probe_fails: bool = False
    probe_failed_at: Instant = Instant(0)
    """Time since which the probe has been failing, if it is."""
    must_be_heard_at: Instant | None = None
    """Next check for activity while the probe is failing."""
    trial_ends_at: Instant | None = None
    """When a trial without requests ends while the probe passes."""
    itl_ns: int = 0
    decode_percent: int = 100
    prefill_percent: int = 100
    """Prefill time relative to the configured speed, in percent. The scheduler learns it and `decode_percent`."""
    talks: bool = False
    silent: bool = False
    """Whether the engine has reported metrics before (`talks`) and has since stopped (`silent`)."""
    silent_at: Instant | None = None
    """Time at which the engine's metrics become stale unless it reports again."""
    foreign: int = 0
    kv_foreign: int = 0
    passed_over: bool = False
    limit_percent: int = 100
    grown_percent: int = 100
    grows_at: Instant | None = None
    ready_at: Instant = Instant(0)
    """Start of the slow start. `grown_percent` is its progress and `grows_at` the time of its next step."""

    queued: list[int] = field(default_factory=list[int])
    """Running requests in the engine's last reports, if each report also showed waiting requests and free KV cache."""
    sequences: int | None = None
    """Maximum number of running requests, as learned from these reports."""

    @property
    def places(self) -> int:
        """Number of concurrent requests that the endpoint accepts."""
        percent = min(self.limit_percent, self.grown_percent)
        return min(self.limit, max(1, self.limit * percent // 100))

    def own_places(self, places: int) -> int:
        """Returns how many of these slots may be used, given the learned limit."""
        return places if self.sequences is None else min(places, self.sequences + max(4, self.sequences // 4))

    def report(self, said: EndpointMetricsReported) -> None:
        """Updates the learned limit from one engine report."""
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

    @property
    def last_sign(self) -> Instant:
        return max(self.last_heard, self.probe_failed_at)

    def unresponsive(self, now: Instant) -> bool:
        return self.probe_fails and now >= after(self.last_sign, PROBE_NS)


@dataclass
class Prediction:
    """Predicted size and cost of a request."""

    prompt_tokens: int
    cached_tokens: int
    """Number of prompt tokens that an endpoint probably has in its prefix cache."""
    output_tokens: int = 0
    output_tokens_most: int = 0
    cost_ns: int = 0


@dataclass(eq=False)
class Asked:
    """A request in the reference state, from arrival to completion."""

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
    """Time at which the request expires if it is still queued, as set by its class."""
    target: Instant | None = None
    """Time by which the response should begin, measured from arrival. Requests are ordered by this time."""
    promised: Instant | None = None
    """Time by which the response should begin, measured from the end of the hold. The request is not sent after it."""
    begin_by: Instant | None = None
    complete_by: Instant | None = None
    queued: bool = True
    waited: int = 0
    attempts: int = 0
    first_token: bool = False
    fell_back: bool = False
    avoid: Engine | None = None
    hold: PoolName | None = None
    """Pool in whose hold the request is counted while it is queued."""
    is_held: bool = False
    held: int = 0

    def held_no_longer(self, now: Instant) -> None:
        """Ends the hold. The class's objective and maximum queue wait are measured from now."""
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
        """Returns the earliest client deadline that still applies."""
        deadlines = [self.complete_by, None if self.first_token else self.begin_by]
        return min((each for each in deadlines if each is not None), default=None)

    def is_late(self, now: Instant) -> bool:
        return self.deadline is not None and self.deadline <= now

    @property
    def precedence(self) -> tuple[bool, Instant, int]:
        """Sort key: retried requests first, then the earliest target or deadline, then the oldest request."""
        moments = [each for each in (self.target, self.begin_by, self.complete_by) if each is not None]
        return (self.avoid is None, min(moments, default=NEVER), self.sequence)

    @property
    def line(self) -> tuple[object, ...]:
        """Queue key. Requests with the same key may use the same slots and are served in order."""
        reserved_for = self.service_class.name if self.service_class.reserve_percent else None
        return (self.account, self.service_class.band, self.pools, self.avoid, self.long, reserved_for)


@dataclass(eq=False)
class Open:
    """An attempt in the reference state, from `Dispatch` to `AttemptEnded`."""

    request_id: RequestId
    number: int
    engine: Engine
    stream: bool
    service_class: ClassName
    band: int
    account: TenantId
    prompt_tokens: int
    cached_tokens: int
    """Number of prompt tokens that the engine probably has cached, read from the scheduler."""
    kv_tokens: int
    """KV cache tokens reserved for the attempt."""
    charged: int
    """Engine time divided by the tenant's weight."""
    tokens_charged: int
    heard_at: Instant
    charged_most: int = 0
    places: int = 1
    """Number of slots: one for each prompt in an array."""
    tokens: int = 0
    left_with: tuple[int, int, int] | None = None
    """Prompt tokens, cached tokens and output tokens when the client disconnected or the deadline passed."""
    prefilled_at: Instant | None = None
    """Time at which the prompt should have been computed, for responses without a first-token report."""
    began: bool = False
    delivered: bool = False
    """Whether the first token was reported as delivered to the client."""
    computed: bool = False
    """Whether the prompt has been computed, or should have been."""
    streaming: bool = False
    """Whether the attempt streams its response and its first token has arrived."""
    let_go: bool = False
    """Whether another attempt of the request responded first."""
    abort_ordered: bool = False

    @property
    def pending_tokens(self) -> int:
        """Number of prompt tokens that have not yet been computed."""
        return 0 if self.computed else self.prompt_tokens - self.cached_tokens

    @property
    def turns(self) -> "Turns":
        return (self.band, self.engine.pool, self.account)


Turns = tuple[int, PoolName, TenantId]
"""Band, pool and account for which turns are tracked."""
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
    """Service that bands with a minimum share have earned in each pool, in hundredths of engine time."""
    held: dict[PoolName, frozenset[int]] = field(default_factory=dict)
    """Bands that are degraded to their minimum share, read from the scheduler."""
    turnovers: dict[PoolName, Turnover] = field(default_factory=dict)
    """How long requests hold their slots. The scheduler learns these times."""
    lead: dict[Pair, int] = field(default_factory=dict)
    """For each band, pool and pair of tenants waiting there, the charge of the first minus the charge of the second."""
    charged_most: dict[Turns, int] = field(default_factory=dict)
    in_flight_most: dict[Turns, int] = field(default_factory=dict)
    """Largest total charge for attempts in flight at once. `charged_most` is the largest charge for one attempt."""
    predecessor: "Books | None" = None
    """The previous scheduler's reference state."""
    exact: bool = False
    """Whether the initial counters contained everything in the predecessor's state."""

    # Engines

    def live(self, pools: tuple[PoolName, ...]) -> list[Engine]:
        return [each for each in self.engines.values() if each.live and each.pool in pools]

    def at(self, engine: Engine) -> list[Open]:
        return [each for each in self.open.values() if each.engine is engine]

    def streams(self, engine: Engine) -> int:
        """Returns the number of streams that have started. Before its first token, an attempt may be silent."""
        return sum(each.streaming for each in self.at(engine))

    def sharers(self, engine: Engine) -> list[Engine]:
        """Returns the endpoints on the same device."""
        if not engine.device:
            return [engine]
        return [each for each in self.engines.values() if each.device == engine.device]

    def held_at(self, engine: Engine) -> "Held":
        """Returns the total load of all endpoints on this endpoint's device."""
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
        """Returns whether the endpoint accepts any request now."""
        pending_tokens, terms = self.held_at(engine).pending_tokens, self.rules.endpoint_settings(engine.pool)
        return 100 * pending_tokens < terms.rules.pending_prefill_percent * terms.speed.chunk_tokens and self.is_open(
            engine
        )

    def is_open(self, engine: Engine) -> bool:
        """Returns whether the endpoint accepts requests if pending prompts are ignored."""
        if not engine.live or engine.passed_over:
            return False
        held, terms = self.held_at(engine), self.rules.endpoint_settings(engine.pool)
        if len(held.in_flight) + held.foreign >= engine.places:
            return False
        if sum(each.places for each in self.at(engine)) >= engine.own_places(engine.places):
            return False
        if engine.state is EndpointState.TRIAL and self.at(engine):
            return False
        too_slow = terms.tpot_ns is not None and 100 * held.itl_ns > terms.rules.measured_tpot_percent * terms.tpot_ns
        return not too_slow and self.holds(engine, prompt_tokens=1, kv_tokens=2)

    def holds(self, engine: Engine, *, prompt_tokens: int, kv_tokens: int, places: int = 1) -> bool:
        """Returns whether this load fits in the KV cache and keeps steps short enough. Always true if idle."""
        held, terms = self.held_at(engine), self.rules.endpoint_settings(engine.pool)
        if not held.in_flight:
            return True
        promised = held.kv_reserved + held.kv_foreign + kv_tokens
        if terms.kv_tokens is not None and 100 * promised > terms.rules.kv_percent * terms.kv_tokens:
            return False
        if terms.tpot_ns is None:
            return True
        sequences = len(held.in_flight) + held.foreign + places
        step_ps = terms.speed.decode_ps(sequences, kv_tokens=held.kv_used + held.kv_foreign + prompt_tokens)
        return engine.decode_percent * step_ps <= terms.rules.predicted_tpot_percent * terms.tpot_ns * 1_000

    def is_open_to(self, engine: Engine, name: ClassName) -> bool:
        """Returns whether a slot is free, excluding unused slots reserved for other classes."""
        in_flight = self.held_at(engine).in_flight
        places = engine.limit if engine.device else engine.own_places(engine.limit)
        kept = [
            max(0, percent * places // 100 - in_flight.count(owner))
            for owner, percent in self.rules.endpoint_settings(engine.pool).reserves
            if owner != name
        ]
        return not self.rules.endpoint_settings(engine.pool).reserves or len(in_flight) + sum(kept) < places

    def load_ns(self, engine: Engine) -> int:
        """Returns how long the pending prompts will take, plus the time the current requests add to a step."""
        held, speed = self.held_at(engine), self.rules.speed(engine.pool)
        pending_ps = speed.prefill_token_ps * held.pending_tokens
        slower_ps = speed.decode_sequence_ps * (len(held.in_flight) + held.foreign)
        slower_ps += speed.kv_token_ps * (held.kv_used + held.kv_foreign)
        slowness_ps = max(0, engine.decode_percent - 125) * speed.step_ps
        return (engine.prefill_percent * pending_ps + engine.decode_percent * slower_ps + slowness_ps) // 100_000

    def lane(self, pool: PoolName) -> int:
        """Returns how many of the pool's endpoints may process long prompts at the same time."""
        return max(1, len(self.live((pool,))) * self.rules.policy.headroom.long_lane_percent // 100)

    def lane_is_taken(self, pool: PoolName) -> bool:
        pending = [
            sum(attempt.pending_tokens for attempt in self.at(each))
            for each in self.engines.values()
            if each.pool == pool
        ]
        return sum(each >= self.rules.policy.headroom.long_prompt_tokens for each in pending) >= self.lane(pool)

    # Requests

    def measure(self, request: Asked, mean: int, most: int) -> None:
        """Predicts a request's cost and selects its pools, given these mean and maximum response lengths."""
        ticket, caps, rules = request.ticket, request.service_class.caps, self.rules
        limits = [each for each in (caps.output_tokens, ticket.output_tokens_max) if each is not None]
        mean, most = min([mean, *limits]), min([most, *limits])
        answers = ticket.prompts * (ticket.n if caps.n is None else min(ticket.n, caps.n))
        predicted = request.predicted
        predicted.output_tokens, predicted.output_tokens_most = mean * answers, most * answers
        request.pools = self.meant(request.pools, request)
        request.long = predicted.prompt_tokens >= rules.policy.headroom.long_prompt_tokens
        speed = rules.speed(request.pools[0])
        predicted.cost_ns = cost_ns(
            speed,
            predicted.prompt_tokens,
            predicted.output_tokens,
            cached=predicted.cached_tokens,
            prompts=ticket.prompts,
        )

    def meant(self, pools: tuple[PoolName, ...], request: Asked) -> tuple[PoolName, ...]:
        """Returns the pools intended for requests of this size."""
        return live_pools_for_size(
            pools,
            self.rules.pools,
            lambda among: len(self.live(among)),
            prompt_tokens=request.predicted.prompt_tokens,
            output_tokens=request.predicted.output_tokens,
        )

    def last_moment(self, request: Asked, now: Instant) -> Instant:
        """Returns the time after which a request queued now is no longer sent."""
        service_class = request.service_class
        if request.is_held:
            return after(now, Duration(max(0, service_class.cold_start_wait_ns_max - request.held)))  # type: ignore[operator]
        patience = after(now, Duration(max(0, service_class.queue_wait_ns_max - request.waited + request.held)))
        if request.promised is None:
            return patience
        speed = self.rules.speed(request.pools[0])
        needed_ns = first_token_on_busy_endpoint_ns(speed, request.prompt_tokens, request.cached_tokens)
        begins = Instant(request.promised - needed_ns)
        return min(patience, max(now, begins))

    @property
    def queued(self) -> list[Asked]:
        return [each for each in self.asked.values() if each.queued]

    def start_awaited(self, request: Asked) -> PoolName | None:
        """Returns the pool for whose first endpoint the request can be held, if any."""
        if request.service_class.cold_start_wait_ns_max is None:
            return None
        empty = [name for name in request.pools if name in self.rules.pools and self.rules.pools[name].hold_max]
        warming = [each.pool for each in self.engines.values() if each.warming]
        return next(iter([name for name in empty if name in warming] + empty), None)

    def hold_is_full(self, pool: PoolName) -> bool:
        return sum(each.hold == pool for each in self.queued) >= self.rules.pools[pool].hold_max

    def heads(self) -> list[Asked]:
        """Returns the first request in each queue."""
        first: dict[tuple[object, ...], Asked] = {}
        for request in self.queued:
            other = first.get(request.line)
            if other is None or request.precedence < other.precedence:
                first[request.line] = request
        return list(first.values())

    def may_use(self, engine: Engine, request: Asked) -> bool:
        """Returns whether the request may use this endpoint, regardless of its load."""
        if not engine.live or engine.pool not in request.pools:
            return False
        return engine is not request.avoid or self.live(request.pools) == [engine]

    def fits(self, engine: Engine, request: Asked) -> bool:
        """Returns whether the endpoint can accept the request now, assuming no prefix cache hits."""
        return (
            self.has_headroom(engine)
            and not (request.long and self.lane_is_taken(engine.pool))
            and self.fits_beside(engine, request)
        )

    def fits_beside(self, engine: Engine, request: Asked) -> bool:
        """Returns whether the endpoint can accept the request if most of its prompt is cached there.

        Pending prompts and the long lane do not matter in this case.
        """
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
        """Returns whether a new request would certainly wait longer than this behind the queued requests."""
        ahead = self.ahead(request)
        pools = {each.pool for each in self.engines.values() if each.pool in request.pools}
        pace = sum(self.pace(pool, long=request.long) for pool in pools) or 1_000
        free_in = min((self.free_in_ns(pool, ahead // len(pools), now) for pool in pools), default=0)
        wait, grain = ahead * 1_000 // pace, min((self.grain_ns(pool) for pool in pools), default=0)
        return wait + isqrt(wait * grain * 1_000 // pace) > than or free_in > than

    def ahead(self, request: Asked) -> int:
        """Returns the engine time that is served before a new request."""
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
        """Returns the minimum time until a slot is free in the pool."""
        live = self.live((pool,))
        if any(self.has_headroom(each) for each in live):
            return 0
        return self.turnovers[pool].free_in_ns(sum(each.own_places(each.places) for each in live), Duration(ahead), now)

    def grain_ns(self, pool: PoolName) -> int:
        live = self.live((pool,))
        return self.turnovers[pool].mean_request_ns(len(live), sum(each.own_places(each.places) for each in live))

    def pace(self, pool: PoolName, *, long: bool) -> int:
        """Returns the engine time that the pool serves, in thousandths of elapsed time."""
        live = self.live((pool,))
        pace = self.turnovers[pool].service_rate(len(live), sum(each.own_places(each.places) for each in live))
        return pace * self.lane(pool) // max(1, len(live)) if long else pace

    # Bands

    def is_due(self, pool: PoolName, band: int) -> bool:
        """Returns whether a band's minimum share is due in this pool."""
        return self.floors.get((pool, band), 0) > 0

    def goes_before(self, pool: PoolName, band: int, other: int) -> bool:
        """Returns whether `band` must be served there before `other` whenever one of its requests fits."""
        if band in self.held.get(pool, ()) and not self.is_due(pool, band):
            return False
        return (not self.is_due(pool, band), band) < (not self.is_due(pool, other), other)

    def count_served(self, pool: PoolName, band: int, cost: int) -> None:
        """Resets the served band's share. Every other waiting band earns its share of the served time."""
        floors = self.rules.min_shares
        if band in floors:
            self.floors[pool, band] = -100 * cost
        waiting = {each.service_class.band for each in self.queued if pool in each.pools}
        for each in waiting & set(floors):
            if not self.is_due(pool, each):
                self.floors[pool, each] = self.floors.get((pool, each), 0) + floors[each] * cost

    # Turns

    def charge(self, turns: Turns, difference: int) -> None:
        """Records a change in an account's charge."""
        band, pool, account = turns
        for key in self.lead:
            if key[:2] == (band, pool):
                self.lead[key] += difference * ((key[2] == account) - (key[3] == account))
        in_flight = sum(each.charged_most for each in self.open.values() if each.turns == turns)
        self.in_flight_most[turns] = max(self.in_flight_most.get(turns, 0), in_flight)

    def charge_attempt(self, attempt: Open, charge: int) -> None:
        """Records an attempt's total charge."""
        difference, attempt.charged = charge - attempt.charged, charge
        attempt.charged_most = max(attempt.charged_most, charge)
        self.charged_most[attempt.turns] = max(self.charged_most.get(attempt.turns, 0), charge)
        self.charge(attempt.turns, difference)

    def forget_those_who_passed(self, band: int, pool: PoolName) -> None:
        """Drops the lead of tenants waiting for a pool where none of their requests fit, as if they arrived later."""
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
        """Returns the maximum difference between two tenants' charges.

        It is twice the sum of the larger single charge and both maximum charges in flight.
        """
        band, pool, one, other = pair
        both = [(band, pool, one), (band, pool, other)]
        largest = max(self.charged_most.get(each, 0) for each in both)
        return 2 * (largest + sum(self.in_flight_most.get(each, 0) for each in both))

    def change_rules(self, policy: Policy, policy_hash: str) -> None:
        """Applies a new policy. Turns start afresh, except for attempts in flight."""
        self.rules = Rules(policy, policy_hash)
        self.floors = {key: earned for key, earned in self.floors.items() if key[1] in self.rules.min_shares}
        self.lead, self.charged_most, self.in_flight_most = {}, {}, {}
        for attempt in self.open.values():
            attempt.charged_most = attempt.charged
            self.charged_most[attempt.turns] = max(self.charged_most.get(attempt.turns, 0), attempt.charged)


@dataclass(frozen=True)
class Held:
    """Load on an endpoint or device."""

    in_flight: list[ClassName]
    pending_tokens: int
    kv_used: int
    kv_reserved: int
    foreign: int
    kv_foreign: int
    itl_ns: int
