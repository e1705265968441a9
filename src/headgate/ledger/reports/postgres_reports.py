"""Cost reports from the ledger.

Each report reads one snapshot of the database (`queries.py`). The calculations are pure functions in `accounts.py`,
`statement.py`, `forecast.py`, `comparison.py` and `drift.py`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Final

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from headgate.ledger.connection import DatabaseConnection
from headgate.ledger.database import DATABASE_ERRORS, Database
from headgate.ledger.reports import queries
from headgate.ledger.reports.comparison import compare_days
from headgate.ledger.reports.cost_breakdown import (
    IdleShares,
    PoolSpending,
    PoolTime,
    cost_breakdown,
    cost_breakdowns_by_pool,
    divide_rounded,
    idle_shares,
    is_token_priced,
    path_prefix,
)
from headgate.ledger.reports.drift import drift, sentence
from headgate.ledger.reports.forecast import CONFIDENCE_PERCENT, WEEK, WEEKS_MAX, forecast_month
from headgate.ledger.reports.queries import LINES_MAX, US_PER_DAY, date_of, to_datetime, to_instant, whole_days
from headgate.ledger.reports.request_cost import request_cost
from headgate.ledger.reports.statement import statements
from headgate.ledger.reports.unit_queries import unit_lines
from headgate.ledger.schema_migration import NEXT_STEP
from headgate.model.money import NanoUsd, Price, price_at
from headgate.model.units import Instant
from headgate.ports.cost_reports import (
    CostLine,
    CostReport,
    Drift,
    Forecast,
    ForecastReport,
    LedgerUnavailable,
    NothingFound,
    ReportFilter,
    RequestCost,
    Statement,
)

QUERY_S_MAX: Final = 12.0
REPORT_S_MAX: Final = 45.0
"""Timeout for all queries of one report."""
SEARCH_S_MAX: Final = 8.0
"""Timeout for finding a request whose day is not given."""
DAYS_BEFORE: Final = 7
_DAY: Final = timedelta(days=1)
_QUERY_SETTINGS: Final = (
    "set local work_mem = '64MB'; set local jit = off; set local parallel_tuple_cost = 0;"
    " set local parallel_setup_cost = 0"
)
"""Settings for sums over millions of rows: in memory, in parallel, and without JIT compilation, which would take longer
than the query.
"""
_FORECAST_KINDS: Final = ("paid", "charged", "tenant")
IDLE_LINE: Final = "(idle)"
"""Name of the line for shared idle cost that cannot be divided among the other lines."""


@dataclass(frozen=True, slots=True)
class ReportPolicy:
    """Parts of the policy that reports need."""

    prices: Mapping[str, Sequence[Price]] = field(default_factory=dict[str, Sequence[Price]])
    """Each pool's prices, sorted by start. Prices start at midnight."""
    idle_weights: Mapping[str, Mapping[str, int]] | None = None
    """Weights by pool and tenant for dividing idle cost; None if the platform pays for it."""
    month_budgets: Mapping[str, tuple[NanoUsd, bool]] | None = None
    """Each tenant's monthly budget, and whether it is a hard limit."""
    unit: str = ""
    """Default metadata key of business units."""
    retention_days: int = 30
    """How long individual rows are kept, in days."""

    def by_hour(self, day: str, pool: str) -> bool:
        price = price_at(self.prices.get(pool, ()), to_instant(date.fromisoformat(day)))
        return price is not None and price.per_hour > 0


