"""Random event sequences for the scheduler, with failures.

A seed determines a sequence of events that react to the scheduler's commands, as those of a real host would. Attempts
start, progress and end in many ways. Endpoints come and go, fail and hang. Engines report metrics or fall silent, the
policy changes, and clients disconnect, set deadlines or send a request twice. The large world has many of everything.
In the small world, a few objects interact in all combinations. In the crowded world a few tenants always have requests
queued.
"""

from dataclasses import dataclass, field, replace
from random import Random

from headgate.core.commands import Abort, Command, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    AttemptsProgressed,
    EndpointJoined,
    EndpointMetricsReported,
    Event,
    RequestArrived,
    TimerFired,
)
from headgate.model.caps import Caps
from headgate.model.fault import Fault
from headgate.model.limits import Limits
from headgate.model.policy import (
    AdmissionRules,
    DegradationRules,
    DegradationStep,
    HeadroomRules,
    HealthRules,
    OptimizationGoal,
    Policy,
    RetryRules,
    RoutingRules,
    SheddingRules,
)
from headgate.model.prefix import pack_hashes, prefix_tokens
from headgate.model.provider_limits import ProviderLimits
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Plan, Tenant
from headgate.model.units import (
    BYTES_PER_TOKEN,
    MILLISECOND,
    SECOND,
    Duration,
    EndpointId,
    Instant,
    ModelName,
    RequestId,
    TenantId,
    after,
)
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    a_class,
    a_model,
    a_policy,
    a_pool,
    a_tenant,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    duration,
    first_token,
    grace_over,
    leaving,
    policy_changed,
    readied,
    unreadied,
)


@dataclass(frozen=True)
class EventMix:
    endpoints: dict[str, str]
    """Endpoint names, each with its pool."""
    tenants: tuple[str, ...]
    models: tuple[str, ...]
    classes: tuple[str | None, ...]
    """Classes that requests ask for. Repeat a class to draw it more often."""
    policies: tuple[Policy, ...]
    """Policies to draw from. The first one is the initial policy."""
    steps_ms: tuple[int, ...]
    """Possible time steps between two events, in milliseconds."""
    churn: float
    """Fraction of events that add, remove or restart endpoints."""
    failing: float
    """Fraction of attempts that fail on any endpoint."""
    places: tuple[int, ...] = (1, 1, 2)
    """Slot counts to draw from for an endpoint."""
    devices: tuple[str, ...] = ()
    """Endpoints that share one device."""
    changing: float = 0.01
    """Fraction of events that change the policy."""
    early: int = 0
    """Number of requests that arrive before all other events."""
    prompts: tuple[int, ...] = (100, 3_000, 90_000)
    """Possible prompt sizes, in bytes."""
    telling: float = 0.0
    """Fraction of events that report engine metrics."""
    faults: tuple[Fault, ...] = ()
    """Possible faults for failed attempts. If empty, the fault is unknown."""
    limited: tuple[str, ...] = ()
    """Endpoints that report rate limits with some of their responses."""
    bodies: int = 0
    """Number of distinct bodies that each tenant sends. If 0, each request has its own body."""


