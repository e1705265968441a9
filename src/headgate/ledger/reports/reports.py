"""What do the rows say about cost?

Each answer is made of rows of one moment (`report_queries.py`), by modules that touch nothing outside: `accounts.py`,
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

from headgate.ledger.database import FAILURES, Database
from headgate.ledger.link import Link
from headgate.ledger.migrate import NEXT_STEP
from headgate.ledger.reports import queries
from headgate.ledger.reports.accounts import (
    PoolSpending,
    PoolTime,
    Shares,
    account_of,
    accounts_by_pool,
    by_token,
    idle_shares,
    nearest,
    path_of,
)
from headgate.ledger.reports.comparison import compared
from headgate.ledger.reports.drift import drift, sentence
from headgate.ledger.reports.forecast import CERTAINTY_PERCENT, WEEK, WEEKS_MAX, outlook
from headgate.ledger.reports.queries import LINES_MAX, US_PER_DAY, date_of, instant, moment, whole_days
from headgate.ledger.reports.request_cost import request_cost
from headgate.ledger.reports.statement import statements
from headgate.model.money import NanoUsd, Price, price_at
from headgate.model.units import Instant
from headgate.ports.reports import (
    CostLine,
    Drift,
    Forecast,
    ForecastReport,
    LedgerAway,
    NothingFound,
    Report,
    RequestCost,
    Rows,
    Statement,
)

QUERY_S_MAX: Final = 12.0
ANSWER_S_MAX: Final = 45.0
"""All queries of one answer together."""
SEARCH_S_MAX: Final = 8.0
"""So long a request is looked for, day by day, before its day is asked for."""
DAYS_BEFORE: Final = 7
_DAY: Final = timedelta(days=1)
_ROOM: Final = (
    "set local work_mem = '64MB'; set local jit = off; set local parallel_tuple_cost = 0;"
    " set local parallel_setup_cost = 0"
)
"""Sums over a million rows are made in memory, by several processes, and too quickly to be worth compiling."""
_KINDS: Final = ("paid", "charged", "tenant")
IDLE: Final = "(idle)"
"""The line of idle time that tenants share, where lines are something among which it cannot be divided."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the policy says that reports need."""

    prices: Mapping[str, Sequence[Price]] = field(default_factory=dict[str, Sequence[Price]])
    """Of each pool, in the order of their beginnings, which are midnights."""
    idle_weights: Mapping[str, Mapping[str, int]] | None = None
    """Pool -> tenant -> weight, where tenants share idle time; None where it stays with the platform."""
    month_budgets: Mapping[str, tuple[NanoUsd, bool]] | None = None
    """Tenant -> what it may spend in a month, and whether that is hard."""
    unit: str = ""
    """Which key of the metadata names units of business, where nobody says."""
    retention_days: int = 30
    """So long single rows are kept."""

    def by_hour(self, day: str, pool: str) -> bool:
        price = price_at(self.prices.get(pool, ()), instant(date.fromisoformat(day)))
        return price is not None and price.hour > 0


