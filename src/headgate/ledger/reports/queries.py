"""SQL queries for the reports.

Queries over complete days use the daily totals (`usage_daily`), whose number does not depend on traffic. Queries over
hours, business units and individual requests use the rows, which are kept for the retention time. With
`ledger.roll_up`, queries over hours use hourly sums in place of deleted rows. User input is always passed as query
parameters; only constants from this file are interpolated into SQL. All queries are read-only.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from headgate.ledger.connection import DatabaseConnection, DatabaseRow
from headgate.ledger.reports.cost_breakdown import USEFUL_CAUSES, PoolSpending, PoolTime
from headgate.ledger.reports.drift import GroupCost, RequestGroup
from headgate.ledger.rows import MODEL_OR_EMPTY
from headgate.model.money import NanoUsd
from headgate.model.units import SECOND, Instant
from headgate.ports.cost_reports import CostLine, ReportFilter, StatementLine

LINES_MAX: Final = 10_000
"""Maximum number of lines in one report or statement."""
UNITS_SAMPLE: Final = 20_000
UNITS_AT_ONCE_MAX: Final = 1_000
"""Maximum number of distinct units, in a sample of `UNITS_SAMPLE` rows, for which a single query sums all units."""
US_PER_DAY: Final = 86_400_000_000
_HOUR_NS: Final = 3_600 * SECOND

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS: Final = "headgate.usage_daily where day >= $1 and day < $2"
SINGLE_ROWS: Final = f"""
    select (at at time zone 'UTC')::date as day, tenant, class, {MODEL_OR_EMPTY} as model, pool, payer, cause,
        metadata,
        (attempt <= 1 and correction = 0)::integer as requests, (attempt > 0 and correction = 0)::integer as attempts,
        tokens_in, tokens_cached, tokens_out, input_us + output_us + overhead_us as engine_us,
        input_nano_usd, output_nano_usd, overhead_nano_usd
    from headgate.usage where at >= $1 and at < $2"""  # noqa: S608
"""The same columns as the daily totals, computed from individual rows."""
_HOURLY_SUMS: Final = """
    select (hour at time zone 'UTC')::date as day, tenant, class, model, pool, payer, cause, null::jsonb as metadata,
        requests, attempts, tokens_in, tokens_cached, tokens_out, engine_us,
        input_nano_usd, output_nano_usd, overhead_nano_usd
    from headgate.usage_hourly where hour >= $1 and hour < $2"""
_ROWS: Final = f"({SINGLE_ROWS}) as rows where true"
_ROWS_AND_SUMS: Final = f"({SINGLE_ROWS} union all {_HOURLY_SUMS}) as rows where true"
"""A row is either in the usage table or in the hourly sums."""
_COLUMNS: Final = {"tenant": "tenant", "model": "model", "class": "class", "pool": "pool", "day": "day"}
_IS_USEFUL: Final = "cause in (" + ", ".join(f"'{cause}'" for cause in USEFUL_CAUSES) + ")"
_COST: Final = "input_nano_usd + output_nano_usd + overhead_nano_usd"


def _sum(column: str, where: str = "") -> str:
    return f"coalesce(sum({column}){f' filter (where {where})' if where else ''}, 0)::bigint"


_AMOUNTS: Final = (
    *("requests", "attempts", "tokens_in", "tokens_cached", "tokens_out", "engine_us"),
    *("input_nano_usd", "output_nano_usd", "overhead_nano_usd"),
)
_COMMON_SUMS: Final = ", ".join(f"sum({name}) as {name}" for name in _AMOUNTS)
LINE_COLUMNS: Final = f"""
    {_sum("requests", "pool <> ''")} as requests, {_sum("requests", "pool = ''")} as unsent,
    {_sum("attempts")} as attempts, {_sum("engine_us")} as engine_us,
    {_sum("tokens_in", _IS_USEFUL)} as tokens_in, {_sum("tokens_cached", _IS_USEFUL)} as tokens_cached,
    {_sum("tokens_out", _IS_USEFUL)} as tokens_out, {_sum("input_nano_usd", _IS_USEFUL)} as input_nano_usd,
    {_sum("output_nano_usd", _IS_USEFUL)} as output_nano_usd,
    {_sum("overhead_nano_usd", _IS_USEFUL)} as overhead_nano_usd,
    {_sum(_COST, f"not {_IS_USEFUL}")} as retries_nano_usd, {_sum(_COST, "payer = 'tenant'")} as charged_nano_usd,
    {_sum(_COST)} as cost_nano_usd"""
_HOURS: Final = """
    select (hour at time zone 'UTC')::date::text as day, pool, hour_nano_usd, sum(total_us * part)::bigint as total_us,
        sum(starting_us * part)::bigint as starting_us, sum(unready_us * part)::bigint as unready_us,
        sum(idle_us * part)::bigint as idle_us, sum(abort_lag_us * part)::bigint as abort_lag_us
    from (
        select *, least(1, greatest(0, $3::numeric - 3600 * extract(hour from hour at time zone 'UTC')) / 3600) as part
        from headgate.endpoint_hours where hour >= $1 and hour < $2
    ) as h group by 1, 2, 3"""
"""Endpoint time in the first $3 seconds of each day. Partly covered hours are counted in proportion."""
_MINUTES: Final = """
    select ((at - interval '1 microsecond') at time zone 'UTC')::date::text as day, pool, hour_nano_usd,
        sum(total_us)::bigint as total_us, sum(starting_us)::bigint as starting_us,
        sum(unready_us)::bigint as unready_us, sum(idle_us)::bigint as idle_us,
        sum(abort_lag_us)::bigint as abort_lag_us
    from headgate.endpoint_time where at > $1 and at <= $2 group by 1, 2, 3"""
"""Endpoint time from individual rows, for ranges that begin or end within an hour. Each row covers the time before its
timestamp.
"""
_BUSY_SHARE: Final = """
    select sum(billed_us)::bigint as whole, sum(billed_us * least(1, greatest(0,
        $3::numeric - 3600 * extract(hour from hour at time zone 'UTC')) / 3600))::bigint as part
    from headgate.endpoint_hours where hour >= $1 and hour < $2"""
_REQUEST: Final = (
    "select * from headgate.usage where at >= $1 and at < $2 and request = $3 order by attempt, correction"
)


class _QueryParameters:
    """Query parameters, in order."""

    def __init__(self, *values: object) -> None:
        self.values = list(values)

    def add(self, value: object) -> str:
        self.values.append(value)
        return f"${len(self.values)}"


# Report lines


async def cost_lines(
    link: DatabaseConnection,
    rows: ReportFilter,
    *,
    by: str,
    key: str,
    depth: int,
    limit: int,
    units_at_once_max: int = UNITS_AT_ONCE_MAX,
) -> tuple[list[CostLine], int, CostLine]:
    """The most expensive lines, the number of lines in all, and their total."""
    if by == "unit":
        return await _unit_lines(link, rows, key=key, limit=limit, units_few=units_at_once_max)
    source, values = _source_sql(rows)
    name = _path_prefix_sql("one", values.add(depth)) if by == "tenant" else "one::text"
    found = await link.fetch(_grouped_query(source, _COLUMNS[by], name, values.add(limit + 1)), *values.values)
    return [cost_line(row) for row in found[1:]], found[0]["count"] - 1, cost_line(found[0])


async def _unit_lines(
    link: DatabaseConnection, rows: ReportFilter, *, key: str, limit: int, units_few: int
) -> tuple[list[CostLine], int, CostLine]:
    """Lines by business unit. With many units, only the most expensive ones are summed in detail."""
    source, values = _source_sql(rows, single=True)
    unit = f"coalesce(metadata ->> {values.add(key)}, '')"
    some = f"select count(distinct unit) from (select {unit} as unit from {source} limit {UNITS_SAMPLE}) as first"  # noqa: S608
    if await link.fetchval(some, *values.values) <= units_few:
        found = await link.fetch(_grouped_query(source, unit, "one", values.add(limit + 1)), *values.values)
        return [cost_line(row) for row in found[1:]], found[0]["count"] - 1, cost_line(found[0])
    most = await link.fetch(
        f"select name, count(*) over () as count from (select {unit} as name, sum(({_COST})::float8) as cost"  # noqa: S608
        f" from {source} group by 1) as units order by cost desc, name limit {values.add(limit)}",
        *values.values,
    )
    names: list[str] = [row["name"] for row in most]
    source, values = _source_sql(rows, single=True)
    unit = f"coalesce(metadata ->> {values.add(key)}, '')"
    these = f"{source} and {unit} = any({values.add(names)}::text[])"
    found = await link.fetch(_grouped_query(these, unit, "one", values.add(limit + 1)), *values.values)
    source, values = _source_sql(rows)
    [total] = await link.fetch(f"select '' as name, {LINE_COLUMNS} from {source}", *values.values)  # noqa: S608
    return [cost_line(row) for row in found[1:]], most[0]["count"] if most else 0, cost_line(total)


def _grouped_query(source: str, column: str, name: str, limit: str) -> str:
    """SQL for the total and the lines. An inner query aggregates the rows first, so that the sums cover few rows."""
    return (
        f"with common as (select {column} as one, case when pool = '' then '' else '-' end as pool, payer, cause,"  # noqa: S608
        f" {_COMMON_SUMS} from {source} group by 1, 2, 3, 4)"
        f" select name, grouping(name) as whole, count(*) over () as count, {LINE_COLUMNS}"
        f" from (select {name} as name, * from common) as named group by grouping sets ((name), ())"
        f" order by whole desc, cost_nano_usd desc, name limit {limit}"
    )


async def with_hourly_sums(link: DatabaseConnection, rows: ReportFilter) -> ReportFilter:
    """Returns the same filter, or one extended to full hours if hourly sums have replaced some of its rows."""
    if whole_days(rows) or not await link.fetchval("select to_regclass('headgate.usage_hourly') is not null"):
        return rows
    whole = replace(
        rows,
        since=Instant(rows.since // _HOUR_NS * _HOUR_NS),
        until=Instant(-(-rows.until // _HOUR_NS) * _HOUR_NS),
        rolled_up=True,
    )
    some = "select exists (select from headgate.usage_hourly where hour >= $1 and hour < $2)"
    return whole if await link.fetchval(some, to_datetime(whole.since), to_datetime(whole.until)) else rows


async def pool_spendings(link: DatabaseConnection, rows: ReportFilter) -> list[PoolSpending]:
    source, values = _source_sql(rows)
    found = await link.fetch(
        f"select day, pool, payer, cause, {_sum(_COST)} as cost from {source} and pool <> ''"  # noqa: S608
        " group by day, pool, payer, cause",
        *values.values,
    )
    return [PoolSpending(str(row["day"]), row["pool"], row["payer"], row["cause"], row["cost"]) for row in found]


async def pool_times(link: DatabaseConnection, rows: ReportFilter) -> list[PoolTime]:
    if rows.since % _HOUR_NS == 0 and rows.until % _HOUR_NS == 0:
        return await pool_times_by_day(link, rows, part_us=US_PER_DAY)
    return _pool_times(await link.fetch(_MINUTES, to_datetime(rows.since), to_datetime(rows.until)))


async def pool_times_by_day(link: DatabaseConnection, rows: ReportFilter, *, part_us: int) -> list[PoolTime]:
    """Endpoint time in the first `part_us` of each day."""
    return _pool_times(
        await link.fetch(_HOURS, to_datetime(rows.since), to_datetime(rows.until), Decimal(part_us) / 1_000_000)
    )


def _pool_times(found: Sequence[DatabaseRow]) -> list[PoolTime]:
    columns = ("hour_nano_usd", "total_us", "starting_us", "unready_us", "idle_us", "abort_lag_us")
    return [PoolTime(row["day"], row["pool"], *(row[each] for each in columns)) for row in found]


async def busy_share(link: DatabaseConnection, rows: ReportFilter, *, part_us: int) -> float | None:
    """Share of billed endpoint time within the first `part_us` of each day; None if no time was billed."""
    row = await link.fetchrow(
        _BUSY_SHARE, to_datetime(rows.since), to_datetime(rows.until), Decimal(part_us) / 1_000_000
    )
    assert row is not None
    return row["part"] / row["whole"] if row["whole"] else None


async def known_until(link: DatabaseConnection, since: Instant, until: Instant) -> Instant | None:
    """Timestamp of the latest endpoint time row in the range; None if there is none."""
    latest = await link.fetchval(
        "select max(at) from headgate.endpoint_time where at > $1 and at <= $2", to_datetime(since), to_datetime(until)
    )
    return None if latest is None else Instant((latest - _EPOCH) // timedelta(microseconds=1) * 1_000)


# Individual requests


async def request_rows(link: DatabaseConnection, request: str, day: date) -> list[DatabaseRow]:
    return await link.fetch(_REQUEST, _midnight(day), _midnight(day + timedelta(days=1)), request)


# Monthly and daily totals


async def statement_lines(link: DatabaseConnection, rows: ReportFilter) -> list[StatementLine]:
    source, values = _source_sql(rows)
    found = await link.fetch(
        f"select tenant, model, class, {LINE_COLUMNS},"  # noqa: S608
        f" {_sum('input_nano_usd', _IS_CHARGED)} as input, {_sum('output_nano_usd', _IS_CHARGED)} as output,"
        f" {_sum('overhead_nano_usd', _IS_CHARGED)} as overhead from {source} group by tenant, model, class"
        f" having {_sum('attempts', _IS_CHARGED)} > 0 or {_sum(_COST, _IS_CHARGED)} <> 0"
        f" order by tenant, model, class limit {values.add(LINES_MAX + 1)}",
        *values.values,
    )
    return [
        StatementLine(
            kind="usage",
            path=row["tenant"],
            model=row["model"],
            service_class=row["class"],
            requests=row["requests"],
            tokens_in=row["tokens_in"],
            tokens_cached=row["tokens_cached"],
            tokens_out=row["tokens_out"],
            input_nano_usd=row["input"],
            output_nano_usd=row["output"],
            overhead_nano_usd=row["overhead"],
            charged_nano_usd=row["charged_nano_usd"],
        )
        for row in found
    ]


_IS_CHARGED: Final = "payer = 'tenant'"


async def charged_by_day(
    link: DatabaseConnection, rows: ReportFilter, *, depth: int, others: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Charges by tenant and day, including descendants, for tenants at `depth`, tenants in `others`, and the total
    ('').
    """
    source, values = _source_sql(rows)
    step, named = values.add(depth), values.add(list(others))
    found = await link.fetch(
        f"with own as (select tenant, day, sum({_COST}) as cost from {source} and {_IS_CHARGED} group by 1, 2)"  # noqa: S608
        f" select path, day, sum(cost)::bigint as cost from own cross join lateral"
        f" (select distinct {_path_prefix_sql('tenant', 'steps')} as path from generate_series(0, 3) as steps) as paths"
        f" where path = '' or path = {_path_prefix_sql('tenant', step)} or path = any({named}::text[])"
        " group by path, day",
        *values.values,
    )
    charged: dict[str, dict[str, int]] = {}
    for row in found:
        charged.setdefault(row["path"], {})[str(row["day"])] = row["cost"]
    return charged


