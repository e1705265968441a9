"""What does a scheduler remember that nobody else could tell its successor?

Requests are held by those who accepted them, and endpoints are seen by whoever looks at them: both are reported to a
new scheduler. What was charged, used up, learned and given up is known to the scheduler alone, and is lost with it
unless it has been told before. This is all of that, as plain values: whole numbers, names, and rows of them.

A successor lives in another process, whose clock is another one. So no moment is told: of each, how long ago it was.
Only the days and months of the calendar begin at the same moments for all, however long nobody counted between.
And since no fraction is told either, what was learned as one is told in millionths.

What is known of prompts that engines hold is left out. It is large, only probable, and made anew by the traffic of a
minute.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.model.money import NanoUsd, Period
from headgate.model.policy import Policy
from headgate.model.units import ClassName, Duration, EndpointId, Instant, ModelName, PoolName, TenantId

MILLION: Final = 1_000_000


class TurnsCounter(NamedTuple):
    """What tenants have been charged at one pool in one band."""

    band: int
    pool: PoolName
    level: int
    waiting: tuple[tuple[TenantId, int], ...]
    """Who waited there, in the order among equals."""
    others: tuple[tuple[TenantId, int], ...]
    """Who left with more than the level."""


class FloorCounter(NamedTuple):
    """What a band with a floor has earned at a pool."""

    pool: PoolName
    band: int
    credit: int


class LimitCounter(NamedTuple):
    """What is used of the limits of one tenant, in the parts in which they are counted."""

    tenant: TenantId
    requests: int
    tokens: int
    life_ns: Duration


class WindowCounter(NamedTuple):
    """First and extra attempts of a pool in the last seconds; of all pools together where it has no name."""

    pool: PoolName
    firsts: tuple[tuple[Duration, int], ...]
    """Each with how long ago it was at the most."""
    extras: tuple[tuple[Duration, int], ...]
    """Each with how long ago it was at the least."""


class LengthsCounter(NamedTuple):
    """The lengths of a model's answers to one tenant."""

    tenant: TenantId
    model: ModelName
    buckets: tuple[tuple[int, int, int], ...]
    """Number, answers, and their tokens together."""


class PromptCounter(NamedTuple):
    """The bytes and tokens of a tenant's prompts, as far as they are remembered."""

    model: ModelName
    prompt_bytes: int
    tokens: int
    """Tokens, in millionths."""
    tenant: TenantId = TenantId("")


class FirstTokensCounter(NamedTuple):
    """How long answers of a class took to begin at a pool."""

    service_class: ClassName
    pool: PoolName
    wait_ns: Duration | None
    buckets: tuple[tuple[int, int], ...]


class LadderCounter(NamedTuple):
    band: int
    step: int
    above_ns: Duration | None
    """For how long there has been reason to climb; None where there is none."""
    below_ns: Duration | None
    holds_at_floor: bool


class RouteCounter(NamedTuple):
    """What is given up by those who may use the same pools."""

    pools: tuple[PoolName, ...]
    ladders: tuple[LadderCounter, ...]
    fraction: int
    """Of arrivals refused, in millionths."""
    pressure: int
    ranks: tuple[int, ...]
    """Of the last arrivals, the oldest first; none where none is refused."""


class EndpointCounter(NamedTuple):
    """How fast an endpoint has turned out to be, in millionths, and how often it was ejected in a row."""

    endpoint_id: EndpointId
    factors: tuple[int, int]
    sums: tuple[int, int, int, int, int]
    ejections: int


class LearnedSpeed(NamedTuple):
    """The speed of an endpoint as one scheduler has learned it, for the next one of the same gateway."""

    endpoint_id: EndpointId
    pool: PoolName
    settled: bool
    """Whether the speed counts as learned; otherwise it is only a better guess."""
    factors: tuple[int, int]
    sums: tuple[int, int, int, int, int]


class BudgetCounter(NamedTuple):
    """What is spent of a scope's budgets in one kind of period."""

    scope: str
    period: Period
    spent: NanoUsd
    began: Instant | None
    """The moment of the calendar at which the period began; None where nobody had told."""


class StartCounter(NamedTuple):
    """How long the first endpoint of a pool took to start."""

    pool: PoolName
    took_ns: Duration


class QuarantineCounter(NamedTuple):
    """A request that failed on endpoints that serve others, and the rest of its quarantine."""

    identity: str
    left_ns: Duration


@dataclass(frozen=True, slots=True)
class Counters:
    turns: tuple[TurnsCounter, ...] = ()
    floors: tuple[FloorCounter, ...] = ()
    limits: tuple[LimitCounter, ...] = ()
    credits: tuple[tuple[TenantId, int], ...] = ()
    """What tenants may spend on retries."""
    windows: tuple[WindowCounter, ...] = ()
    lengths: tuple[LengthsCounter, ...] = ()
    prompts: tuple[PromptCounter, ...] = ()
    first_tokens: tuple[FirstTokensCounter, ...] = ()
    routes: tuple[RouteCounter, ...] = ()
    endpoints: tuple[EndpointCounter, ...] = ()
    starts: tuple[StartCounter, ...] = ()
    budgets: tuple[BudgetCounter, ...] = ()
    quarantine: tuple[QuarantineCounter, ...] = ()

    def known_to(self, policy: Policy) -> "Counters":
        """The same without what this policy does not name: it may be another one than that under which they came."""
        bands, tenants = {each.band for each in policy.classes}, {"", *(each.id for each in policy.tenants)}
        pools, models = {"", *(each.name for each in policy.pools)}, {each.name for each in policy.models}
        hedging = {each.name for each in policy.classes if each.hedges}
        return Counters(
            turns=tuple(each for each in self.turns if each.band in bands and each.pool in pools),
            floors=tuple(each for each in self.floors if each.pool in pools),
            limits=self.limits,
            credits=tuple(each for each in self.credits if each[0] in tenants),
            windows=tuple(each for each in self.windows if each.pool in pools),
            lengths=tuple(each for each in self.lengths if each.tenant in tenants and each.model in models),
            prompts=tuple(each for each in self.prompts if each.tenant in tenants and each.model in models),
            first_tokens=tuple(
                each for each in self.first_tokens if each.service_class in hedging and each.pool in pools
            ),
            routes=tuple(each for each in self.routes if pools.issuperset(each.pools)),
            endpoints=self.endpoints,
            starts=tuple(each for each in self.starts if each.pool in pools),
            budgets=self.budgets,
            quarantine=self.quarantine,
        )