@dataclass
class EventGenerator:
    """A host that generates random events. All choices are made from ordered collections, so a seed is reproducible."""

    world: EventMix
    chance: Random
    now: Instant = at(0)
    arrivals: int = 0
    unended: dict[str, None] = field(default_factory=dict)
    open: list[Dispatch] = field(default_factory=list)
    aborted: dict[tuple[str, int], None] = field(default_factory=dict)
    past: list[Dispatch] = field(default_factory=list)

    def opening(self) -> list[Event]:
        """The initial events: the policy, then all endpoints becoming ready."""
        events: list[Event] = [policy_changed(self.world.policies[0], "h0")]
        for name, pool in self.world.endpoints.items():
            events += [self._joined(name, pool, self.world.places[-1]), readied(name)]
        return events

    def _joined(self, name: str, pool: str, places: int) -> Event:
        device = "shared" if name in self.world.devices else ""
        return EndpointJoined(replace(an_endpoint(name, pool=pool, places=places), device=device))

    def next(self, wakeup: Instant | None) -> tuple[Event, Instant]:
        step = Duration(self.chance.choice(self.world.steps_ms) * MILLISECOND)
        # A busy host sometimes fires a timer late, after another event.
        if wakeup is not None and wakeup <= after(self.now, step) and self.chance.random() < 0.9:
            self.now = max(self.now, wakeup)
            return TimerFired(), self.now
        self.now = after(self.now, step)
        return self._random_event(), self.now

    def apply(self, event: Event, commands: list[Command]) -> None:
        if isinstance(event, RequestArrived):
            self.unended[event.ticket.request_id] = None
        for command in commands:
            if isinstance(command, Dispatch):
                self.open.append(command)
            elif isinstance(command, Abort):
                self.aborted[command.request_id, command.attempt] = None
            elif isinstance(command, End):
                del self.unended[command.request_id]

    def _random_event(self) -> Event:
        if self.chance.random() < self.world.churn:
            return self._fleet()
        if self.chance.random() < self.world.telling:
            return self._measured()
        kind = self.chance.random()
        talking = [each for each in self.open if not self._hung(each)]
        if kind < 0.47 or not talking or self.arrivals < self.world.early:
            return self._arrival()
        if kind < 0.56:
            attempt = self.chance.choice(self.open)
            return replace(first_token(attempt.request_id, attempt.attempt), limits=self._limits(attempt))
        if kind < 0.61:
            chosen = self.chance.sample(talking, min(5, len(talking)))
            tokens = self.chance.choice((0, 9, 9, 70, 500))
            return AttemptsProgressed(tuple(AttemptProgress(each.request_id, each.attempt, tokens) for each in chosen))
        if kind < 0.9:
            return self._ending(self.chance.choice(talking))
        if kind < 0.96 and self.unended:
            name = self.chance.choice(list(self.unended))
            return client_disconnected(name) if self.chance.random() < 0.8 else grace_over(name)
        if kind < 1 - self.world.changing and self.past:
            late = self.chance.choice(self.past)
            return AttemptEnded(late.request_id, late.attempt, AttemptEnding.FAILED, "said twice")
        return policy_changed(self.chance.choice(self.world.policies), f"h{self.arrivals}")

    def _arrival(self) -> Event:
        self.arrivals += 1
        prompt_bytes = self.chance.choice(self.world.prompts)
        event = arrived(
            f"r{self.arrivals}",
            self.chance.choice(self.world.tenants[: self.chance.choice((2, 10, 40))]),
            service_class=self.chance.choice(self.world.classes),
            tier=self.chance.choice((None, None, "flex", "auto")),
            model=self.chance.choice(self.world.models),
            stream=self.chance.random() < 0.8,
            prompt_bytes=prompt_bytes,
            prompt_bytes_kept=round(prompt_bytes * self.chance.random()),
            client_retries=int(self.chance.random() < 0.05),
            first_token_within=self._deadline(),
            complete_within=self._deadline(),
            key=self.chance.choice(("k1", "k2", "k3")) if self.chance.random() < 0.1 else None,
        )
        ticket = replace(event.ticket, prefix_hashes=self._prefix(prompt_bytes), n=self.chance.choice((1, 1, 1, 3)))
        if self.world.bodies:
            ticket = replace(ticket, fingerprint=f"{ticket.tenant}-{self.chance.randrange(self.world.bodies)}")
        return RequestArrived(ticket)

    def _prefix(self, prompt_bytes: int) -> bytes:
        """One of a few prompt prefixes, up to a random length within the prompt, or no prefix."""
        beginning = self.chance.randrange(4)
        lengths = [count for count in range(9) if BYTES_PER_TOKEN * prefix_tokens(count) <= prompt_bytes]
        return pack_hashes([100 * beginning + part for part in range(self.chance.choice(lengths))])

    def _deadline(self) -> float | None:
        """Deadline in seconds, or None for most requests. A few requests arrive with no time left."""
        return self.chance.choice((0, 0.2, 1, 3, 5, 8)) if self.chance.random() < 0.1 else None

    def _hung(self, attempt: Dispatch) -> bool:
        """Whether the endpoint hangs in mid-response. Some endpoints hang for 30 seconds at a time, until the attempt
        is aborted.
        """
        hangs = attempt.endpoint_id.endswith("-3") and self.now // (30 * SECOND) % 2 == 0
        return hangs and (attempt.request_id, attempt.attempt) not in self.aborted

    def _ending(self, attempt: Dispatch) -> Event:
        self.open.remove(attempt)
        self.past = [*self.past[-50:], attempt]
        bad = attempt.endpoint_id.endswith("-2") and self.now // (20 * SECOND) % 2
        if (attempt.request_id, attempt.attempt) in self.aborted:
            del self.aborted[attempt.request_id, attempt.attempt]
            ending = AttemptEnding.ABORTED
        elif bad or self.chance.random() < self.world.failing:
            ending = self.chance.choice((AttemptEnding.FAILED, AttemptEnding.TIMEOUT, AttemptEnding.REJECTED))
        else:
            ending = AttemptEnding.COMPLETED
        usage = None
        if self.chance.random() < 0.5:
            tokens = self.chance.choice((10, 100, 1_000))
            usage = Usage(
                tokens, self.chance.choice((5, 50, 500)), cached_tokens=tokens // 2, source=UsageSource.ENGINE
            )
        fault = None
        if self.world.faults and ending is AttemptEnding.FAILED:
            fault = self.chance.choice(self.world.faults)
        return AttemptEnded(
            RequestId(attempt.request_id),
            attempt.attempt,
            ending,
            "as it happened",
            usage,
            fault,
            limits=self._limits(attempt),
        )

    def _limits(self, attempt: Dispatch) -> ProviderLimits | None:
        if attempt.endpoint_id not in self.world.limited or self.chance.random() < 0.5:
            return None
        left, reset = self.chance.choice((None, 0, 2, 5)), duration(self.chance.choice((0.1, 0.5, 2)))
        tokens, wait = self.chance.choice((None, 0, 100, 5_000)), duration(self.chance.choice((0, 0, 0, 0.5)))
        return ProviderLimits(left, reset, tokens, reset, wait)

    def _fleet(self) -> Event:
        name = self.chance.choice(list(self.world.endpoints))
        kind = self.chance.random()
        if kind < 0.4:
            return self._joined(name, self.world.endpoints[name], self.chance.choice(self.world.places))
        return (readied if kind < 0.8 else unreadied if kind < 0.9 else leaving)(name)

    def _measured(self) -> Event:
        name = self.chance.choice(list(self.world.endpoints))
        running, waiting = self.chance.choice((0, 2, 2, 5)), self.chance.choice((0, 0, 3))
        return EndpointMetricsReported(EndpointId(name), running, waiting, self.chance.choice((None, 5, 30, 90)))


