"""A month's report by business unit reads a bounded number of rows, counted by PostgreSQL itself."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from headgate.ledger.database import Database
from headgate.ledger.reports.postgres_reports import PostgresReports, ReportPolicy
from headgate.ledger.reports.queries import cost_lines
from headgate.ledger.unit_sums import move_slice, queue_next_day
from headgate.ports.cost_reports import CostLine, CostReport, ReportFilter
from tests.ledger.ledgers import at

pytestmark = pytest.mark.process

NOVEMBER = ReportFilter(at("2026-11-01"), at("2026-12-01"))
ROWS_PER_UNIT = 5
ROWS_READ_MAX = 10_000
FILL = """
    insert into headgate.usage select
        timestamptz '2026-11-01 00:00Z' + n * (interval '30 days' / $1::bigint), 'r' || n, 1, 0,
        'org' || unit % 10 || '/project' || unit % 3 || '/key', (array['interactive', 'batch'])[1 + unit % 2],
        (array['chat', 'large', 'long'])[1 + unit % 3], 'm', (array['small', 'large'])[1 + n % 2], 'e1', 'chat', true,
        n % 500, n % 50, n % 300, 0, 'engine', 1, 2, 3, n % 700, n % 900, n % 100, 'completed', 'completed',
        (array['answer', 'answer', 'answer', 'retry'])[1 + n % 4],
        (array['tenant', 'tenant', 'tenant', 'platform'])[1 + n % 4],
        0, n % 7000, n % 90000, n % 1000, 1,
        jsonb_build_object('ticket', 't' || unit, 'feature', 'f' || unit % 4)
    from (select n, n / $2::bigint as unit from generate_series(0, $1::bigint - 1) as n) as numbered"""
"""Every unit has neighbouring rows, as a ticket has. There are therefore new units on each day."""
FILL_DAILY_SUMS = """
    insert into headgate.usage_daily
    select (at at time zone 'UTC')::date, tenant, class, model, pool, payer, cause, outcome,
        sum((attempt <= 1)::integer), count(*), sum(tokens_in), sum(tokens_cached), sum(tokens_out),
        sum(tokens_reasoning), sum(input_us + output_us + overhead_us), sum(input_nano_usd), sum(output_nano_usd),
        sum(overhead_nano_usd)
    from headgate.usage group by 1, 2, 3, 4, 5, 6, 7, 8"""


LATE_ROWS = 500
RETRIED = """
    insert into headgate.usage
    select (jsonb_populate_record(usage, '{"attempt": 2}')).* from headgate.usage limit $1"""


class ExplainedConnection:
    """Runs each query a second time under EXPLAIN ANALYZE, and adds up the rows that its scans read."""

    def __init__(self, link: Any, read: dict[str, int]) -> None:
        self._link, self._read = link, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def fetch(self, query: str, *values: object) -> Any:
        await self._count(query, values)
        return await self._link.fetch(query, *values)

    async def fetchrow(self, query: str, *values: object) -> Any:
        await self._count(query, values)
        return await self._link.fetchrow(query, *values)

    async def fetchval(self, query: str, *values: object) -> Any:
        await self._count(query, values)
        return await self._link.fetchval(query, *values)

    async def _count(self, query: str, values: tuple[object, ...]) -> None:
        [plan] = json.loads(await self._link.fetchval(f"explain (analyze, format json) {query}", *values))
        nodes = [plan["Plan"]]
        while nodes:
            node = nodes.pop()
            nodes += node.get("Plans", [])
            if table := node.get("Relation Name"):
                removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
                self._read[table] = self._read.get(table, 0) + (node["Actual Rows"] + removed) * node["Actual Loops"]


class ExplainedDatabase(Database):
    def __init__(self, url: str) -> None:
        super().__init__(url, connect_s_max=60.0, query_s_max=60.0)
        self.rows_read: dict[str, int] = {}

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Any]:
        async with super().acquire() as link:
            yield ExplainedConnection(link, self.rows_read)


async def fill(link: Any, rows: int) -> None:
    for day in range(30):
        await link.execute("select headgate.create_usage_partition(date '2026-11-01' + $1::integer)", day)
    await link.execute(FILL, rows, ROWS_PER_UNIT)


async def sum_all(link: Any, keys: tuple[str, ...]) -> None:
    for key in keys:
        assert await link.fetchval("select headgate.register_unit_key($1)", key)
    while await queue_next_day(link):
        pass
    while await move_slice(link):
        pass
    await link.execute("analyze")


async def reported(url: str, rows: ReportFilter, key: str) -> tuple[CostReport, dict[str, int]]:
    """The report, and the number of rows read from each table."""
    database = ExplainedDatabase(url)
    reports = PostgresReports(database, ReportPolicy)
    report = await reports.report(rows, by="unit", key=key, depth=1, limit=50)
    await reports.stop()
    return report, database.rows_read


@pytest.mark.parametrize("rows", [60_000, pytest.param(1_500_000, marks=pytest.mark.nightly)])
async def test_report_of_a_month_reads_few_rows_and_equals_the_report_from_all_rows(url: str, rows: int) -> None:
    link = await asyncpg.connect(url)
    await fill(link, rows)
    await sum_all(link, ("ticket", "feature"))
    # These rows are still in the queue during the reports.
    assert await link.execute(RETRIED, LATE_ROWS) == f"INSERT 0 {LATE_ROWS}"
    await link.execute(FILL_DAILY_SUMS)
    for asked in (NOVEMBER, replace(NOVEMBER, tenant="org3")):
        for key, units in (("ticket", rows // ROWS_PER_UNIT), ("feature", 4)):
            report, read = await reported(url, asked, key)
            read_raw: dict[str, int] = {}
            lines, count, total = await cost_lines(
                ExplainedConnection(link, read_raw), asked, by="unit", key=key, depth=1, limit=50
            )
            assert [without_ratios(line) for line in report.lines] == lines[:50]
            assert without_ratios(report.total) == total
            assert report.lines_omitted == count - len(report.lines)
            assert count == (units if not asked.tenant else max(units // 10, 2))
            assert sum(read_raw.values()) >= rows
            assert sum(read.values()) < ROWS_READ_MAX, read
    await link.close()


def without_ratios(line: CostLine) -> CostLine:
    return replace(line, request_nano_usd=None, thousand_tokens_nano_usd=None, share=0.0)