async def costs_by_group(
    link: DatabaseConnection, rows: ReportFilter, *, depth: int
) -> dict[str, dict[RequestGroup, GroupCost]]:
    """Usage and cost of each kind of request, by day."""
    source, values = _source_sql(rows)
    found = await link.fetch(
        f"select day, {_path_prefix_sql('tenant', values.add(depth))} as tenant, model, class, pool,"  # noqa: S608
        f" {_sum('attempts', _IS_USEFUL)} as kept, {_sum('engine_us', _IS_USEFUL)} as kept_us, {LINE_COLUMNS}"
        f" from {source} and pool <> '' group by 1, 2, 3, 4, 5",
        *values.values,
    )
    days: dict[str, dict[RequestGroup, GroupCost]] = {}
    for row in found:
        kind = RequestGroup(row["tenant"], row["model"], row["class"], row["pool"])
        days.setdefault(str(row["day"]), {})[kind] = GroupCost(
            requests=row["kept"],
            tokens_in=row["tokens_in"],
            tokens_cached=row["tokens_cached"],
            tokens_out=row["tokens_out"],
            engine_us=row["kept_us"],
            input=row["input_nano_usd"],
            output=row["output_nano_usd"],
            overhead=row["overhead_nano_usd"],
            wasted=row["retries_nano_usd"],
        )
    return days


