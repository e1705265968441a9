"""Reports and statements before and after usage rows are replaced by hourly sums."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.ledger.database import Database, close
from headgate.ledger.partitions import drop_expired
from headgate.ledger.reports.postgres_reports import PostgresReports
from headgate.ledger.schema_migration import migrate, migrations
from headgate.model.money import BillCause
from headgate.ports.cost_reports import CostReport, NothingFound, ReportFilter
from headgate.ports.ledger import UsageRow
from testing.postgres import Postgres
from tests.ledger.databases import scratch_database
from tests.ledger.ledgers import at, reading, usage, written

pytestmark = pytest.mark.process

LATER = datetime(2026, 12, 20, tzinfo=UTC)
MONTH = ReportFilter(at("2026-11-01"), at("2026-12-01"))
HOURS = ReportFilter(at("2026-11-03T01:00"), at("2026-11-05T22:00"))
GROUPINGS = ("tenant", "model", "class", "pool", "day")


async def rolled_up(url: str, *, roll_up: bool = True, retention_days: int = 30) -> int | None:
    link = await Database(url).connect()
    try:
        return await drop_expired(link, retention_days=retention_days, roll_up=roll_up, now=LATER)
    finally:
        await close(link)


async def all_reports(reports: PostgresReports) -> list[Any]:
    """Statements, and reports in every dimension for the month and for hours. The resolution is left out."""
    found: list[Any] = []
    for rows in (MONTH, HOURS, replace(HOURS, tenant="acme"), replace(HOURS, service_class="batch", model="chat")):
        for by in GROUPINGS:
            try:
                report = await reports.report(rows, by=by, key="", depth=2, limit=50)
            except NothingFound:
                found.append(None)
            else:
                found.append(replace(report, resolution=""))
    try:
        found.append(await reports.statements("2026-11", "", now=at("2026-12-01")))
    except NothingFound:
        found.append(None)
    return found


MOMENTS = st.builds("2026-11-{:02}T{:02}:{:02}".format, st.integers(3, 5), st.integers(0, 23), st.integers(0, 59))
AMOUNTS = st.integers(0, 2**40)


@st.composite
def usages(draw: st.DrawFn) -> list[UsageRow]:
    rows: list[UsageRow] = []
    for number in range(draw(st.integers(1, 12))):
        cause = draw(st.sampled_from((BillCause.ANSWER, BillCause.RETRY, BillCause.CLIENT_DISCONNECTED, None)))
        row = usage(
            draw(MOMENTS),
            f"r{number}",
            cause=cause,
            tenant=draw(st.sampled_from(("acme/search/web", "acme/chat/app", "beta"))),
            model=draw(st.sampled_from(("chat", "other"))),
            service_class=draw(st.sampled_from(("interactive", "batch", ""))),
            input=draw(AMOUNTS),
            output=draw(AMOUNTS),
            overhead=draw(AMOUNTS),
        )
        rows.append(row)
        if cause is not None and draw(st.booleans()):
            nothing = {"tokens_in": 0, "tokens_out": 0, "input_us": 0, "output_us": 0, "overhead_us": 0}
            fields = {"correction": 1, "input_nano_usd": -7, "output_nano_usd": 3, "overhead_nano_usd": 0, **nothing}
            rows.append(row._replace(**fields))
    return rows


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=usages())
def test_reports_and_statements_are_equal_before_and_after_the_roll_up(
    rows: Sequence[UsageRow], shared_postgres: Postgres, migrated_template: str
) -> None:
    async def compared() -> None:
        async with scratch_database(shared_postgres, migrated_template) as url:
            with tempfile.TemporaryDirectory() as folder:
                await written(url, Path(folder), rows)
            async with reading(url) as reports:
                before = await all_reports(reports)
                await rolled_up(url)
                after = await all_reports(reports)
            link = await asyncpg.connect(url)
            assert await link.fetchval("select count(*) from headgate.usage") == 0
            await link.close()
            assert after == before

    asyncio.run(compared())


async def report_of(url: str, rows: ReportFilter) -> CostReport:
    async with reading(url) as reports:
        return await reports.report(rows, by="tenant", key="", depth=1, limit=50)


async def test_report_states_its_resolution_and_the_full_hours_it_covers(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path, [usage("2026-11-03T10:20", "r1"), usage("2026-11-03T10:50", "r2")])
    minutes = ReportFilter(at("2026-11-03T10:30"), at("2026-11-03T10:55"))
    before = await report_of(url, minutes)
    await rolled_up(url)
    after = await report_of(url, minutes)

    assert (before.resolution, before.total.requests) == ("row", 1)
    assert (after.resolution, after.total.requests) == ("hour", 2)
    assert (after.since, after.until) == (at("2026-11-03T10:00"), at("2026-11-03T11:00"))
    assert (await report_of(url, MONTH)).resolution == "day"


async def test_late_row_for_a_rolled_up_day_is_added_to_its_sums(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path / "first", [usage("2026-11-03T10:20", "r1")])
    await rolled_up(url)
    await written(url, tmp_path / "late", [usage("2026-11-03T10:21", "r2"), usage("2026-12-19T10:00", "new")])
    hour = ReportFilter(at("2026-11-03T10:00"), at("2026-11-03T11:00"))
    mixed = await report_of(url, hour)
    await rolled_up(url)

    assert mixed.total.requests == 2
    assert (await report_of(url, hour)).total == mixed.total


async def test_rows_are_dropped_without_sums_unless_roll_up_is_set(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path, [usage("2026-11-03T10:20", "r1")])
    await rolled_up(url, roll_up=False)

    with pytest.raises(NothingFound, match="individual rows are kept"):
        await report_of(url, ReportFilter(at("2026-11-03T10:00"), at("2026-11-03T11:00")))


async def test_no_day_is_dropped_while_the_table_of_the_sums_is_missing(empty_url: str, tmp_path: Path) -> None:
    link = await Database(empty_url).connect()
    await migrate(link, migrations()[:3], lambda _: None)
    await written(empty_url, tmp_path, [usage("2026-11-03T10:20", "r1")])

    assert await rolled_up(empty_url) == 0
    assert await link.fetchval("select count(*) from headgate.usage") == 1
    assert (await report_of(empty_url, replace(HOURS))).total.requests == 1
    await close(link)