# Large world

_TENANTS = tuple(f"tenant-{number}" for number in range(40))
_WEIGHED = (
    *(Tenant(TenantId(name), weight=50 + 50 * (number % 4)) for number, name in enumerate(_TENANTS[:20])),
    *_TENANTS[20:],
)
_SPEED = EngineSpeed(step_ps=20 * 10**9, decode_sequence_ps=2 * 10**9, prefill_token_ps=10**8)
_POOLS = (
    replace(a_pool("large"), kv_tokens=40_000, speed=_SPEED),
    replace(a_pool("small"), kv_tokens=4_000, speed=_SPEED),
    replace(a_pool("spare"), speed=_SPEED),
)
_CLASSES = (
    replace(
        a_class("interactive", queue_wait=4, queue_length_max=30, prompt_tokens_max=1_000),
        ttft_ns=duration(2),
        tpot_ns=duration(0.04),
        hedging=True,
        degradation_steps=(DegradationStep(2, Caps(output_tokens=50), model=ModelName("n")),),
    ),
    replace(a_class("code", queue_wait=6, pools=("large",), unnamed=False), reserve_percent=40),
    replace(
        a_class(
            "long", band=1, queue_wait=15, pools=("large", "spare"), caps=Caps(prompt_tokens=18_000, trim_prompt=True)
        ),
        ttft_ns=duration(9),
    ),
    replace(
        a_class("batch", band=2, queue_wait=60, service_tiers=("flex",), unnamed=False),
        min_share_percent=10,
        optimize_for=OptimizationGoal.COST,
        degradation_steps=(DegradationStep(1, Caps(output_tokens=20)),),
    ),
)
_MODELS = (
    replace(a_model("m", "large", "small"), fallbacks=(ModelName("n"),)),
    a_model("n", "small", "spare"),
    a_model("o", "large", "small", "spare"),
)
_HEALTH = HealthRules(
    consecutive_failures_max=2, stall_ns_max=duration(5), ejection_ns=duration(2), ejection_ns_max=duration(20)
)
_STALE = RoutingRules(metrics_stale_ns=duration(2))


def _large(**changes: object) -> Policy:
    policy = a_policy(classes=_CLASSES, tenants=_WEIGHED, pools=_POOLS, models=_MODELS, health=_HEALTH)
    return replace(policy, **({"degradation": DegradationRules(enabled=False), "routing": _STALE} | changes))  # type: ignore[arg-type]


_WHOLE = _large()
_FEWER_CLASSES = _large(classes=_CLASSES[::2])
_FEWER_TENANTS = _large(
    tenants=(
        *(Tenant(TenantId(name), limits=Limits(20, 9_000, concurrency=3)) for name in _TENANTS[5:30]),
        a_tenant("tenant-0", models=("m",)),
    ),
    pools=_POOLS[:2],
    models=(a_model("m", "small"), a_model("o", "large", "small")),
)
_PRESSED = _large(
    tenants=tuple(Tenant(TenantId(name), plan=list(Plan)[number % 3]) for number, name in enumerate(_TENANTS)),
    degradation=DegradationRules(escalate_above=300, escalate_after_ns=duration(0.2), recover_after_ns=duration(1)),
    shedding=SheddingRules(enabled=True, target_pressure=300, integral_gain=500),
)

