"""SQL queries for reports by business unit that use the sums by unit (migration 0005).

For a calendar month, the number of rows that are read does not depend on the number of units: the most expensive units
come from an index, and the total from one row. For other days, the query reads one row per unit and day. Both add the
amounts that are still in the queue. Days in the backlog are read from individual rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from headgate.ledger.connection import DatabaseConnection
from headgate.ledger.reports.queries import (
    LINE_COLUMNS,
    SINGLE_ROWS,
    cost_line,
    date_of,
    to_datetime,
    to_instant,
    whole_days,
)
from headgate.ledger.unit_sums import UNIT_AMOUNTS, is_migrated
from headgate.ports.cost_reports import CostLine, ReportFilter

_NAMES: Final = ", ".join(UNIT_AMOUNTS)
_SUMS: Final = ", ".join(f"sum({name}) as {name}" for name in UNIT_AMOUNTS)
_WHOLE_SUMS: Final = ", ".join(f"coalesce(sum({name}), 0)::bigint as {name}" for name in UNIT_AMOUNTS)
_WITH_FRESH: Final = ", ".join(f"(f.{name} + coalesce(m.{name}, 0))::bigint as {name}" for name in UNIT_AMOUNTS)
_STORED: Final = ", ".join(f"m.{name}::bigint as {name}" for name in UNIT_AMOUNTS)

_STATE: Final = """
    select exists (select from headgate.usage_unit_keys where key = $1) as is_summed,
        array(select day from headgate.usage_unit_backlog where key = $1 and day >= $2 and day < $3) as backlog,
        exists (select from headgate.usage_daily where day >= $4 and day < $3) as has_later"""
_DAYS: Final = f"""
    select unit as name, {_NAMES} from (
        select day, tenant, class, model, unit, {_NAMES} from headgate.usage_unit_days where key = $3
        union all
        select day, tenant, class, model, unit, {_NAMES} from headgate.usage_unit_queue where key = $3
    ) as sums
    where day >= $4 and day < $5 and day <> all($6::date[])
        and ($7 = '' or tenant = $7 or starts_with(tenant, $7 || '/')) and ($8 = '' or class = $8)
        and ($9 = '' or model = $9)
    union all
    select coalesce(metadata ->> $3, '') collate "C" as name, {LINE_COLUMNS} from ({SINGLE_ROWS}) as rows
    where day = any($6::date[]) and ($7 = '' or tenant = $7 or starts_with(tenant, $7 || '/'))
        and ($8 = '' or class = $8) and ($9 = '' or model = $9)
    group by 1"""  # noqa: S608
# With many units, it is faster to find the most expensive ones first than to sum all amounts of all units.
_DAY_UNITS: Final = f"""
    select name, count(*) over () as count
    from (select name, sum(cost_nano_usd) as cost from ({_DAYS}) as days group by name) as units
    order by cost desc, name limit $10"""  # noqa: S608
_DAY_LINES: Final = f"""
    select name, {_WHOLE_SUMS} from ({_DAYS}) as days where name = any($10::text[]) group by name
    order by cost_nano_usd desc, name"""  # noqa: S608
_DAY_TOTAL: Final = f"select '' as name, {_WHOLE_SUMS} from ({_DAYS}) as days"  # noqa: S608
_FRESH: Final = f"""
    with fresh as materialized (
        select unit, {_SUMS} from headgate.usage_unit_queue
        where key = $1 and day >= $2 and day < $3 and ($4 = '' or split_part(tenant, '/', 1) = $4) group by unit
    )"""  # noqa: S608
_FRESH_UNITS: Final = f"{_FRESH} select count(*) from fresh"  # noqa: S608
# Units in the queue are left out of the stored ones below, so the limit is higher by their number.
_LINES: Final = f"""{_FRESH}, stored as materialized (
        select m.* from headgate.usage_unit_months as m where m.key = $1 and m.month = $2 and m.scope = $4
        order by m.cost_nano_usd desc, m.unit limit $5
    )
    select m.unit as name, {_STORED} from stored as m where not exists (select from fresh where fresh.unit = m.unit)
    union all
    select f.unit, {_WITH_FRESH} from fresh as f left join lateral (
        select * from headgate.usage_unit_months as m
        where m.key = $1 and m.month = $2 and m.scope = $4 and m.unit = f.unit limit 1
    ) as m on true
    order by cost_nano_usd desc, name limit $6"""  # noqa: S608
_TOTAL: Final = f"""{_FRESH}
    select '' as name, {_WHOLE_SUMS}, coalesce(sum(units), 0)::bigint as units from (
        select {_NAMES}, units from headgate.usage_unit_totals where key = $1 and month = $2 and scope = $4
        union all
        select {_NAMES}, (not exists (
            select from headgate.usage_unit_months as m
            where m.key = $1 and m.month = $2 and m.scope = $4 and m.unit = fresh.unit
        ))::integer from fresh
    ) as parts"""  # noqa: S608


@dataclass(frozen=True, slots=True)
class _Sums:
    """The part of the sums that a report needs."""

    key: str
    since: date
    until: date
    backlog: Sequence[date]
    """Days whose individual rows must be read."""


async def unit_lines(
    link: DatabaseConnection, rows: ReportFilter, *, key: str, limit: int
) -> tuple[list[CostLine], int, CostLine] | None:
    """The most expensive lines, the number of all lines, and their total. None if the sums do not cover the report."""
    if not whole_days(rows) or not await is_migrated(link):
        return None
    since, until = date_of(rows.since), date_of(rows.until)
    month_end = (since.replace(day=1) + timedelta(days=31)).replace(day=1)
    last = max(until, month_end)
    state = await link.fetchrow(_STATE, key, since, last, until)
    assert state is not None
    if not state["is_summed"]:
        return None
    of_month = since.day == 1 and until <= month_end and not state["has_later"] and not state["backlog"]
    if of_month and "/" not in rows.tenant and not (rows.service_class or rows.model):
        return await _month_lines(link, _Sums(key, since, month_end, ()), scope=rows.tenant, limit=limit)
    backlog = sorted(day for day in state["backlog"] if day < until)
    return await _day_lines(link, _Sums(key, since, until, backlog), rows, limit=limit)


async def _month_lines(
    link: DatabaseConnection, sums: _Sums, *, scope: str, limit: int
) -> tuple[list[CostLine], int, CostLine]:
    place = (sums.key, sums.since, sums.until, scope)
    fresh = await link.fetchval(_FRESH_UNITS, *place)
    found = await link.fetch(_LINES, *place, limit + fresh, limit)
    total = await link.fetchrow(_TOTAL, *place)
    assert total is not None
    return [cost_line(row) for row in found], total["units"], cost_line(total)


async def _day_lines(
    link: DatabaseConnection, sums: _Sums, rows: ReportFilter, *, limit: int
) -> tuple[list[CostLine], int, CostLine]:
    first = sums.backlog[0] if sums.backlog else sums.since
    end = sums.backlog[-1] + timedelta(days=1) if sums.backlog else first
    values = (
        *(to_datetime(to_instant(first)), to_datetime(to_instant(end))),
        *(sums.key, sums.since, sums.until, list(sums.backlog)),
        *(rows.tenant, rows.service_class, rows.model),
    )
    units = await link.fetch(_DAY_UNITS, *values, limit)
    found = await link.fetch(_DAY_LINES, *values, [row["name"] for row in units])
    total = await link.fetchrow(_DAY_TOTAL, *values)
    assert total is not None
    return [cost_line(row) for row in found], units[0]["count"] if units else 0, cost_line(total)