class PostgresReports:
    def __init__(
        self, database: Database, policy: Callable[[], ReportPolicy], *, units_few: int = queries.UNITS_AT_ONCE_MAX
    ) -> None:
        """`database` must not be shared with other users. `policy` is called for each report, because the policy may
        change.
        """
        self._database = database
        self._terms = policy
        self._units_few = units_few

    async def stop(self) -> None:
        await self._database.stop()

    # Cost report

    async def report(self, rows: ReportFilter, *, by: str, key: str, depth: int, limit: int) -> CostReport:
        terms = self._terms()
        key = key or terms.unit
        if by == "unit" and not key:
            raise NothingFound("no business unit is selected; set --unit-key or ledger.unit_key to a metadata key")
        divided = by in ("tenant", "pool", "day")
        whole = not (rows.tenant or rows.service_class or rows.model)
        # Idle cost does not belong to any class or model.
        shares = terms.idle_weights is not None and not (rows.service_class or rows.model)
        wanted = LINES_MAX if shares and divided else limit
        async with self._reading() as link:
            if by != "unit":
                rows = await queries.with_hourly_sums(link, rows)
            summed = await unit_lines(link, rows, key=key, limit=wanted) if by == "unit" else None
            lines, count, total = summed or await queries.cost_lines(
                link, rows, by=by, key=key, depth=depth, limit=wanted, units_at_once_max=self._units_few
            )
            times = await queries.pool_times(link, rows) if whole or shares else []
            spendings = await queries.pool_spendings(link, rows) if whole else []
            idle = await _idle_shares(link, rows, times, terms) if shares else []
        if not (total.attempts or total.unsent or any(each for *_, each in idle) or (whole and times)):
            raise NothingFound(_nothing_recorded_text(rows, by, terms.retention_days))
        if shares:
            lines, total = _with_idle(lines, total, _idle_lines(idle, by, depth))
            count = max(count, len(lines)) if divided else count + any(line.name == IDLE_LINE for line in lines)
        lines = sorted(lines, key=lambda line: (-line.cost_nano_usd, line.name))[:limit]
        if by == "day":
            lines.sort(key=lambda line: line.name)
        return CostReport(
            by=by if by != "unit" else key,
            since=rows.since,
            until=rows.until,
            lines=[_with_ratios(line, total.cost_nano_usd) for line in lines],
            lines_omitted=count - len(lines),
            total=_with_ratios(total, total.cost_nano_usd),
            account=cost_breakdown(times, spendings, terms.by_hour) if whole else None,
            accounts=cost_breakdowns_by_pool(times, spendings, terms.by_hour) if whole and by == "pool" else {},
            resolution=_resolution(rows, single=by == "unit" and summed is None),
        )

    # Single request

    async def request(self, request: str, day: str, *, now: Instant) -> RequestCost:
        """Rows are partitioned by day.

        If no day is given, the search starts with the most recent day and goes backward.
        """
        first = date.fromisoformat(day) if day else date_of(now)
        kept_days = self._terms().retention_days
        days = 1 if day else kept_days + 1
        give_up_at = time.monotonic() + SEARCH_S_MAX
        looked = 0
        async with self._reading() as link:
            while looked < days and time.monotonic() < give_up_at:
                if rows := await queries.request_rows(link, request, first - looked * _DAY):
                    return request_cost(rows)
                looked += 1
        where = f"on {first}" if day else f"since {first - (looked - 1) * _DAY}"
        hint = "" if day or looked == days else "; for older requests, pass the day (--day 2026-11-15)"
        raise NothingFound(
            f'request "{request}" is not recorded {where}{hint}; use the x-request-id of the response. Rows are written'
            f" a few seconds after a request ends and kept for {kept_days} days."
        )

    # Monthly statements

    async def statements(self, month: str, tenant: str, *, now: Instant) -> Sequence[Statement]:
        first = date.fromisoformat(f"{month}-01")
        rows = ReportFilter(to_instant(first), to_instant((first + 31 * _DAY).replace(day=1)), tenant)
        terms = self._terms()
        async with self._reading() as link:
            lines = await queries.statement_lines(link, rows)
            times = [] if terms.idle_weights is None else await queries.pool_times(link, rows)
            idle = await _idle_shares(link, rows, times, terms)
        if len(lines) > LINES_MAX:
            raise NothingFound(f"the statements have more than {LINES_MAX} lines; select one tenant with --tenant")
        found = statements(lines, _idle_by_pool(idle), month=month, complete=now >= rows.until, tenant=tenant)
        if not found:
            whom = f' to "{tenant}"' if tenant else ""
            raise NothingFound(f"nothing was charged{whom} in {month}; choose another month or tenant")
        return found

    # Forecast

    async def forecast(self, tenant: str, *, now: Instant) -> ForecastReport:
        terms, today = self._terms(), date_of(now)
        began = today.replace(day=1)
        rows = ReportFilter(to_instant(min(began, today - WEEK * WEEKS_MAX * _DAY)), to_instant(today + _DAY), tenant)
        budgets = {
            name: budget
            for name, budget in (terms.month_budgets or {}).items()
            if not tenant or _is_below(name, tenant)
        }
        async with self._reading() as link:
            bills = await queries.charged_by_day(link, rows, depth=_depth_below(tenant), others=list(budgets))
            times = [] if tenant and terms.idle_weights is None else await queries.pool_times(link, rows)
            spendings = [] if tenant else await queries.pool_spendings(link, rows)
            idle = await _idle_shares(link, rows, times, terms)
        tenants = _with_idle_days(bills, idle, _depth_below(tenant), budgets)
        charged = tenants.pop("", {})
        if tenant in budgets:
            # This would be the same as the total.
            tenants.pop(tenant, None)
        if not charged and (tenant or not times):
            raise NothingFound("nothing is recorded yet; send requests to a gateway with `ledger` in its configuration")
        series = {("charged", tenant or "all tenants"): charged}
        series |= {("tenant", name): days for name, days in tenants.items()}
        if not tenant and (times or spendings):
            series["paid", "all endpoints"] = _paid_by_day(times, spendings, terms)
        left = 1 - now // 1_000 % US_PER_DAY / US_PER_DAY
        calendar = _Calendar(date_of(rows.since), began, today, left)
        found = [_forecast(kind, name, days, calendar) for (kind, name), days in series.items()]
        found = [
            _with_budget(each, bills.get(each.name, {}), calendar, budgets[each.name])
            if each.kind != "paid" and each.name in budgets
            else each
            for each in found
        ]
        found.sort(key=lambda each: (_FORECAST_KINDS.index(each.kind), -each.expected_nano_usd, each.name))
        days = {day for each in series.values() for day in each} - {today.isoformat()}
        return ForecastReport(f"{began:%Y-%m}", len(days), CONFIDENCE_PERCENT, found[:LINES_MAX])

    # Drift

    async def drift(self, day: str, tenant: str, *, now: Instant) -> Drift:
        today = date.fromisoformat(day) if day else date_of(now)
        began, until = to_instant(today), min(now, to_instant(today + _DAY))
        if until <= began:
            raise NothingFound(f"{today} is in the future; choose a day up to today")
        rows = ReportFilter(to_instant(today - DAYS_BEFORE * _DAY), to_instant(today + _DAY), tenant)
        before = replace(rows, until=began)
        async with self._reading() as link:
            if until < to_instant(today + _DAY):
                # Cost that has not been written yet would look like a saving.
                until = await queries.known_until(link, began, until) or until
            part_us = (until - began) // 1_000
            kinds = await queries.costs_by_group(link, rows, depth=_depth_below(tenant))
            times = [] if tenant else await queries.pool_times_by_day(link, rows, part_us=part_us)
            days = await queries.days_with_usage(link, before)
            share = await queries.busy_share(link, before, part_us=part_us)
        days |= {each.day for each in times if each.day != today.isoformat()}
        if not days:
            raise NothingFound(
                f"nothing is recorded in the {DAYS_BEFORE} days before {today}; {_later_day_hint(today, now)}"
            )
        if today.isoformat() not in kinds and not any(each.day == today.isoformat() for each in times):
            raise NothingFound(f"nothing is recorded on {today} yet; choose an earlier day with --day")
        one, other = compare_days(
            kinds,
            times,
            today.isoformat(),
            days=len(days),
            share=part_us / US_PER_DAY if share is None or part_us >= US_PER_DAY else share,
            by_token=is_token_priced(times, self._terms().by_hour),
        )
        parts, cost_before, cost_today = drift(one, other)
        if cost_before <= 0:
            raise NothingFound(
                f"nothing was spent by this time in the {DAYS_BEFORE} days before {today};"
                f" {_later_day_hint(today, now)}"
            )
        change = NanoUsd(cost_today - cost_before)
        return Drift(
            day=today.isoformat(),
            until=Instant(until),
            days_before=len(days),
            before_nano_usd=cost_before,
            today_nano_usd=cost_today,
            change_nano_usd=change,
            percent=100 * change / cost_before,
            parts=parts,
            sentence=sentence(parts, before=cost_before, today=cost_today),
        )

    @asynccontextmanager
    async def _reading(self) -> AsyncGenerator[DatabaseConnection]:
        """Opens a read-only transaction, so that all of a report's queries use the same snapshot."""
        answers = False
        try:
            async with (
                asyncio.timeout(REPORT_S_MAX),
                self._database.acquire() as link,
                link.transaction(isolation="repeatable_read", readonly=True),
            ):
                await link.execute(_QUERY_SETTINGS)
                answers = True
                yield link
        except asyncpg.UndefinedTableError as error:
            raise LedgerUnavailable(f"the database schema is not up to date; {NEXT_STEP}") from error
        except DATABASE_ERRORS as error:
            if answers and isinstance(error, TimeoutError | asyncpg.QueryCanceledError):
                raise LedgerUnavailable("the query timed out; choose fewer days") from error
            raise LedgerUnavailable(self._database.describe(error)) from error


