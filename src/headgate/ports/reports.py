"""What can be asked about cost, and of what shape are the answers?

Amounts are whole billionths of a dollar and add up: the parts of each line come to its cost, the lines to their total.
Days are UTC.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.model.money import NanoUsd
from headgate.model.units import Instant


class LedgerAway(Exception):
    """The database did not answer; the message says why."""


class NothingFound(Exception):
    """There is nothing to tell: the message says why, and what to do instead."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Of which rows is told."""

    since: Instant
    until: Instant
    """Not in it any more."""
    tenant: str = ""
    """This one and all below it; empty for all, as the others are."""
    service_class: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class CostLine:
    """What something cost. `input + output + overhead + retries + idle = cost`."""

    name: str
    requests: int
    """That were sent to an endpoint."""
    unsent: int
    """That never were: refused, expired, given up."""
    attempts: int
    tokens_in: int
    """Of attempts that were not in vain, as are those that follow."""
    tokens_cached: int
    tokens_out: int
    engine_us: int
    """Of all attempts."""
    input_nano_usd: NanoUsd
    output_nano_usd: NanoUsd
    overhead_nano_usd: NanoUsd
    retries_nano_usd: NanoUsd
    """Of attempts that were in vain, which the platform pays."""
    idle_nano_usd: NanoUsd
    """Its share of idle endpoints; 0 where that stays with the platform, or only a class or model is asked for."""
    charged_nano_usd: NanoUsd
    """What of the cost its tenants pay."""
    cost_nano_usd: NanoUsd
    request_nano_usd: NanoUsd | None
    """Per request that was sent."""
    thousand_tokens_nano_usd: NanoUsd | None
    """Per thousand tokens, those of prompts and answers together."""
    share: float


@dataclass(frozen=True, slots=True)
class Account:
    """What endpoints cost, and on what that was spent. The two that are paid come to what all others come to."""

    paid_time_nano_usd: NanoUsd
    """Endpoints by the hour."""
    paid_tokens_nano_usd: NanoUsd
    """Endpoints of others, by the token."""
    attributed_nano_usd: NanoUsd
    """To tenants."""
    waste_nano_usd: Mapping[str, NanoUsd]
    """What the platform pays of attempts, by cause."""
    starting_nano_usd: NanoUsd
    unready_nano_usd: NanoUsd
    late_nano_usd: NanoUsd
    idle_nano_usd: NanoUsd
    unexplained_nano_usd: NanoUsd
    unexplained_fraction: float | None
    """Of the paid; None where nothing was."""


@dataclass(frozen=True, slots=True)
class Report:
    by: str
    since: Instant
    until: Instant
    lines: Sequence[CostLine]
    left_out: int
    """So many lines cost less than those that are here."""
    total: CostLine
    """Of all lines, with those that were left out."""
    account: Account | None
    """None where only a part of the requests was asked for."""
    accounts: Mapping[str, Account]
    """The same for each pool, where the report is by pool."""


@dataclass(frozen=True, slots=True)
class AttemptCost:
    attempt: int
    correction: int
    at: Instant
    pool: str
    endpoint: str
    ending: str
    cause: str
    payer: str
    usage_source: str
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    tokens_reasoning: int
    queue_us: int
    ttft_us: int | None
    duration_us: int
    engine_us: int
    input_nano_usd: NanoUsd
    output_nano_usd: NanoUsd
    overhead_nano_usd: NanoUsd
    cost_nano_usd: NanoUsd


@dataclass(frozen=True, slots=True)
class RequestCost:
    """What one request was thought to cost at most, and what it did."""

    request: str
    at: Instant
    tenant: str
    service_class: str
    model: str
    outcome: str
    metadata: Mapping[str, str]
    attempts: Sequence[AttemptCost]
    reserved_nano_usd: NanoUsd
    input_nano_usd: NanoUsd
    output_nano_usd: NanoUsd
    overhead_nano_usd: NanoUsd
    retries_nano_usd: NanoUsd
    cost_nano_usd: NanoUsd
    charged_nano_usd: NanoUsd


@dataclass(frozen=True, slots=True)
class StatementLine:
    """What a tenant is charged for one kind of its requests, or for its share of a pool's idle time."""

    kind: str
    """`usage` or `idle`."""
    path: str
    """The whole path of the tenant: organisation, project, key."""
    model: str
    """The pool, for idle time."""
    service_class: str
    requests: int
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    input_nano_usd: NanoUsd
    output_nano_usd: NanoUsd
    overhead_nano_usd: NanoUsd
    charged_nano_usd: NanoUsd


@dataclass(frozen=True, slots=True)
class Statement:
    """What a tenant is charged for a month. The total is the sum of the lines."""

    tenant: str
    month: str
    complete: bool
    """Whether the month is over."""
    lines: Sequence[StatementLine]
    charged_nano_usd: NanoUsd


@dataclass(frozen=True, slots=True)
class Forecast:
    """What something will have cost when the month ends."""

    name: str
    """A tenant's path, or one of the sums over all."""
    kind: str
    """`paid`, `charged` or `tenant`."""
    spent_nano_usd: NanoUsd
    expected_nano_usd: NanoUsd
    low_nano_usd: NanoUsd
    high_nano_usd: NanoUsd
    method: str
    """`weekday` or `mean`."""
    error: float | None
    """By how much, on the mean, days that are past would have been misjudged; None where there were too few to try."""
    budget_nano_usd: NanoUsd | None
    budget_expected_nano_usd: NanoUsd | None
    """What of the expected counts for the budget: all but its share of idle endpoints."""
    hard: bool


@dataclass(frozen=True, slots=True)
class ForecastReport:
    month: str
    days_known: int
    certainty_percent: int
    forecasts: Sequence[Forecast]


@dataclass(frozen=True, slots=True)
class DriftPart:
    """What one cause contributed to a change of cost."""

    cause: str
    change_nano_usd: NanoUsd
    percent: float
    """Of what it cost before."""
    kind: str
    """What contributed most to it: a `tenant`, `model`, `class` or `pool`; empty where none stands out."""
    name: str
    name_change_nano_usd: NanoUsd


@dataclass(frozen=True, slots=True)
class Drift:
    """How a day's cost differs from that of the days before it. The parts come to the change."""

    day: str
    until: Instant
    """So far the day is known; the days before are compared up to the same hour."""
    days_before: int
    before_nano_usd: NanoUsd
    """On the mean of the days before, up to the same hour."""
    today_nano_usd: NanoUsd
    change_nano_usd: NanoUsd
    percent: float
    parts: Sequence[DriftPart]
    sentence: str


class Reports(Protocol):
    """Each raises `LedgerAway`, or `NothingFound`."""

    async def report(self, rows: Rows, *, by: str, key: str, depth: int, limit: int) -> Report: ...

    async def request(self, request: str, day: str, *, now: Instant) -> RequestCost: ...

    async def statements(self, month: str, tenant: str, *, now: Instant) -> Sequence[Statement]: ...

    async def forecast(self, tenant: str, *, now: Instant) -> ForecastReport: ...

    async def drift(self, day: str, tenant: str, *, now: Instant) -> Drift: ...
