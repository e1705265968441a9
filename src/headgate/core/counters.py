"""Snapshot of the state that only the scheduler knows.

A new scheduler learns about open requests from the gateways that accepted them, and about endpoints from the processes
that probe them. Charges, limit usage, learned values and degradation levels exist only in the scheduler and would be
lost with it. This module defines them as plain values: integers, names and tuples of both.

The next scheduler may run in another process with a different clock. The snapshot therefore stores ages instead of
times. Calendar days and months are the exception: they start at the same time for every process. Fractions are stored
in millionths.

The prefix index is not included. It is large, only approximate, and traffic rebuilds it within a minute.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.model.money import NanoUsd, Period
from headgate.model.persistent_map import PersistentMap
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant, tenant_table
from headgate.model.units import ClassName, Duration, EndpointId, Instant, ModelName, PoolName, TenantId

MILLION: Final = 1_000_000


class FairQueueCounter(NamedTuple):
    """The tenants' fairness charges in one pool and one priority band."""

    band: int
    pool: PoolName
    level: int
    waiting: tuple[tuple[TenantId, int], ...]
    """Waiting tenants and their charges. Tenants with equal charges are in the order they will be served."""
    others: tuple[tuple[TenantId, int], ...]
    """Charges of tenants that are no longer waiting but were charged more than `level`."""


class MinShareCounter(NamedTuple):
    """Credit that a priority band with a minimum share has earned in a pool."""

    pool: PoolName
    band: int
    credit: int


class LimitCounter(NamedTuple):
    """Current usage of one tenant's limits."""

    tenant: TenantId
    requests: int
    tokens: int
    duration_ns: Duration


class WindowCounter(NamedTuple):
    """First and extra attempts in the retry-budget window of a pool. An empty pool name means all pools."""

    pool: PoolName
    firsts: tuple[tuple[Duration, int], ...]
    """Maximum age and number of first attempts."""
    extras: tuple[tuple[Duration, int], ...]
    """Minimum age and number of extra attempts."""


class LengthsCounter(NamedTuple):
    """Histogram of a model's response lengths for one tenant."""

    tenant: TenantId
    model: ModelName
    buckets: tuple[tuple[int, int, int], ...]
    """Rows of (bucket, responses, total tokens)."""


class PromptCounter(NamedTuple):
    """Prompt bytes and prompt tokens of a tenant, with older requests weighted less."""

    model: ModelName
    prompt_bytes: int
    tokens: int
    """Prompt tokens in millionths."""
    tenant: TenantId = TenantId("")


class TtftCounter(NamedTuple):
    """Histogram of time to first token for one class in one pool."""

    service_class: ClassName
    pool: PoolName
    wait_ns: Duration | None
    buckets: tuple[tuple[int, int], ...]


class DegradationCounter(NamedTuple):
    band: int
    step: int
    above_ns: Duration | None
    """How long the pressure has been high enough to raise the level. None if it is not."""
    below_ns: Duration | None
    limited_to_min_share: bool


class PoolGroupCounter(NamedTuple):
    """Degradation state of the requests that share a set of pools."""

    pools: tuple[PoolName, ...]
    degradations: tuple[DegradationCounter, ...]
    fraction: int
    """Fraction of arrivals that are shed, in millionths."""
    pressure: int
    ranks: tuple[int, ...]
    """Ranks of the latest arrivals, oldest first. Empty if no request is shed."""


class EndpointCounter(NamedTuple):
    """Learned speed factors of an endpoint, in millionths, and its consecutive ejections."""

    endpoint_id: EndpointId
    factors: tuple[int, int]
    sums: tuple[int, int, int, int, int]
    ejections: int


class LearnedSpeed(NamedTuple):
    """Endpoint speed learned by one scheduler, stored for the next scheduler of the same gateway."""

    endpoint_id: EndpointId
    pool: PoolName
    converged: bool
    """Whether the estimate has converged. If not, it is only a better initial value."""
    factors: tuple[int, int]
    sums: tuple[int, int, int, int, int]


class BudgetCounter(NamedTuple):
    """Amount spent from a scope's budget in the current period."""

    scope: str
    period: Period
    spent: NanoUsd
    began: Instant | None
    """Start of the calendar period. None if not yet known."""


class StartCounter(NamedTuple):
    """Cold start duration of a pool's first endpoint."""

    pool: PoolName
    took_ns: Duration


class QuarantineCounter(NamedTuple):
    """Quarantined request and its remaining quarantine time."""

    identity: str
    left_ns: Duration


@dataclass(frozen=True, slots=True)
class Counters:
    fair_queues: tuple[FairQueueCounter, ...] = ()
    min_shares: tuple[MinShareCounter, ...] = ()
    limits: tuple[LimitCounter, ...] = ()
    retry_credits: tuple[tuple[TenantId, int], ...] = ()
    """Retry credit of each tenant."""
    attempt_windows: tuple[WindowCounter, ...] = ()
    lengths: tuple[LengthsCounter, ...] = ()
    prompts: tuple[PromptCounter, ...] = ()
    first_tokens: tuple[TtftCounter, ...] = ()
    pool_groups: tuple[PoolGroupCounter, ...] = ()
    endpoints: tuple[EndpointCounter, ...] = ()
    cold_starts: tuple[StartCounter, ...] = ()
    budgets: tuple[BudgetCounter, ...] = ()
    quarantine: tuple[QuarantineCounter, ...] = ()

    def restricted_to(self, policy: Policy) -> "Counters":
        """Returns a copy that omits classes, tenants, pools and models that this policy does not define."""
        bands, tenants = {each.band for each in policy.classes}, tenant_table(policy.tenants).by_id
        pools, models = {"", *(each.name for each in policy.pools)}, {each.name for each in policy.models}
        hedging = {each.name for each in policy.classes if each.hedging}
        return Counters(
            fair_queues=tuple(each for each in self.fair_queues if each.band in bands and each.pool in pools),
            min_shares=tuple(each for each in self.min_shares if each.pool in pools),
            limits=self.limits,
            retry_credits=tuple(each for each in self.retry_credits if _knows(tenants, each[0])),
            attempt_windows=tuple(each for each in self.attempt_windows if each.pool in pools),
            lengths=tuple(each for each in self.lengths if _knows(tenants, each.tenant) and each.model in models),
            prompts=tuple(each for each in self.prompts if _knows(tenants, each.tenant) and each.model in models),
            first_tokens=tuple(
                each for each in self.first_tokens if each.service_class in hedging and each.pool in pools
            ),
            pool_groups=tuple(each for each in self.pool_groups if pools.issuperset(each.pools)),
            endpoints=self.endpoints,
            cold_starts=tuple(each for each in self.cold_starts if each.pool in pools),
            budgets=self.budgets,
            quarantine=self.quarantine,
        )


def _knows(tenants: PersistentMap[TenantId, Tenant], name: TenantId) -> bool:
    """Whether there is such a tenant. The empty name stands for all tenants."""
    return not name or name in tenants
