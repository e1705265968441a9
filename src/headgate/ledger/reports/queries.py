"""Which rows does a report need, and what do they come to?

Whole days are answered from their sums (`usage_days`), which are few whatever the traffic was. Hours of a day, units of
business and single requests are in the rows themselves, which are kept for a while. Everything that is named by whoever
asks travels beside the SQL, never in it; what stands in it are constants of this file. All of it only reads.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from headgate.ledger.link import Link, Row
from headgate.ledger.reports.accounts import KEPT, PoolSpending, PoolTime
from headgate.ledger.reports.drift import Kind, Spent
from headgate.ledger.rows import MODEL_UNKNOWN
from headgate.model.money import NanoUsd
from headgate.model.units import SECOND, Instant
from headgate.ports.reports import CostLine, Rows, StatementLine

LINES_MAX: Final = 10_000
"""Of one report or statement; more are named in narrower questions."""
UNITS_SAMPLE: Final = 20_000
UNITS_FEW: Final = 1_000
"""With so many different ones among so many rows, or fewer, all of them are summed up at once."""
US_PER_DAY: Final = 86_400_000_000
_HOUR_NS: Final = 3_600 * SECOND

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAYS: Final = "headgate.usage_days where day >= $1 and day < $2"
_UNKNOWN: Final = ", ".join(f"'{outcome}'" for outcome in MODEL_UNKNOWN)
_MODEL: Final = f"case when pool = '' and (class = '' or outcome in ({_UNKNOWN})) then '' else model end"
_ROWS: Final = f"""(
    select (at at time zone 'UTC')::date as day, tenant, class, {_MODEL} as model, pool, payer, cause, metadata,
        (attempt <= 1 and correction = 0)::integer as requests, (attempt > 0 and correction = 0)::integer as attempts,
        tokens_in, tokens_cached, tokens_out, input_us + output_us + overhead_us as engine_us,
        input_nano_usd, output_nano_usd, overhead_nano_usd
    from headgate.usage where at >= $1 and at < $2
) as rows where true"""  # noqa: S608
"""The same columns as the sums of days have, from single rows."""
_COLUMNS: Final = {"tenant": "tenant", "model": "model", "class": "class", "pool": "pool", "day": "day"}
_KEPT: Final = "cause in (" + ", ".join(f"'{cause}'" for cause in KEPT) + ")"
_COST: Final = "input_nano_usd + output_nano_usd + overhead_nano_usd"


def _sum(column: str, where: str = "") -> str:
    return f"coalesce(sum({column}){f' filter (where {where})' if where else ''}, 0)::bigint"


_AMOUNTS: Final = (
    *("requests", "attempts", "tokens_in", "tokens_cached", "tokens_out", "engine_us"),
    *("input_nano_usd", "output_nano_usd", "overhead_nano_usd"),
)
_COMMON: Final = ", ".join(f"sum({name}) as {name}" for name in _AMOUNTS)
_LINE: Final = f"""
    {_sum("requests", "pool <> ''")} as requests, {_sum("requests", "pool = ''")} as unsent,
    {_sum("attempts")} as attempts, {_sum("engine_us")} as engine_us,
    {_sum("tokens_in", _KEPT)} as tokens_in, {_sum("tokens_cached", _KEPT)} as tokens_cached,
    {_sum("tokens_out", _KEPT)} as tokens_out, {_sum("input_nano_usd", _KEPT)} as input_nano_usd,
    {_sum("output_nano_usd", _KEPT)} as output_nano_usd, {_sum("overhead_nano_usd", _KEPT)} as overhead_nano_usd,
    {_sum(_COST, f"not {_KEPT}")} as retries_nano_usd, {_sum(_COST, "payer = 'tenant'")} as charged_nano_usd,
    {_sum(_COST)} as cost_nano_usd"""
_HOURS: Final = """
    select (hour at time zone 'UTC')::date::text as day, pool, hour_nano_usd, sum(whole_us * part)::bigint as whole_us,
        sum(starting_us * part)::bigint as starting_us, sum(unready_us * part)::bigint as unready_us,
        sum(idle_us * part)::bigint as idle_us, sum(late_us * part)::bigint as late_us
    from (
        select *, least(1, greatest(0, $3::numeric - 3600 * extract(hour from hour at time zone 'UTC')) / 3600) as part
        from headgate.endpoint_hours where hour >= $1 and hour < $2
    ) as h group by 1, 2, 3"""
"""The first seconds of each day, as many as are given. Of an hour of which some are, the same part of all it holds."""
_MINUTES: Final = """
    select ((at - interval '1 microsecond') at time zone 'UTC')::date::text as day, pool, hour_nano_usd,
        sum(whole_us)::bigint as whole_us, sum(starting_us)::bigint as starting_us,
        sum(unready_us)::bigint as unready_us, sum(idle_us)::bigint as idle_us, sum(late_us)::bigint as late_us
    from headgate.endpoint_time where at > $1 and at <= $2 group by 1, 2, 3"""
"""From single rows, for what begins or ends within an hour. Each tells of the time before its moment."""
_BUSY: Final = """
    select sum(billed_us)::bigint as whole, sum(billed_us * least(1, greatest(0,
        $3::numeric - 3600 * extract(hour from hour at time zone 'UTC')) / 3600))::bigint as part
    from headgate.endpoint_hours where hour >= $1 and hour < $2"""
_REQUEST: Final = (
    "select * from headgate.usage where at >= $1 and at < $2 and request = $3 order by attempt, correction"
)


class _Values:
    """What travels beside a query, in the order of its places."""

    def __init__(self, *values: object) -> None:
        self.all = list(values)

    def put(self, value: object) -> str:
        self.all.append(value)
        return f"${len(self.all)}"


# The lines of a report


async def lines(
    link: Link, rows: Rows, *, by: str, key: str, depth: int, limit: int, units_few: int = UNITS_FEW
) -> tuple[list[CostLine], int, CostLine]:
    """Those that cost most, how many there are, and what all of them come to."""
    if by == "unit":
        return await _unit_lines(link, rows, key=key, limit=limit, units_few=units_few)
    source, values = _source(rows)
    name = _path("one", values.put(depth)) if by == "tenant" else "one::text"
    found = await link.fetch(_grouped(source, _COLUMNS[by], name, values.put(limit + 1)), *values.all)
    return [_cost_line(row) for row in found[1:]], found[0]["count"] - 1, _cost_line(found[0])


async def _unit_lines(
    link: Link, rows: Rows, *, key: str, limit: int, units_few: int
) -> tuple[list[CostLine], int, CostLine]:
    """There may be as many units as rows: which of many cost most is found first, and the rest for these alone."""
    source, values = _source(rows, single=True)
    unit = f"coalesce(metadata ->> {values.put(key)}, '')"
    some = f"select count(distinct unit) from (select {unit} as unit from {source} limit {UNITS_SAMPLE}) as first"  # noqa: S608
    if await link.fetchval(some, *values.all) <= units_few:
        found = await link.fetch(_grouped(source, unit, "one", values.put(limit + 1)), *values.all)
        return [_cost_line(row) for row in found[1:]], found[0]["count"] - 1, _cost_line(found[0])
    most = await link.fetch(
        f"select name, count(*) over () as count from (select {unit} as name, sum(({_COST})::float8) as cost"  # noqa: S608
        f" from {source} group by 1) as units order by cost desc, name limit {values.put(limit)}",
        *values.all,
    )
    names: list[str] = [row["name"] for row in most]
    source, values = _source(rows, single=True)
    unit = f"coalesce(metadata ->> {values.put(key)}, '')"
    these = f"{source} and {unit} = any({values.put(names)}::text[])"
    found = await link.fetch(_grouped(these, unit, "one", values.put(limit + 1)), *values.all)
    source, values = _source(rows)
    [total] = await link.fetch(f"select '' as name, {_LINE} from {source}", *values.all)  # noqa: S608
    return [_cost_line(row) for row in found[1:]], most[0]["count"] if most else 0, _cost_line(total)


def _grouped(source: str, column: str, name: str, limit: str) -> str:
    """The total, then the lines. First what many rows have in common, so that the rest is reckoned from few."""
    return (
        f"with common as (select {column} as one, case when pool = '' then '' else '-' end as pool, payer, cause,"  # noqa: S608
        f" {_COMMON} from {source} group by 1, 2, 3, 4)"
        f" select name, grouping(name) as whole, count(*) over () as count, {_LINE}"
        f" from (select {name} as name, * from common) as named group by grouping sets ((name), ())"
        f" order by whole desc, cost_nano_usd desc, name limit {limit}"
    )


async def spendings(link: Link, rows: Rows) -> list[PoolSpending]:
    source, values = _source(rows)
    found = await link.fetch(
        f"select day, pool, payer, cause, {_sum(_COST)} as cost from {source} and pool <> ''"  # noqa: S608
        " group by day, pool, payer, cause",
        *values.all,
    )
    return [PoolSpending(str(row["day"]), row["pool"], row["payer"], row["cause"], row["cost"]) for row in found]


async def times(link: Link, rows: Rows) -> list[PoolTime]:
    if rows.since % _HOUR_NS == 0 and rows.until % _HOUR_NS == 0:
        return await times_of_days(link, rows, part_us=US_PER_DAY)
    return _pool_times(await link.fetch(_MINUTES, moment(rows.since), moment(rows.until)))


async def times_of_days(link: Link, rows: Rows, *, part_us: int) -> list[PoolTime]:
    """Of the first part of each day."""
    return _pool_times(await link.fetch(_HOURS, moment(rows.since), moment(rows.until), Decimal(part_us) / 1_000_000))


def _pool_times(found: Sequence[Row]) -> list[PoolTime]:
    columns = ("hour_nano_usd", "whole_us", "starting_us", "unready_us", "idle_us", "late_us")
    return [PoolTime(row["day"], row["pool"], *(row[each] for each in columns)) for row in found]


async def busy_share(link: Link, rows: Rows, *, part_us: int) -> float | None:
    """Of all that endpoints were at work, what fell into the first part of each day; None if they never were."""
    row = await link.fetchrow(_BUSY, moment(rows.since), moment(rows.until), Decimal(part_us) / 1_000_000)
    assert row is not None
    return row["part"] / row["whole"] if row["whole"] else None


async def known_until(link: Link, since: Instant, until: Instant) -> Instant | None:
    """Up to when it is written down what endpoints did."""
    latest = await link.fetchval(
        "select max(at) from headgate.endpoint_time where at > $1 and at <= $2", moment(since), moment(until)
    )
    return None if latest is None else Instant((latest - _EPOCH) // timedelta(microseconds=1) * 1_000)


# One request


async def request_rows(link: Link, request: str, day: date) -> list[Row]:
    return await link.fetch(_REQUEST, _midnight(day), _midnight(day + timedelta(days=1)), request)


# By the month, and by the day


async def statement_lines(link: Link, rows: Rows) -> list[StatementLine]:
    source, values = _source(rows)
    found = await link.fetch(
        f"select tenant, model, class, {_LINE},"  # noqa: S608
        f" {_sum('input_nano_usd', _CHARGED)} as input, {_sum('output_nano_usd', _CHARGED)} as output,"
        f" {_sum('overhead_nano_usd', _CHARGED)} as overhead from {source} group by tenant, model, class"
        f" having {_sum('attempts', _CHARGED)} > 0 or {_sum(_COST, _CHARGED)} <> 0"
        f" order by tenant, model, class limit {values.put(LINES_MAX + 1)}",
        *values.all,
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


_CHARGED: Final = "payer = 'tenant'"


async def charged_by_day(link: Link, rows: Rows, *, depth: int, others: Sequence[str]) -> dict[str, dict[str, int]]:
    """Tenant -> day -> what it was charged, with all below it: for each by so many steps, the others, and all ('')."""
    source, values = _source(rows)
    step, named = values.put(depth), values.put(list(others))
    found = await link.fetch(
        f"with own as (select tenant, day, sum({_COST}) as cost from {source} and {_CHARGED} group by 1, 2)"  # noqa: S608
        f" select path, day, sum(cost)::bigint as cost from own cross join lateral"
        f" (select distinct {_path('tenant', 'steps')} as path from generate_series(0, 3) as steps) as paths"
        f" where path = '' or path = {_path('tenant', step)} or path = any({named}::text[]) group by path, day",
        *values.all,
    )
    charged: dict[str, dict[str, int]] = {}
    for row in found:
        charged.setdefault(row["path"], {})[str(row["day"])] = row["cost"]
    return charged


async def spent(link: Link, rows: Rows, *, depth: int) -> dict[str, dict[Kind, Spent]]:
    """What each kind of request took, by the day."""
    source, values = _source(rows)
    found = await link.fetch(
        f"select day, {_path('tenant', values.put(depth))} as tenant, model, class, pool,"  # noqa: S608
        f" {_sum('attempts', _KEPT)} as kept, {_sum('engine_us', _KEPT)} as kept_us, {_LINE}"
        f" from {source} and pool <> '' group by 1, 2, 3, 4, 5",
        *values.all,
    )
    days: dict[str, dict[Kind, Spent]] = {}
    for row in found:
        kind = Kind(row["tenant"], row["model"], row["class"], row["pool"])
        days.setdefault(str(row["day"]), {})[kind] = Spent(
            requests=row["kept"],
            tokens_in=row["tokens_in"],
            tokens_cached=row["tokens_cached"],
            tokens_out=row["tokens_out"],
            engine_us=row["kept_us"],
            input=row["input_nano_usd"],
            output=row["output_nano_usd"],
            overhead=row["overhead_nano_usd"],
            in_vain=row["retries_nano_usd"],
        )
    return days


async def begun(link: Link, rows: Rows, tenants: Sequence[str]) -> dict[str, str]:
    """Of those that are newer than the first of these days: the day on which each was made, or sent something first."""
    made = await link.fetch(
        "select id, (created_at at time zone 'UTC')::date as day from headgate.tenants"
        " where id = any($1::text[]) and removed_at is null and created_at >= $2",
        list(tenants),
        moment(rows.since),
    )
    first = {row["id"]: str(row["day"]) for row in made}
    if not first:
        return {}
    sent = "select tenant, min(day) as day from headgate.usage_days where day >= $1 and day < $2 group by tenant"
    for row in await link.fetch(sent, date_of(rows.since), date_of(rows.until) + timedelta(days=1)):
        steps = row["tenant"].split("/")
        for depth in range(1, len(steps) + 1):
            name = "/".join(steps[:depth])
            if name in first:
                first[name] = min(first[name], str(row["day"]))
    return first


async def days_known(link: Link, rows: Rows) -> set[str]:
    """On which anything was sent."""
    source, values = _source(rows)
    found = await link.fetch(f"select distinct day from {source} and pool <> ''", *values.all)  # noqa: S608
    return {str(row["day"]) for row in found}


# What queries are made of


def _source(rows: Rows, *, single: bool = False) -> tuple[str, _Values]:
    """From where, with a condition to which others can be joined by `and`."""
    if single or not whole_days(rows):
        source, values = _ROWS, _Values(moment(rows.since), moment(rows.until))
    else:
        source, values = _DAYS, _Values(date_of(rows.since), date_of(rows.until))
    if rows.tenant:
        place = values.put(rows.tenant)
        source += f" and (tenant = {place} or starts_with(tenant, {place} || '/'))"
    if rows.service_class:
        source += f" and class = {values.put(rows.service_class)}"
    if rows.model:
        source += f" and model = {values.put(rows.model)}"
    return source, values


def _path(tenant: str, depth: str) -> str:
    return f"array_to_string((string_to_array({tenant}, '/'))[1:{depth}::integer], '/')"


def _cost_line(row: Row) -> CostLine:
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


# Moments


def whole_days(rows: Rows) -> bool:
    day_ns = US_PER_DAY * 1_000
    return rows.since % day_ns == 0 and rows.until % day_ns == 0


def moment(at: Instant) -> datetime:
    return _EPOCH + timedelta(microseconds=at // 1_000)


def instant(day: date) -> Instant:
    return Instant((day - _EPOCH.date()).days * 86_400 * SECOND)


def date_of(at: Instant) -> date:
    return moment(at).date()


def _midnight(day: date) -> datetime:
    return moment(instant(day))
