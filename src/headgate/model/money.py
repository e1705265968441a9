"""Prices, bills and budgets.

Amounts are integer billionths of a dollar, so that the cost of a one-millisecond request is not rounded to zero and
sums are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType

from headgate.model.message import message
from headgate.model.units import MINUTE, Duration, Instant

NanoUsd = NewType("NanoUsd", int)

NANO_USD_PER_USD: Final = 1_000_000_000
_HOUR: Final = 60 * MINUTE
_HALF_AN_HOUR: Final = _HOUR // 2


class PriceKind(StrEnum):
    """Purchase type of an endpoint-hour."""

    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Price:
    """Price of a pool, starting at a given time: per endpoint-hour, or per token if a third party hosts the engines."""

    since: Instant = Instant(0)
    per_hour: NanoUsd = NanoUsd(0)
    """Price per hour of one endpoint."""
    kind: PriceKind = PriceKind.ON_DEMAND
    input_per_1m_tokens: NanoUsd = NanoUsd(0)
    """Price per million prompt tokens."""
    cached_per_1m_tokens: NanoUsd = NanoUsd(0)
    """Price per million prompt tokens found in the engine's prefix cache."""
    output_per_1m_tokens: NanoUsd = NanoUsd(0)
    """Price per million output tokens."""

    @property
    def is_per_token(self) -> bool:
        return bool(self.input_per_1m_tokens or self.cached_per_1m_tokens or self.output_per_1m_tokens)

    def of_time(self, duration_ns: int) -> NanoUsd:
        """Returns the cost of this much time of one endpoint, rounded."""
        return NanoUsd((duration_ns * self.per_hour + _HALF_AN_HOUR) // _HOUR)


def price_at(prices: Sequence[Price], now: Instant) -> Price | None:
    """Returns the price in effect at a given time, or None. `prices` must be sorted by start time."""
    return next((each for each in reversed(prices) if each.since <= now), None)


class Payer(StrEnum):
    TENANT = "tenant"
    PLATFORM = "platform"


class BillCause(StrEnum):
    """Why an attempt used engine time."""

    ANSWER = "answer"
    CLIENT_DISCONNECTED = "client_disconnected"
    RETRY = "retry"
    """The attempt failed and was retried."""
    HEDGE = "hedge"
    """Another attempt responded first."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The caller's deadline passed after the attempt was sent. The tenant pays for the work done until then."""
    ENGINE_ERROR = "engine_error"
    ENGINE_REJECTED = "engine_rejected"
    """The engine rejected the request as invalid."""
    SHUTDOWN = "shutdown"
    """The process that held the request shut down."""
    MIRROR = "mirror"
    """The request is a copy of another one, and its response is discarded."""


PAYER_BY_CAUSE: Final = {
    BillCause.ANSWER: Payer.TENANT,
    BillCause.CLIENT_DISCONNECTED: Payer.TENANT,
    BillCause.DEADLINE_EXCEEDED: Payer.TENANT,
    BillCause.ENGINE_REJECTED: Payer.TENANT,
    BillCause.RETRY: Payer.PLATFORM,
    BillCause.HEDGE: Payer.PLATFORM,
    BillCause.ENGINE_ERROR: Payer.PLATFORM,
    BillCause.SHUTDOWN: Payer.PLATFORM,
    BillCause.MIRROR: Payer.PLATFORM,
}


@message
class Bill:
    """Engine time of one attempt and its cost."""

    attempt: int
    cause: BillCause
    input_ns: Duration
    """Time to compute the prompt."""
    output_ns: Duration
    """Time to generate the output."""
    overhead_ns: Duration
    """The attempt's share of the fixed step time."""
    input_nano_usd: NanoUsd
    output_nano_usd: NanoUsd
    overhead_nano_usd: NanoUsd

    @property
    def nano_usd(self) -> NanoUsd:
        return NanoUsd(self.input_nano_usd + self.output_nano_usd + self.overhead_nano_usd)


@message
class EndpointTime:
    """How one endpoint has spent its time since the last report. The parts add up to the total."""

    endpoint_id: str
    pool: str
    total_ns: Duration
    starting_ns: Duration
    """Time before the endpoint first reported that it was ready."""
    unready_ns: Duration
    """Time during which the endpoint was not ready or was ejected and had no running attempts."""
    idle_ns: Duration
    """Time during which the endpoint was ready and had no running attempts."""
    billed_ns: Duration
    """Time included in bills, or in the future bills of open requests."""
    abort_lag_ns: Duration
    """Time that aborted attempts kept running after their requests had ended."""


class Period(StrEnum):
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Budget:
    """Spending limit for a period."""

    period: Period
    limit: NanoUsd
    hard: bool = True
    """Whether requests are rejected once the budget is spent. If false, they are degraded instead."""
    share: tuple[int, int] = (1, 1)
    """Share of the remaining amount that the budget's owner may spend, as numerator and denominator."""

    @property
    def is_shared(self) -> bool:
        return self.share[0] != self.share[1]


@message
class BudgetStatus:
    """Current state of a budget."""

    scope: str
    """Scope of the budget, such as `tenant:acme/search` or `class:batch`."""
    period: Period
    hard: bool
    limit: NanoUsd
    spent: NanoUsd
    reserved: NanoUsd
    """Amount reserved by open requests."""
    reset_ns: Duration | None
    """Time until the period ends. None if it is not known yet."""