async def tenant_first_days(link: DatabaseConnection, rows: ReportFilter, tenants: Sequence[str]) -> dict[str, str]:
    """First day of each tenant created in the range: the day of its creation or of its first usage, whichever is
    earlier.
    """
    made = await link.fetch(
        "select id, (created_at at time zone 'UTC')::date as day from headgate.tenants"
        " where id = any($1::text[]) and removed_at is null and created_at >= $2",
        list(tenants),
        to_datetime(rows.since),
    )
    first = {row["id"]: str(row["day"]) for row in made}
    if not first:
        return {}
    sent = "select tenant, min(day) as day from headgate.usage_daily where day >= $1 and day < $2 group by tenant"
    for row in await link.fetch(sent, date_of(rows.since), date_of(rows.until) + timedelta(days=1)):
        steps = row["tenant"].split("/")
        for depth in range(1, len(steps) + 1):
            name = "/".join(steps[:depth])
            if name in first:
                first[name] = min(first[name], str(row["day"]))
    return first


async def days_with_usage(link: DatabaseConnection, rows: ReportFilter) -> set[str]:
    """Days on which requests were sent."""
    source, values = _source_sql(rows)
    found = await link.fetch(f"select distinct day from {source} and pool <> ''", *values.values)  # noqa: S608
    return {str(row["day"]) for row in found}