def _resolution(rows: ReportFilter, *, single: bool) -> str:
    if rows.rolled_up:
        return "hour"
    return "row" if single or not whole_days(rows) else "day"


def _nothing_recorded_text(rows: ReportFilter, by: str, kept_days: int) -> str:
    since, until = to_datetime(rows.since), to_datetime(rows.until)
    what = f"nothing is recorded from {since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M} UTC"
    if rows.tenant or rows.service_class or rows.model:
        return f"{what} for this selection; choose another time range or omit --tenant, --class and --model"
    if by == "unit" or not whole_days(rows):
        return f"{what}; individual rows are kept for {kept_days} days. Choose a later time range or complete days."
    return f"{what}; send requests to a gateway with `ledger` in its configuration, or choose another time range"


def _later_day_hint(day: date, now: Instant) -> str:
    if day == date_of(now):
        return "try again tomorrow, because drift compares each day with the days before it"
    return "choose a later day"


# Shared idle cost


async def _idle_shares(
    link: DatabaseConnection, rows: ReportFilter, times: Sequence[PoolTime], terms: ReportPolicy
) -> list[IdleShares]:
    """The selected tenants' shares of the idle cost. Yields to the event loop after each pool and day."""
    weights = terms.idle_weights
    if weights is None or not times:
        return []
    begun = await queries.tenant_first_days(link, rows, sorted({name for each in weights.values() for name in each}))
    found: list[IdleShares] = []
    for day, pool, shares in idle_shares(times, weights, begun):
        mine = {name: shares[name] for name in shares if not rows.tenant or _is_below(name, rows.tenant)}
        found.append((day, pool, mine))
        await asyncio.sleep(0)
    return found


