"""What does it cost, who pays, and how much may be spent?

Money is whole billionths of a dollar, so that a request of a millisecond is not rounded to nothing and sums are exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NewType

from headgate.model.message import message
from headgate.model.units import Duration, Instant

NanoUsd = NewType("NanoUsd", int)

NANO_USD_PER_USD: Final = 1_000_000_000


class PriceKind(StrEnum):
    """How an endpoint-hour is bought."""

    ON_DEMAND = "on_demand"
    RESERVED = "reserved"
    SPOT = "spot"


@dataclass(frozen=True, slots=True)
class Price:
    """What a pool costs from a moment on: by the hour of each endpoint, or by the token where others host it."""

    since: Instant = Instant(0)
    hour: NanoUsd = NanoUsd(0)
    """Of one endpoint."""
    kind: PriceKind = PriceKind.ON_DEMAND
    input_tokens: NanoUsd = NanoUsd(0)
    """Of a million prompt tokens, as are those that follow."""
    cached_tokens: NanoUsd = NanoUsd(0)
    output_tokens: NanoUsd = NanoUsd(0)


def price_at(prices: Sequence[Price], now: Instant) -> Price | None:
    """The one that holds at a moment: the last that has begun. They stand in the order of their beginnings."""
    return next((each for each in reversed(prices) if each.since <= now), None)


class Payer(StrEnum):
    TENANT = "tenant"
    PLATFORM = "platform"


class Cause(StrEnum):
    """What an attempt's engine time was spent on."""

    ANSWER = "answer"
    CLIENT_LEFT = "client_left"
    RETRY = "retry"
    """It failed, and another attempt was made."""
    HEDGE = "hedge"
    """Another attempt answered first."""
    EXPIRED = "expired"
    """The caller's own deadline passed after the attempt was sent. The tenant pays for the work done until then."""
    ENGINE_FAILED = "engine_failed"
    REFUSED = "refused"
    """The engine judged the request itself to be wrong."""
    LEAVING = "leaving"
    """The process that held the request left."""


PAYERS: Final = {
    Cause.ANSWER: Payer.TENANT,
    Cause.CLIENT_LEFT: Payer.TENANT,
    Cause.EXPIRED: Payer.TENANT,
    Cause.REFUSED: Payer.TENANT,
    Cause.RETRY: Payer.PLATFORM,
    Cause.HEDGE: Payer.PLATFORM,
    Cause.ENGINE_FAILED: Payer.PLATFORM,
    Cause.LEAVING: Payer.PLATFORM,
}


@message
class Bill:
    """What one attempt took of its endpoint's time, and what that costs."""

    attempt: int
    cause: Cause
    input_ns: Duration
    """Computing the prompt."""
    output_ns: Duration
    """Producing the answer."""
    overhead_ns: Duration
    """Its share of what a step takes whatever is in it."""
    input: NanoUsd
    output: NanoUsd
    overhead: NanoUsd


@message
class EndpointTime:
    """How the time of one endpoint was spent since it was last asked for. The parts come to the whole."""

    endpoint_id: str
    pool: str
    whole_ns: Duration
    starting_ns: Duration
    """It had joined and never said that it was ready."""
    unready_ns: Duration
    """It said that it was not ready, or was ejected, and nothing ran."""
    idle_ns: Duration
    """It was ready, and nothing ran."""
    billed_ns: Duration
    """It is in bills, or will be when those requests end."""
    late_ns: Duration
    """Attempts that were stopped took so long to end after their requests had."""


class Period(StrEnum):
    DAY = "day"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be spent in a period."""

    period: Period
    limit: NanoUsd
    hard: bool = True
    """Whether nothing more is let in when it is spent; else those whom it is for give up quality instead."""
    part: tuple[int, int] = (1, 1)
    """Of what is left, so many of so many parts may be spent by the one whose budget this is."""

    @property
    def parted(self) -> bool:
        return self.part[0] != self.part[1]


@message
class BudgetLeft:
    """Where a budget stands."""

    scope: str
    """`tenant:acme/search` or `class:batch`."""
    period: Period
    hard: bool
    limit: NanoUsd
    spent: NanoUsd
    reserved: NanoUsd
    """By requests that have not ended."""
    reset_ns: Duration | None
    """Until the period ends; None as long as nobody has told."""
