"""Interface to cost reports.

Amounts are integer billionths of a dollar. The parts of each line add up to its cost, and the lines add up to the
total. Days are UTC.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from headgate.model.money import NanoUsd
from headgate.model.units import Instant


class LedgerUnavailable(Exception):
    """The database did not respond. The message gives the reason."""


class NothingFound(Exception):
    """There is no data to report. The message gives the reason and an alternative."""


@dataclass(frozen=True, slots=True)
class ReportFilter:
    """Filter for the rows of a report. Empty strings match all rows."""

    since: Instant
    until: Instant
    """End of the range, exclusive."""
    tenant: str = ""
    """Tenant to report, including all tenants below it."""
    service_class: str = ""
    model: str = ""
    rolled_up: bool = False
    """Whether hourly sums replace individual rows that have been deleted. The range then consists of full hours."""


@dataclass(frozen=True, slots=True)
class CostLine:
    """Cost of one report line. `input + output + overhead + retries + idle = cost`."""

    name: str
    requests: int
    """Number of requests sent to an endpoint."""
    unsent: int
    """Number of requests that were never sent: rejected, expired or cancelled."""
    attempts: int
    tokens_in: int
    """Prompt tokens, over all attempts that tenants pay for."""
    tokens_cached: int
    """Cached prompt tokens, over all attempts that tenants pay for."""
    tokens_out: int
    """Output tokens, over all attempts that tenants pay for."""
    engine_us: int
    """Engine time of all attempts."""
    input_nano_usd: NanoUsd
    output_nano_usd: NanoUsd
    overhead_nano_usd: NanoUsd
    retries_nano_usd: NanoUsd
    """Cost of attempts that the platform pays for, such as failed ones."""
    idle_nano_usd: NanoUsd
    """Share of the idle endpoints' cost.

    0 if the platform absorbs this cost, or if the report covers only one class or model.
    """
    charged_nano_usd: NanoUsd
    """Part of the cost that tenants pay."""
    cost_nano_usd: NanoUsd
    request_nano_usd: NanoUsd | None
    """Cost per request sent."""
    thousand_tokens_nano_usd: NanoUsd | None
    """Cost per thousand tokens, prompt and output together."""
    share: float


@dataclass(frozen=True, slots=True)
class CostBreakdown:
    """Cost of endpoints, broken down by use. The two paid amounts together equal the sum of all others."""

    paid_time_nano_usd: NanoUsd
    """Cost of endpoints paid by the hour."""
    paid_tokens_nano_usd: NanoUsd
    """Cost of third-party endpoints paid by the token."""
    attributed_nano_usd: NanoUsd
    """Cost attributed to tenants."""
    waste_nano_usd: Mapping[str, NanoUsd]
    """Cost of attempts that the platform pays for, by cause."""
    starting_nano_usd: NanoUsd
    unready_nano_usd: NanoUsd
    late_nano_usd: NanoUsd
    idle_nano_usd: NanoUsd
    unexplained_nano_usd: NanoUsd
    unexplained_fraction: float | None
    """Unexplained share of the paid amount. None if nothing was paid."""


@dataclass(frozen=True, slots=True)
class CostReport:
    by: str
    since: Instant
    until: Instant
    lines: Sequence[CostLine]
    lines_omitted: int
    """Number of omitted lines. Each of them costs less than any included line."""
    total: CostLine
    """Total of all lines, including omitted ones."""
    account: CostBreakdown | None
    """Cost breakdown. None if the report covers only some of the requests."""
    accounts: Mapping[str, CostBreakdown]
    """Cost breakdown per pool, if the report is by pool."""
    resolution: str
    """Finest data that the report could use: `day` or `hour` for sums, `row` for individual rows.

    With `hour`, the range was extended to full hours, because the individual rows have been deleted.
    """


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
    """Reserved and actual cost of one request."""

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
    """What a tenant is charged for one kind of request, or for its share of a pool's idle time."""

    kind: str
    """Kind of charge: `usage` or `idle`."""
    path: str
    """Full path of the tenant: organisation, project, key."""
    model: str
    """Model name, or the pool for idle time."""
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
    """Forecast of a cost at the end of the month."""

    name: str
    """Path of a tenant, or the name of a total over all tenants."""
    kind: str
    """Kind of cost: `paid`, `charged` or `tenant`."""
    spent_nano_usd: NanoUsd
    expected_nano_usd: NanoUsd
    low_nano_usd: NanoUsd
    high_nano_usd: NanoUsd
    method: str
    """Forecast method: `weekday` or `mean`."""
    error: float | None
    """Mean relative error of the method when predicting past days. None if there were too few days to test."""
    budget_nano_usd: NanoUsd | None
    budget_expected_nano_usd: NanoUsd | None
    """Part of the expected cost that counts against the budget: everything except the share of idle endpoints."""
    hard: bool


@dataclass(frozen=True, slots=True)
class ForecastReport:
    month: str
    days_known: int
    certainty_percent: int
    forecasts: Sequence[Forecast]


@dataclass(frozen=True, slots=True)
class DriftPart:
    """Contribution of one cause to a change in cost."""

    cause: str
    change_nano_usd: NanoUsd
    percent: float
    """Change, in percent of the earlier cost."""
    kind: str
    """Largest contributor: a `tenant`, `model`, `class` or `pool`. Empty if none is dominant."""
    name: str
    name_change_nano_usd: NanoUsd


@dataclass(frozen=True, slots=True)
class Drift:
    """Difference between one day's cost and the mean cost of the preceding days. The parts add up to the change."""

    day: str
    until: Instant
    """End of the known part of the day. Earlier days are compared up to the same hour."""
    days_before: int
    before_nano_usd: NanoUsd
    """Mean cost of the preceding days, up to the same hour."""
    today_nano_usd: NanoUsd
    change_nano_usd: NanoUsd
    percent: float
    parts: Sequence[DriftPart]
    sentence: str


class CostReports(Protocol):
    """Cost reports. Each method raises `LedgerUnavailable` or `NothingFound`."""

    async def report(self, rows: ReportFilter, *, by: str, key: str, depth: int, limit: int) -> CostReport: ...

    async def request(self, request: str, day: str, *, now: Instant) -> RequestCost: ...

    async def statements(self, month: str, tenant: str, *, now: Instant) -> Sequence[Statement]: ...

    async def forecast(self, tenant: str, *, now: Instant) -> ForecastReport: ...

    async def drift(self, day: str, tenant: str, *, now: Instant) -> Drift: ...