class PostgresReports:
    def __init__(self, database: Database, terms: Callable[[], Terms], *, units_few: int = queries.UNITS_FEW) -> None:
        """The database is its own. `terms` are asked for anew with each report, since the policy may change."""
        self._database = database
        self._terms = terms
        self._units_few = units_few

    async def stop(self) -> None:
        await self._database.stop()

    # What it cost

    async def report(self, rows: Rows, *, by: str, key: str, depth: int, limit: int) -> Report:
        terms = self._terms()
        key = key or terms.unit
        if by == "unit" and not key:
            raise NothingFound("no unit of business is named; name a key of the metadata (--key), or ledger.unit")
        divided = by in ("tenant", "pool", "day")
        whole = not (rows.tenant or rows.service_class or rows.model)
        # Of no class and no model: nobody ran.
        shares = terms.idle_weights is not None and not (rows.service_class or rows.model)
        wanted = LINES_MAX if shares and divided else limit
        async with self._reading() as link:
            lines, count, total = await queries.lines(
                link, rows, by=by, key=key, depth=depth, limit=wanted, units_few=self._units_few
            )
            times = await queries.times(link, rows) if whole or shares else []
            spendings = await queries.spendings(link, rows) if whole else []
            idle = await _idle(link, rows, times, terms) if shares else []
        if not (total.attempts or total.unsent or any(each for *_, each in idle) or (whole and times)):
            raise NothingFound(_nothing(rows, by, terms.retention_days))
        if shares:
            lines, total = _with_idle(lines, total, _idle_lines(idle, by, depth))
            count = max(count, len(lines)) if divided else count + any(line.name == IDLE for line in lines)
        lines = sorted(lines, key=lambda line: (-line.cost_nano_usd, line.name))[:limit]
        if by == "day":
            lines.sort(key=lambda line: line.name)
        return Report(
            by=by if by != "unit" else key,
            since=rows.since,
            until=rows.until,
            lines=[_divided(line, total.cost_nano_usd) for line in lines],
            left_out=count - len(lines),
            total=_divided(total, total.cost_nano_usd),
            account=account_of(times, spendings, terms.by_hour) if whole else None,
            accounts=accounts_by_pool(times, spendings, terms.by_hour) if whole and by == "pool" else {},
        )

    # One request

    async def request(self, request: str, day: str, *, now: Instant) -> RequestCost:
        """Rows are found by their day, so without one days are looked at from the latest on."""
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
        hint = "" if day or looked == days else "; there are older days: name its day (--day 2026-11-15)"
        raise NothingFound(
            f'no request "{request}" is recorded {where}{hint}; an id is what x-request-id of the answer says, its rows'
            f" come some seconds after its end and are kept for {kept_days} days"
        )

    # A month

    async def statements(self, month: str, tenant: str, *, now: Instant) -> Sequence[Statement]:
        first = date.fromisoformat(f"{month}-01")
        rows = Rows(instant(first), instant((first + 31 * _DAY).replace(day=1)), tenant)
        terms = self._terms()
        async with self._reading() as link:
            lines = await queries.statement_lines(link, rows)
            times = [] if terms.idle_weights is None else await queries.times(link, rows)
            idle = await _idle(link, rows, times, terms)
        if len(lines) > LINES_MAX:
            raise NothingFound(f"there are more than {LINES_MAX} lines; ask for one tenant at a time (--tenant)")
        found = statements(lines, _idle_by_pool(idle), month=month, complete=now >= rows.until, tenant=tenant)
        if not found:
            whom = f' to "{tenant}"' if tenant else ""
            raise NothingFound(f"nothing was charged{whom} in {month}; ask for another month, or another tenant")
        return found

    # What is to come

    async def forecast(self, tenant: str, *, now: Instant) -> ForecastReport:
        terms, today = self._terms(), date_of(now)
        began = today.replace(day=1)
        rows = Rows(instant(min(began, today - WEEK * WEEKS_MAX * _DAY)), instant(today + _DAY), tenant)
        budgets = {
            name: budget
            for name, budget in (terms.month_budgets or {}).items()
            if not tenant or _is_below(name, tenant)
        }
        async with self._reading() as link:
            bills = await queries.charged_by_day(link, rows, depth=_depth_below(tenant), others=list(budgets))
            times = [] if tenant and terms.idle_weights is None else await queries.times(link, rows)
            spendings = [] if tenant else await queries.spendings(link, rows)
            idle = await _idle(link, rows, times, terms)
        tenants = _with_idle_days(bills, idle, _depth_below(tenant), budgets)
        charged = tenants.pop("", {})
        if tenant in budgets:
            # That is the sum itself.
            tenants.pop(tenant, None)
        if not charged and (tenant or not times):
            raise NothingFound("nothing is recorded yet; send requests to a gateway whose configuration has `ledger`")
        series = {("charged", tenant or "all tenants"): charged}
        series |= {("tenant", name): days for name, days in tenants.items()}
        if not tenant and (times or spendings):
            series["paid", "all endpoints"] = _paid_by_day(times, spendings, terms)
        left = 1 - now // 1_000 % US_PER_DAY / US_PER_DAY
        calendar = _Calendar(date_of(rows.since), began, today, left)
        found = [_forecast(kind, name, days, calendar) for (kind, name), days in series.items()]
        found = [
            _beside_budget(each, bills.get(each.name, {}), calendar, budgets[each.name])
            if each.kind != "paid" and each.name in budgets
            else each
            for each in found
        ]
        found.sort(key=lambda each: (_KINDS.index(each.kind), -each.expected_nano_usd, each.name))
        days = {day for each in series.values() for day in each} - {today.isoformat()}
        return ForecastReport(f"{began:%Y-%m}", len(days), CERTAINTY_PERCENT, found[:LINES_MAX])

    # What is different

    async def drift(self, day: str, tenant: str, *, now: Instant) -> Drift:
        today = date.fromisoformat(day) if day else date_of(now)
        began, until = instant(today), min(now, instant(today + _DAY))
        if until <= began:
            raise NothingFound(f"{today} has not begun; ask for a day that has")
        rows = Rows(instant(today - DAYS_BEFORE * _DAY), instant(today + _DAY), tenant)
        before = replace(rows, until=began)
        async with self._reading() as link:
            if until < instant(today + _DAY):
                # What has yet to be written would look like a saving.
                until = await queries.known_until(link, began, until) or until
            part_us = (until - began) // 1_000
            kinds = await queries.spent(link, rows, depth=_depth_below(tenant))
            times = [] if tenant else await queries.times_of_days(link, rows, part_us=part_us)
            days = await queries.days_known(link, before)
            share = await queries.busy_share(link, before, part_us=part_us)
        days |= {each.day for each in times if each.day != today.isoformat()}
        if not days:
            raise NothingFound(f"nothing is recorded in the {DAYS_BEFORE} days before {today}; {_later(today, now)}")
        if today.isoformat() not in kinds and not any(each.day == today.isoformat() for each in times):
            raise NothingFound(f"nothing is recorded on {today} yet; ask for a day before it (--day)")
        one, other = compared(
            kinds,
            times,
            today.isoformat(),
            days=len(days),
            share=part_us / US_PER_DAY if share is None or part_us >= US_PER_DAY else share,
            by_token=by_token(times, self._terms().by_hour),
        )
        parts, cost_before, cost_today = drift(one, other)
        if cost_before <= 0:
            raise NothingFound(
                f"nothing was spent in the {DAYS_BEFORE} days before {today} up to the same hour; {_later(today, now)}"
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
    async def _reading(self) -> AsyncGenerator[Link]:
        """All that one answer is made of is of one moment."""
        answers = False
        try:
            async with (
                asyncio.timeout(ANSWER_S_MAX),
                self._database.borrowed() as link,
                link.transaction(isolation="repeatable_read", readonly=True),
            ):
                await link.execute(_ROOM)
                answers = True
                yield link
        except asyncpg.UndefinedTableError as error:
            raise LedgerAway(f"it has not been prepared for this version; {NEXT_STEP}") from error
        except FAILURES as error:
            if answers and isinstance(error, TimeoutError | asyncpg.QueryCanceledError):
                raise LedgerAway("there is too much to read for the time it may take; ask for fewer days") from error
            raise LedgerAway(self._database.problem(error)) from error


def _nothing(rows: Rows, by: str, kept_days: int) -> str:
    what = f"nothing is recorded from {moment(rows.since):%Y-%m-%d %H:%M} to {moment(rows.until):%Y-%m-%d %H:%M} UTC"
    if rows.tenant or rows.service_class or rows.model:
        return f"{what} for what was asked; ask for another time, or leave --tenant, --class and --model out"
    if by == "unit" or not whole_days(rows):
        return f"{what}; single rows are kept for {kept_days} days, ask for a later time, or by whole days"
    return f"{what}; send requests to a gateway whose configuration has `ledger`, or ask for another time"


def _later(day: date, now: Instant) -> str:
    if day == date_of(now):
        return "come back tomorrow: it compares a day with those before it"
    return "ask for a later day"


# Idle time that tenants share


async def _idle(link: Link, rows: Rows, times: Sequence[PoolTime], terms: Terms) -> list[Shares]:
    """What tenants bear of it, as far as they are asked for. Other requests have their turns meanwhile."""
    weights = terms.idle_weights
    if weights is None or not times:
        return []
    begun = await queries.begun(link, rows, sorted({name for each in weights.values() for name in each}))
    found: list[Shares] = []
    for day, pool, shares in idle_shares(times, weights, begun):
        mine = {name: shares[name] for name in shares if not rows.tenant or _is_below(name, rows.tenant)}
        found.append((day, pool, mine))
        await asyncio.sleep(0)
    return found


def _idle_lines(idle: Sequence[Shares], by: str, depth: int) -> dict[str, int]:
    """Name of a line -> its part."""
    found: dict[str, int] = {}
    for day, pool, shares in idle:
        for path, cost in shares.items():
            name = path_of(path, depth) if by == "tenant" else {"pool": pool, "day": day}.get(by, IDLE)
            found[name] = found.get(name, 0) + cost
    return found


def _idle_by_pool(idle: Sequence[Shares]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for _, pool, shares in idle:
        pools = found.setdefault(pool, {})
        for path, cost in shares.items():
            pools[path] = pools.get(path, 0) + cost
    return found


def _with_idle_days(
    bills: Mapping[str, Mapping[str, int]], idle: Sequence[Shares], depth: int, others: Collection[str]
) -> dict[str, dict[str, int]]:
    """Tenant -> day -> what it is charged: for each by so many steps, the others, and all ('')."""
    charged = {name: dict(days) for name, days in bills.items()}
    for day, _, shares in idle:
        for path, cost in shares.items():
            levels = {path_of(path, steps) for steps in range(1, 4)}
            for name in ("", *(each for each in levels if each == path_of(path, depth) or each in others)):
                days = charged.setdefault(name, {})
                days[day] = days.get(day, 0) + cost
    return charged


def _with_idle(lines: Sequence[CostLine], total: CostLine, idle: Mapping[str, int]) -> tuple[list[CostLine], CostLine]:
    """Those who had no request at all bear their share too."""
    empty = {each: 0 for each in CostLine.__dataclass_fields__ if each not in ("name", "share")}
    named = {line.name: line for line in lines}
    for name in idle:
        named.setdefault(name, CostLine(name=name, share=0.0, **empty))  # pyright: ignore[reportArgumentType]
    return [_bearing(line, idle.get(line.name, 0)) for line in named.values()], _bearing(total, sum(idle.values()))


def _bearing(line: CostLine, idle: int) -> CostLine:
    return replace(
        line,
        idle_nano_usd=NanoUsd(idle),
        charged_nano_usd=NanoUsd(line.charged_nano_usd + idle),
        cost_nano_usd=NanoUsd(line.cost_nano_usd + idle),
    )


def _divided(line: CostLine, whole: int) -> CostLine:
    """With what follows from the others."""
    tokens = line.tokens_in + line.tokens_out
    return replace(
        line,
        request_nano_usd=NanoUsd(nearest(line.cost_nano_usd, line.requests)) if line.requests else None,
        thousand_tokens_nano_usd=NanoUsd(nearest(1_000 * line.cost_nano_usd, tokens)) if tokens else None,
        share=line.cost_nano_usd / whole if whole else 0.0,
    )


# Forecasts


@dataclass(frozen=True, slots=True)
class _Calendar:
    first: date
    """From here on rows are known."""
    began: date
    """The month did."""
    today: date
    left: float
    """Of today."""


def _forecast(kind: str, name: str, costs: Mapping[str, int], calendar: _Calendar) -> Forecast:
    today = calendar.today
    days = [costs.get(f"{calendar.first + past * _DAY}", 0) for past in range((today - calendar.first).days)]
    today_cost = costs.get(today.isoformat(), 0)
    spent = sum(cost for day, cost in costs.items() if day >= calendar.began.isoformat())
    next_month = (calendar.began + 31 * _DAY).replace(day=1)
    seen = outlook(days, so_far=spent, today=today_cost, today_left=calendar.left, ahead=(next_month - today).days - 1)
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


def _beside_budget(
    forecast: Forecast, bills: Mapping[str, int], calendar: _Calendar, budget: tuple[NanoUsd, bool]
) -> Forecast:
    """A budget is spent by what requests cost alone; idle time that is shared counts for none."""
    expected = _forecast(forecast.kind, forecast.name, bills, calendar).expected_nano_usd
    return replace(forecast, budget_nano_usd=budget[0], budget_expected_nano_usd=expected, hard=budget[1])


def _paid_by_day(times: Sequence[PoolTime], spendings: Sequence[PoolSpending], terms: Terms) -> dict[str, int]:
    hosted = by_token(times, terms.by_hour)
    paid: dict[str, int] = {}
    for each in times:
        paid[each.day] = paid.get(each.day, 0) + each.cost(each.whole_us)
    for each in spendings:
        if hosted(each.day, each.pool):
            paid[each.day] = paid.get(each.day, 0) + each.nano_usd
    return paid


def _depth_below(tenant: str) -> int:
    """So many steps have the paths of what is next below it."""
    return tenant.count("/") + 2 if tenant else 1


def _is_below(path: str, tenant: str) -> bool:
    return path == tenant or path.startswith(f"{tenant}/")