LARGE = EventMix(
    endpoints={f"{pool.name}-{number}": pool.name for pool in _POOLS for number in range(4)},
    tenants=_TENANTS,
    models=tuple("mmmnno"),
    classes=(*[None] * 20, *["interactive"] * 4, *["code"] * 4, "nonsense"),
    policies=(*[_WHOLE] * 6, _FEWER_CLASSES, _FEWER_TENANTS, _PRESSED),
    steps_ms=(0, 1, 5, 10, 30),
    churn=0.02,
    failing=0.15,
    places=(1, 2, 3),
    devices=("large-0", "small-1"),
    telling=0.03,
)

FAULTY = replace(LARGE, faults=tuple(Fault), bodies=2)
"""Like `LARGE`, but bodies repeat and the faults of failed attempts are known."""

PRESSED = replace(LARGE, policies=(_PRESSED,), churn=0.0, failing=0.02)
"""Like `LARGE`, but overloaded and with degradation that reacts immediately."""

# Small world

_EITHER = replace(
    a_class("either", band=1, queue_wait=5, queue_length_max=6), ttft_ns=duration(3), min_share_percent=25, hedging=True
)
_ONLY_P = replace(a_class("only p", queue_wait=3, pools=("p",), caps=Caps(prompt_tokens=1_000)), ttft_ns=duration(1))
_ONLY_Q = replace(a_class("only q", queue_wait=3, pools=("q",), queue_length_per_tenant_max=2), tpot_ns=duration(0.05))
_SLOW = EngineSpeed(step_ps=10**10, decode_sequence_ps=10**10, prefill_token_ps=10**9)

_BESIDE = replace(a_model("o", "p"), fallbacks=(ModelName("n"),))


def _small(
    *, either_pools: tuple[str, ...] = ("p", "q"), stall: float = 2, fails: int = 2, **changes: object
) -> Policy:
    policy = a_policy(
        classes=(_EITHER, _ONLY_P, _ONLY_Q),
        tenants=("acme", Tenant(TenantId("bolt"), weight=200)),
        pools=(replace(a_pool("p"), kv_tokens=1_500), replace(a_pool("q"), speed=_SLOW)),
        models=(a_model("m", *either_pools), a_model("n", *reversed(either_pools)), _BESIDE),
        retry=RetryRules(credit_per_first_attempt=50, pool_retries_min=2),
        health=HealthRules(
            consecutive_failures_max=fails,
            stall_ns_max=duration(stall),
            ejection_ns=duration(0.5),
            ejection_ns_max=duration(2),
        ),
    )
    usual = {"degradation": DegradationRules(enabled=False), "routing": RoutingRules(metrics_stale_ns=duration(1))}
    return replace(policy, **(usual | changes))  # type: ignore[arg-type]


SMALL = EventMix(
    endpoints={"p-0": "p", "q-0": "q"},
    tenants=("acme", "bolt"),
    models=("m", "n", "o"),
    classes=("either", "either", "only p", "only q"),
    policies=(
        *[_small()] * 3,
        _small(either_pools=("q",)),
        _small(stall=0.5, fails=1),
        _small(admission=AdmissionRules(10), headroom=HeadroomRules(long_prompt_tokens=500)),
    ),
    steps_ms=(0, 0, 10, 100, 200),
    churn=0.12,
    failing=0.4,
    places=(1, 2, 4),
    telling=0.05,
)

# Crowded world

_CROWDED = replace(
    a_policy(
        classes=(
            a_class("steady", queue_wait=900),
            replace(a_class("batch", band=1, queue_wait=900), min_share_percent=20),
        ),
        tenants=tuple(
            Tenant(TenantId(name), weight=weight)
            for name, weight in (("acme", 100), ("bolt", 50), ("coil", 200), ("dune", 100))
        ),
        pools=(replace(a_pool("p"), kv_tokens=30_000), a_pool("q")),
        models=(a_model("m", "p"), a_model("n", "p", "q")),
    ),
    admission=AdmissionRules(None),
    degradation=DegradationRules(enabled=False),
)

CROWDED = EventMix(
    endpoints={"p-0": "p", "p-1": "p", "q-0": "q"},
    tenants=("acme", "bolt", "coil", "dune"),
    models=("m", "m", "m", "n"),
    classes=("steady", "steady", "batch"),
    policies=(_CROWDED,),
    steps_ms=(0, 1, 5, 20),
    churn=0.005,
    failing=0.02,
    places=(3,),
    changing=0.0,
    early=100,
    prompts=(400, 2_000, 8_000),
)