# Parts of queries


def _source_sql(rows: ReportFilter, *, single: bool = False) -> tuple[str, _QueryParameters]:
    """FROM and WHERE clauses. Further conditions can be appended with `and`."""
    if single or not whole_days(rows):
        source = _ROWS_AND_SUMS if rows.rolled_up else _ROWS
        values = _QueryParameters(to_datetime(rows.since), to_datetime(rows.until))
    else:
        source, values = _DAYS, _QueryParameters(date_of(rows.since), date_of(rows.until))
    if rows.tenant:
        place = values.add(rows.tenant)
        source += f" and (tenant = {place} or starts_with(tenant, {place} || '/'))"
    if rows.service_class:
        source += f" and class = {values.add(rows.service_class)}"
    if rows.model:
        source += f" and model = {values.add(rows.model)}"
    return source, values


def _path_prefix_sql(tenant: str, depth: str) -> str:
    return f"array_to_string((string_to_array({tenant}, '/'))[1:{depth}::integer], '/')"


def cost_line(row: DatabaseRow) -> CostLine:
    fields: dict[str, Any] = {
        name: row[name]
        for name in (
            *("requests", "unsent", "attempts", "tokens_in", "tokens_cached", "tokens_out", "engine_us"),
            *("input_nano_usd", "output_nano_usd", "overhead_nano_usd", "retries_nano_usd", "charged_nano_usd"),
            "cost_nano_usd",
        )
    }
    return CostLine(
        name=row["name"] or "",
        idle_nano_usd=NanoUsd(0),
        request_nano_usd=None,
        thousand_tokens_nano_usd=None,
        share=0.0,
        **fields,
    )


# Times


def whole_days(rows: ReportFilter) -> bool:
    day_ns = US_PER_DAY * 1_000
    return rows.since % day_ns == 0 and rows.until % day_ns == 0


def to_datetime(at: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=at // 1_000)


def to_instant(day: date) -> Instant:
    return Instant((day - _EPOCH.date()).days * 86_400 * SECOND)


def date_of(at: Instant) -> date:
    return to_datetime(at).date()


def _midnight(day: date) -> datetime:
    return to_datetime(to_instant(day))