def _idle_lines(idle: Sequence[IdleShares], by: str, depth: int) -> dict[str, int]:
    """Idle cost by line name."""
    found: dict[str, int] = {}
    for day, pool, shares in idle:
        for path, cost in shares.items():
            name = path_prefix(path, depth) if by == "tenant" else {"pool": pool, "day": day}.get(by, IDLE_LINE)
            found[name] = found.get(name, 0) + cost
    return found


def _idle_by_pool(idle: Sequence[IdleShares]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for _, pool, shares in idle:
        pools = found.setdefault(pool, {})
        for path, cost in shares.items():
            pools[path] = pools.get(path, 0) + cost
    return found


def _with_idle_days(
    bills: Mapping[str, Mapping[str, int]], idle: Sequence[IdleShares], depth: int, others: Collection[str]
) -> dict[str, dict[str, int]]:
    """Charges by tenant and day, for tenants at `depth`, tenants in `others`, and the total ('')."""
    charged = {name: dict(days) for name, days in bills.items()}
    for day, _, shares in idle:
        for path, cost in shares.items():
            levels = {path_prefix(path, steps) for steps in range(1, 4)}
            for name in ("", *(each for each in levels if each == path_prefix(path, depth) or each in others)):
                days = charged.setdefault(name, {})
                days[day] = days.get(day, 0) + cost
    return charged


def _with_idle(lines: Sequence[CostLine], total: CostLine, idle: Mapping[str, int]) -> tuple[list[CostLine], CostLine]:
    """Adds idle cost to the lines. Tenants without requests get a line for their share."""
    empty = {each: 0 for each in CostLine.__dataclass_fields__ if each not in ("name", "share")}
    named = {line.name: line for line in lines}
    for name in idle:
        named.setdefault(name, CostLine(name=name, share=0.0, **empty))  # pyright: ignore[reportArgumentType]
    return [_with_idle_cost(line, idle.get(line.name, 0)) for line in named.values()], _with_idle_cost(
        total, sum(idle.values())
    )


def _with_idle_cost(line: CostLine, idle: int) -> CostLine:
    return replace(
        line,
        idle_nano_usd=NanoUsd(idle),
        charged_nano_usd=NanoUsd(line.charged_nano_usd + idle),
        cost_nano_usd=NanoUsd(line.cost_nano_usd + idle),
    )


def _with_ratios(line: CostLine, whole: int) -> CostLine:
    """Fills in the derived values: cost per request, cost per 1,000 tokens and share of the total."""
    tokens = line.tokens_in + line.tokens_out
    return replace(
        line,
        request_nano_usd=NanoUsd(divide_rounded(line.cost_nano_usd, line.requests)) if line.requests else None,
        thousand_tokens_nano_usd=NanoUsd(divide_rounded(1_000 * line.cost_nano_usd, tokens)) if tokens else None,
        share=line.cost_nano_usd / whole if whole else 0.0,
    )


# Forecasts


@dataclass(frozen=True, slots=True)
class _Calendar:
    first_day: date
    """First day with known costs."""
    month_start: date
    """First day of the month."""
    today: date
    today_left: float
    """Remaining fraction of today."""


def _forecast(kind: str, name: str, costs: Mapping[str, int], calendar: _Calendar) -> Forecast:
    today = calendar.today
    days = [costs.get(f"{calendar.first_day + past * _DAY}", 0) for past in range((today - calendar.first_day).days)]
    today_cost = costs.get(today.isoformat(), 0)
    spent = sum(cost for day, cost in costs.items() if day >= calendar.month_start.isoformat())
    next_month = (calendar.month_start + 31 * _DAY).replace(day=1)
    seen = forecast_month(
        days, so_far=spent, today=today_cost, today_left=calendar.today_left, ahead=(next_month - today).days - 1
    )
    return Forecast(
        name=name,
        kind=kind,
        spent_nano_usd=NanoUsd(spent),
        expected_nano_usd=NanoUsd(seen.expected),
        low_nano_usd=NanoUsd(seen.low),
        high_nano_usd=NanoUsd(seen.high),
        method=seen.method,
        error=seen.error,
        budget_nano_usd=None,
        budget_expected_nano_usd=None,
        hard=False,
    )


def _with_budget(
    forecast: Forecast, bills: Mapping[str, int], calendar: _Calendar, budget: tuple[NanoUsd, bool]
) -> Forecast:
    """Adds the budget and its forecast. Only the cost of requests counts against a budget, not shared idle cost."""
    expected = _forecast(forecast.kind, forecast.name, bills, calendar).expected_nano_usd
    return replace(forecast, budget_nano_usd=budget[0], budget_expected_nano_usd=expected, hard=budget[1])


def _paid_by_day(times: Sequence[PoolTime], spendings: Sequence[PoolSpending], terms: ReportPolicy) -> dict[str, int]:
    hosted = is_token_priced(times, terms.by_hour)
    paid: dict[str, int] = {}
    for each in times:
        paid[each.day] = paid.get(each.day, 0) + each.cost(each.total_us)
    for each in spendings:
        if hosted(each.day, each.pool):
            paid[each.day] = paid.get(each.day, 0) + each.nano_usd
    return paid


def _depth_below(tenant: str) -> int:
    """Path depth of the tenant's direct children."""
    return tenant.count("/") + 2 if tenant else 1


def _is_below(path: str, tenant: str) -> bool:
    return path == tenant or path.startswith(f"{tenant}/")
