"""Reports by business unit from sums are equal to reports from individual rows."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate.control.ledger_sync import LedgerSync
from headgate.ledger.database import Database, close
from headgate.ledger.options import DatabaseOptions, LedgerOptions
from headgate.ledger.partitions import drop_expired
from headgate.ledger.reports import queries
from headgate.ledger.reports.postgres_reports import ReportPolicy
from headgate.ledger.reports.unit_queries import unit_lines
from headgate.ledger.unit_sums import (
    UnitSums,
    UnitSumsLag,
    delete_expired_sums,
    delete_removed_key,
    move_slice,
    queue_before_drop,
    queue_next_day,
)
from headgate.model.money import BillCause, NanoUsd
from headgate.ports.cost_reports import ReportFilter
from headgate.ports.ledger import UsageRow
from testing.postgres import Postgres
from tests.ledger.databases import scratch_database
from tests.ledger.ledgers import at, reading, usage, written
from tests.ledger.rows import NOON

pytestmark = pytest.mark.process

HOLD_SUMS = "select pg_advisory_xact_lock(hashtext('headgate.unit_sums'))"
NOVEMBER = ReportFilter(at("2026-11-01"), at("2026-12-01"))
FILTERS = (
    NOVEMBER,
    replace(NOVEMBER, tenant="acme"),
    replace(NOVEMBER, tenant="acme/search"),
    replace(NOVEMBER, service_class="batch"),
    replace(NOVEMBER, model="chat"),
    replace(NOVEMBER, until=at("2026-11-05")),
    replace(NOVEMBER, since=at("2026-11-03"), until=at("2026-11-04")),
    ReportFilter(at("2026-10-01"), at("2026-11-01")),
    ReportFilter(at("2026-10-30"), at("2026-12-02")),
)
LIMITS = (1, 3, 50)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    link = await Database(url).connect()
    try:
        yield link
    finally:
        await close(link)


async def register(link: Any, key: str = "unit") -> None:
    assert await link.fetchval("select headgate.register_unit_key($1)", key)


async def catch_up(link: Any) -> None:
    while await queue_next_day(link):
        pass
    while await move_slice(link):
        pass


async def from_rows(link: Any, rows: ReportFilter, *, limit: int) -> Any:
    return await queries.cost_lines(link, rows, by="unit", key="unit", depth=1, limit=limit)


async def assert_equal_to_rows(link: Any) -> None:
    async with link.transaction(isolation="repeatable_read", readonly=True):
        for rows in FILTERS:
            for limit in LIMITS:
                summed = await unit_lines(link, rows, key="unit", limit=limit)
                expected = await from_rows(link, rows, limit=limit)
                assert summed is not None
                lines, count, total = expected
                assert summed == (lines[:limit], count, total), (rows, limit)


# Random histories


class Traffic:
    """Random rows: retries, rejected requests, corrections, late rows and repeated rows."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0
        self.written: list[UsageRow] = []

    def rows(self) -> list[UsageRow]:
        made = [row for _ in range(self._random.randint(1, 12)) for row in self._request()]
        if self.written and self._random.random() < 0.5:
            # Part of a batch whose commit was uncertain.
            made += self._random.sample(self.written, min(3, len(self.written)))
        self.written += [row for row in made if row not in self.written]
        return made

    def _request(self) -> list[UsageRow]:
        chance = self._random
        self._number += 1
        # Days differ, so most rows are late for some other row.
        day = chance.choice(("10-31", "11-01", "11-03", "11-04", "11-30", "12-01"))
        unit = chance.choice(("", "u1", "u2", "u3", "ü4", f"once-{self._number}"))
        row = usage(
            f"2026-{day}T{chance.randint(0, 23):02}:30",
            f"r{self._number}",
            cause=chance.choice((BillCause.ANSWER, BillCause.RETRY, BillCause.CLIENT_DISCONNECTED, None)),
            tenant=chance.choice(("acme/search/web", "acme/chat/app", "acmeister", "beta", "")),
            model=chance.choice(("chat", "other")),
            service_class=chance.choice(("interactive", "batch", "")),
            output=chance.choice((0, 800, 2**40)),
            tokens_cached=chance.randint(0, 9),
            outcome=chance.choice(("succeeded", "model_not_found")),
            metadata=(("unit", unit), ("other", "x")) if unit else (),
        )
        made = [row]
        if row.attempt and chance.random() < 0.3:
            made.append(row._replace(attempt=2, endpoint="small-1"))
        if row.attempt and chance.random() < 0.3:
            nothing = {"tokens_in": 0, "tokens_out": 0, "input_us": 0, "output_us": 0, "overhead_us": 0}
            amounts = {"input_nano_usd": NanoUsd(-7), "output_nano_usd": NanoUsd(-2), "overhead_nano_usd": NanoUsd(0)}
            made.append(row._replace(correction=1, **nothing, **amounts))
        return made


@dataclass
class Ledger:
    """A database to which random steps are applied."""

    url: str
    link: Any
    folder: Path
    traffic: Traffic
    batches: int = field(default=0)

    async def write(self) -> None:
        self.batches += 1
        await written(self.url, self.folder / str(self.batches), self.traffic.rows())

    async def register(self) -> None:
        await register(self.link)

    async def move(self) -> None:
        await move_slice(self.link, rows_max=3)

    async def add_day(self) -> None:
        await queue_next_day(self.link)

    async def crash_while_moving(self) -> None:
        await self._crash(lambda link: move_slice(link, rows_max=3))

    async def crash_while_adding_a_day(self) -> None:
        await self._crash(queue_next_day)

    async def _crash(self, step: Callable[[Any], Awaitable[object]]) -> None:
        """The connection ends after the step's statements and before its commit."""
        async with connected(self.url) as link:
            pid = link.get_server_pid()
            await link.transaction().start()
            await step(link)
            assert await self.link.fetchval("select pg_terminate_backend($1, 60000)", pid)


STEPS = (
    *(Ledger.write, Ledger.write, Ledger.move, Ledger.move, Ledger.add_day),
    *(Ledger.crash_while_moving, Ledger.crash_while_adding_a_day),
)


@pytest.mark.parametrize("seed", range(8))
async def test_sums_equal_rows_after_each_step_of_a_random_history(
    shared_postgres: Postgres, migrated_template: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    async with scratch_database(shared_postgres, migrated_template) as url, connected(url) as link:
        ledger = Ledger(url, link, tmp_path, Traffic(seed))
        for _ in range(seed % 3):
            await ledger.write()
        await ledger.register()
        await assert_equal_to_rows(link)
        for _ in range(12):
            await chance.choice(STEPS)(ledger)
            await assert_equal_to_rows(link)
        await catch_up(link)
        await assert_equal_to_rows(link)
        assert await link.fetchval("select count(*) from headgate.usage") == len(ledger.traffic.written)
        assert await link.fetchval("select count(*) from headgate.usage_unit_queue") == 0


# Concurrency and retention


async def test_concurrent_writers_and_summing_processes_keep_the_sums_equal_to_the_rows(
    url: str, tmp_path: Path
) -> None:
    async def write(name: int) -> None:
        for number in range(4):
            await written(url, tmp_path / f"{name}-{number}", Traffic(10 * name + number).rows())

    async def advance(writing: "asyncio.Future[Any]") -> int:
        moved, is_last = 0, False
        async with connected(url) as link:
            while not is_last:
                # Once more after the last row, because all rows may have been written before this connection was open.
                is_last = writing.done()
                await queue_next_day(link)
                moved += await move_slice(link, rows_max=5) or 0
        return moved

    async with connected(url) as link:
        await register(link)
        writing = asyncio.gather(*(write(name) for name in range(3)))
        moving = [asyncio.create_task(advance(writing)) for _ in range(2)]
        while not writing.done():
            await assert_equal_to_rows(link)
        await writing
        assert sum([await task for task in moving]) > 0
        await catch_up(link)
        await assert_equal_to_rows(link)


async def test_key_can_be_registered_while_rows_are_written(url: str, tmp_path: Path) -> None:
    """A transaction that is inserting rows when the key is registered is not missed."""
    await written(url, tmp_path, Traffic(1).rows())
    async with connected(url) as link, connected(url) as writer:
        writing = writer.transaction()
        await writing.start()
        await writer.execute(
            "insert into headgate.usage select at, 'copy-' || request, attempt, correction, tenant, class, model,"
            " served_model, pool, endpoint, api, stream, tokens_in, tokens_cached, tokens_out, tokens_reasoning,"
            " usage_source, queue_us, ttft_us, duration_us, input_us, output_us, overhead_us, outcome, ending, cause,"
            " payer, level, input_nano_usd, output_nano_usd, overhead_nano_usd, reserved_nano_usd, metadata"
            " from headgate.usage"
        )
        registering = asyncio.create_task(register(link))
        waiting = "select count(*) from pg_locks where relation = 'headgate.usage'::regclass and not granted"
        while not await writer.fetchval(waiting):
            await asyncio.sleep(0.005)
        await writing.commit()
        await registering
        await assert_equal_to_rows(link)
        await catch_up(link)
        await assert_equal_to_rows(link)


async def report_by_unit(url: str, rows: ReportFilter = NOVEMBER) -> Any:
    async with reading(url, lambda: ReportPolicy(unit="unit")) as reports:
        return await reports.report(rows, by="unit", key="", depth=1, limit=50)


@pytest.mark.parametrize("is_summed", [True, False], ids=["after the backlog", "with a backlog"])
async def test_sums_stay_when_the_rows_are_dropped(url: str, tmp_path: Path, is_summed: bool) -> None:
    await written(url, tmp_path / "first", Traffic(3).rows())
    async with connected(url) as link:
        await register(link)
        await written(url, tmp_path / "second", Traffic(4).rows())
        if is_summed:
            await catch_up(link)
        before = await report_by_unit(url)
        await drop_expired(link, retention_days=30, now=datetime(2027, 1, 20, tzinfo=UTC))
        assert await link.fetchval("select count(*) from headgate.usage") == 0
        after = await report_by_unit(url)
        await catch_up(link)
        moved = await report_by_unit(url)

    assert (before.resolution, after.resolution) == ("day", "day")
    assert before.total.requests > 0
    assert after == before
    assert moved == before


THIRD = date(2026, 11, 3)


async def write_third(url: str, folder: Path, *, rows: int = 5) -> None:
    unit = {"metadata": (("unit", "u1"),)}
    await written(url, folder, [usage("2026-11-03T10:20", f"r{number}", **unit) for number in range(rows)])


async def drop_third(link: Any) -> None:
    async with link.transaction():
        await queue_before_drop(link, THIRD)
        await link.execute("drop table headgate.usage_20261103")


async def until_blocked(link: Any, blocked: Any) -> None:
    async with asyncio.timeout(60.0):
        while not await link.fetchval("select cardinality(pg_blocking_pids($1)) > 0", blocked.get_server_pid()):
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("is_registered", [True, False], ids=["adds the day", "registers the key"])
async def test_rows_are_counted_once_if_their_day_is_dropped_at_the_same_time(
    url: str, tmp_path: Path, is_registered: bool
) -> None:
    await write_third(url, tmp_path)
    async with connected(url) as link, connected(url) as dropping:
        if is_registered:
            await register(link)
        adding = link.transaction()
        await adding.start()
        if is_registered:
            assert await queue_next_day(link)
        else:
            await register(link)
        drop = asyncio.create_task(drop_third(dropping))
        await until_blocked(link, dropping)
        await adding.commit()
        await drop
        assert await link.fetchval("select count(*) from headgate.usage") == 0
        await catch_up(link)
        assert await link.fetchval("select sum(requests) from headgate.usage_unit_days") == 5


async def test_day_is_dropped_later_if_another_process_changes_the_sums(url: str, tmp_path: Path) -> None:
    await write_third(url, tmp_path)
    december = datetime(2026, 12, 4, 1, tzinfo=UTC)
    async with connected(url) as link, connected(url) as other:
        await register(link)
        async with other.transaction():
            await other.execute(HOLD_SUMS)
            assert await drop_expired(link, retention_days=30, now=december) == 0
        assert await drop_expired(link, retention_days=30, now=december) == 1
        await catch_up(link)
        assert await link.fetchval("select sum(requests) from headgate.usage_unit_days") == 5


async def test_day_that_a_gateway_of_an_earlier_version_dropped_leaves_the_backlog(url: str, tmp_path: Path) -> None:
    await write_third(url, tmp_path)
    async with connected(url) as link:
        await register(link)
        await catch_up(link)
        await register(link, "other")
        await link.execute("drop table headgate.usage_20261103")
        await catch_up(link)
        assert await link.fetchval("select count(*) from headgate.usage_unit_backlog") == 0
        assert (await report_by_unit(url)).total.requests == 5


async def test_late_row_of_a_dropped_day_is_added_to_the_sums(url: str, tmp_path: Path) -> None:
    unit = {"metadata": (("unit", "u1"),)}
    await written(url, tmp_path / "first", [usage("2026-11-03T10:20", "r1", **unit)])
    async with connected(url) as link:
        await register(link)
        await catch_up(link)
        await drop_expired(link, retention_days=30, now=datetime(2027, 1, 20, tzinfo=UTC))
        await written(url, tmp_path / "late", [usage("2026-11-03T10:21", "r2", **unit)])
        await catch_up(link)

    report = await report_by_unit(url)
    assert [(line.name, line.requests) for line in report.lines] == [("u1", 2)]


async def counts(link: Any, *tables: str) -> list[int]:
    return [await link.fetchval(f"select count(*) from headgate.usage_unit_{table}") for table in tables]


async def test_sums_are_deleted_after_400_days(url: str, tmp_path: Path) -> None:
    async with connected(url) as link:
        await register(link)
        await written(url, tmp_path, [usage("2026-11-03T10:20", "r1", metadata=(("unit", "u1"),))])
        await catch_up(link)
        await drop_expired(link, retention_days=30, now=datetime(2027, 11, 5, tzinfo=UTC))
        assert (await report_by_unit(url)).total.requests == 1
        await drop_expired(link, retention_days=30, now=datetime(2027, 12, 30, tzinfo=UTC))
        # The month's last day is 395 days ago.
        assert await counts(link, "days", "months", "totals") == [0, 2, 2]
        assert (await report_by_unit(url)).total.requests == 1
        await drop_expired(link, retention_days=30, now=datetime(2028, 1, 5, tzinfo=UTC))
        assert await counts(link, "days", "months", "totals") == [0, 0, 0]


async def test_sums_are_kept_as_long_as_the_rows(url: str, tmp_path: Path) -> None:
    async with connected(url) as link:
        await register(link)
        await write_third(url, tmp_path)
        await catch_up(link)
        await drop_expired(link, retention_days=730, now=datetime(2028, 1, 5, tzinfo=UTC))
        assert await link.fetchval("select count(*) from headgate.usage") == 5
        await assert_equal_to_rows(link)


async def test_expired_sums_are_deleted_in_batches(url: str, tmp_path: Path) -> None:
    units = [(("unit", f"u{number}"),) for number in range(5)]
    async with connected(url) as link:
        await register(link)
        await written(url, tmp_path, [usage("2026-11-03T10:20", str(unit), metadata=unit) for unit in units])
        await catch_up(link)
        recorded = RecordedStatements(link)
        await delete_expired_sums(recorded, date(2028, 1, 5), retention_days=30, rows_max=2)
        assert await counts(link, "days", "months", "totals") == [0, 0, 0]
        # Five days, ten months and two totals, each table until nothing is left.
        assert recorded.deleted == [2, 2, 1, 0, *[2] * 5, 0, 2, 0]


class RecordedStatements:
    """A connection that records the number of rows that each statement deletes."""

    def __init__(self, link: Any) -> None:
        self._link = link
        self.deleted: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def execute(self, query: str, *values: object) -> str:
        status = await self._link.execute(query, *values)
        if status.startswith("DELETE"):
            self.deleted.append(int(status.split()[1]))
        return status


async def test_other_data_is_deleted_if_the_sums_cannot_be_deleted(url: str, tmp_path: Path) -> None:
    async with connected(url) as link, connected(url) as other:
        await register(link)
        await write_third(url, tmp_path)
        await catch_up(link)
        await link.execute(
            "insert into headgate.budget_notifications (scope, period, period_start, percent, limit_nano_usd,"
            " spent_nano_usd) values ('tenant:acme', 'month', '2026-11-01', 80, 1000, 900)"
        )
        async with other.transaction():
            await other.execute(HOLD_SUMS)
            await drop_expired(link, retention_days=30, now=datetime(2028, 1, 5, tzinfo=UTC))
        assert await link.fetchval("select count(*) from headgate.budget_notifications") == 0
        assert (await counts(link, "days"))[0] > 0


# Keys


async def test_rows_are_not_queued_before_a_key_is_registered_or_after_it_is_removed(url: str, tmp_path: Path) -> None:
    async with connected(url) as link:
        await written(url, tmp_path / "before", Traffic(1).rows())
        assert await link.fetchval("select count(*) from headgate.usage_unit_queue") == 0
        await register(link)
        await written(url, tmp_path / "between", Traffic(2).rows())
        assert await link.fetchval("select count(*) from headgate.usage_unit_queue") > 0
        await link.execute("select headgate.remove_unit_key('unit')")
        await delete_removed(link)
        await written(url, tmp_path / "after", Traffic(3).rows())
        assert await link.fetchval("select count(*) from headgate.usage_unit_queue") == 0
        assert await link.fetchval("select count(*) from pg_trigger where tgname = 'queue_unit_sums'") == 0
        report = await report_by_unit(url)
        assert report.resolution == "row"
        await register(link)
        await assert_equal_to_rows(link)


async def delete_removed(link: Any) -> None:
    while await delete_removed_key(link, rows_max=3):
        pass


async def test_sums_of_a_removed_key_are_deleted_in_batches(url: str, tmp_path: Path) -> None:
    tables = ("queue", "days", "months", "totals", "removed_keys")
    async with connected(url) as link:
        await register(link)
        await register(link, "other")
        await written(url, tmp_path / "moved", Traffic(1).rows())
        await catch_up(link)
        await written(url, tmp_path / "queued", Traffic(2).rows())
        kept = "select count(*) from headgate.usage_unit_days where key = 'other'"
        others = await link.fetchval(kept)
        before = await counts(link, *tables)
        await link.execute("select headgate.remove_unit_key('unit')")
        assert await counts(link, *tables) == [*before[:4], 1]
        assert not await link.fetchval("select headgate.register_unit_key('unit')")
        assert await delete_removed_key(link, rows_max=1)
        assert await counts(link, *tables) == [before[0] - 1, *before[1:4], 1]
        await delete_removed(link)
        assert all(await counts(link, "queue", "days", "months", "totals"))
        for table in tables:
            assert not await link.fetchval(
                f"select exists (select from headgate.usage_unit_{table} where key = 'unit')"
            )
        assert await link.fetchval(kept) == others > 0
        await register(link)
        await assert_equal_to_rows(link)


async def test_key_can_be_removed_while_a_partition_is_created(url: str) -> None:
    async with connected(url) as link, connected(url) as writer:
        await register(link)
        creating = writer.transaction()
        await creating.start()
        await writer.execute("create table headgate.usage_20261103 (like headgate.usage including all)")
        removing = asyncio.create_task(link.execute("select headgate.remove_unit_key('unit')"))
        await until_blocked(writer, link)
        await writer.execute(
            "alter table headgate.usage attach partition headgate.usage_20261103"
            " for values from ('2026-11-03') to ('2026-11-04')"
        )
        await creating.commit()
        await removing
        assert await link.fetchval("select count(*) from headgate.usage_unit_keys") == 0


async def test_gateway_deletes_the_sums_of_a_removed_key(url: str, tmp_path: Path) -> None:
    async with connected(url) as link:
        await register(link, "other")
        await write_third(url, tmp_path / "rows")
        await catch_up(link)
        await link.execute("select headgate.remove_unit_key('other')")
        await UnitSums(lambda: "unit").run_if_due(link)
        assert await link.fetchval("select count(*) from headgate.usage_unit_removed_keys") == 0
        assert not await link.fetchval("select exists (select from headgate.usage_unit_days where key = 'other')")
        await assert_equal_to_rows(link)


async def test_four_keys_can_be_summed_at_the_same_time(url: str, tmp_path: Path) -> None:
    async with connected(url) as link:
        for key in ("unit", "other", "third", "fourth", "unit"):
            await register(link, key)
        assert not await link.fetchval("select headgate.register_unit_key('fifth')")
        await written(url, tmp_path, Traffic(5).rows())
        await catch_up(link)
        await assert_equal_to_rows(link)
        [row] = await link.fetch(
            "select unit, units from headgate.usage_unit_totals join headgate.usage_unit_days"
            " using (key) where key = 'third' and month = '2026-11-01' and scope = '' limit 1"
        )
        assert tuple(row) == ("", 1)


async def test_report_without_a_summed_key_reads_individual_rows(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path, Traffic(1).rows())
    async with connected(url) as link:
        assert await unit_lines(link, NOVEMBER, key="unit", limit=50) is None
        await register(link)
        assert await unit_lines(link, replace(NOVEMBER, until=at("2026-11-05T10:00")), key="unit", limit=50) is None
        assert await unit_lines(link, NOVEMBER, key="other", limit=50) is None
        assert await unit_lines(link, NOVEMBER, key="unit", limit=50) is not None


# Gateways


@asynccontextmanager
async def gateway(url: str, folder: Path, key: str, *, retention_days: int = 36_500) -> AsyncIterator[LedgerSync]:
    """The ledger of a running gateway whose configuration names this unit key. By default, it drops no rows, however
    long ago the dates in these tests are.
    """
    database, settings = DatabaseOptions(url, url), LedgerOptions(str(folder), retention_days=retention_days)
    ledger = LedgerSync(database, settings, unit_key=lambda: key, unit_sums_s=0.01)
    ledger.start(tuple, tuple, lambda: NOON)
    try:
        yield ledger
    finally:
        await ledger.stop()


async def test_gateway_registers_its_key_and_sums_rows_of_all_gateways(url: str, tmp_path: Path) -> None:
    await written(url, tmp_path / "before", Traffic(1).rows())
    async with connected(url) as link, gateway(url, tmp_path / "summing", "unit"):
        async with asyncio.timeout(60.0):
            while not await link.fetchval("select count(*) from headgate.usage_unit_days"):
                await asyncio.sleep(0.01)
            await written(url, tmp_path / "other", Traffic(2).rows())
            while await link.fetchval("select count(*) from headgate.usage_unit_queue"):
                await asyncio.sleep(0.01)
        await assert_equal_to_rows(link)


async def test_gateway_adds_the_rows_of_an_expired_day_before_it_drops_them(url: str, tmp_path: Path) -> None:
    retention_days = 30
    expired = datetime.now(UTC).date() - timedelta(days=retention_days + 9)
    rows = [usage(f"{expired}T10:20", f"r{number}", metadata=(("unit", "u1"),)) for number in range(5)]
    await written(url, tmp_path / "rows", rows)
    async with connected(url) as link:
        await register(link)
        running = gateway(url, tmp_path / "summing", "unit", retention_days=retention_days)
        async with running, asyncio.timeout(60.0):
            while await link.fetchval("select to_regclass($1) is not null", f"headgate.usage_{expired:%Y%m%d}"):
                await asyncio.sleep(0.01)
        await catch_up(link)
        assert await link.fetchval("select sum(requests) from headgate.usage_unit_days") == 5


async def test_metrics_show_how_far_the_sums_are_behind(url: str, tmp_path: Path) -> None:
    async with connected(url) as link, connected(url) as other:
        await register(link, "other")
        await catch_up(link)
        await written(url, tmp_path / "rows", Traffic(1).rows())
        await register(link)
        holding = other.transaction()
        await holding.start()
        await other.execute(HOLD_SUMS)
        async with gateway(url, tmp_path / "summing", "unit") as ledger, asyncio.timeout(60.0):
            while not ledger.figures().unit_sums_days:
                await asyncio.sleep(0.01)
            assert ledger.figures().unit_sums_age_s > 0
            await holding.rollback()
            while ledger.figures().unit_sums_days or ledger.figures().unit_sums_age_s:
                await asyncio.sleep(0.01)
        await assert_equal_to_rows(link)


async def test_gateway_with_a_fifth_key_logs_the_next_step(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(url) as link:
        for key in ("unit", "second", "third", "fourth"):
            await register(link, key)
        async with gateway(url, tmp_path, "fifth"), asyncio.timeout(60.0):
            while "already sums by other metadata keys; remove one that is no longer used" not in caplog.text:
                await asyncio.sleep(0.01)
        assert await link.fetchval("select count(*) from headgate.usage_unit_keys") == 4
        async with connected(url) as other, other.transaction():
            await other.execute("lock table only headgate.usage in row exclusive mode")
            await link.execute("set lock_timeout = '1ms'")
            assert not await link.fetchval("select headgate.register_unit_key('fifth')")


# Steps


async def queued(link: Any) -> int:
    return await link.fetchval("select count(*) from headgate.usage_unit_queue")


async def test_backlog_is_queued_one_day_at_a_time(url: str, tmp_path: Path) -> None:
    days = ("10-31", "11-01", "11-03", "11-04")
    units = [(("unit", f"u{number}"),) for number in range(5)]
    rows = [usage(f"2026-{day}T10:20", f"{day}-{unit}", metadata=unit) for day in days for unit in units]
    await written(url, tmp_path, rows)
    async with connected(url) as link:
        await register(link)
        sums, lengths = UnitSums(lambda: "unit", interval_s=0.0, steps_s_max=0.0, slice_rows=2), list[int]()
        await sums.run_if_due(link)
        while sums.lag != UnitSumsLag():
            lengths.append(await queued(link))
            await sums.run_if_due(link)
        assert max(lengths) == 5
        assert lengths.count(5) == len(days)
        await assert_equal_to_rows(link)


async def test_queue_is_moved_while_a_key_cannot_be_registered(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(url) as link, connected(url) as other:
        await register(link, "other")
        await written(url, tmp_path, Traffic(1).rows())
        assert await queued(link) > 0
        async with other.transaction():
            await other.execute("lock table only headgate.usage in row exclusive mode")
            await UnitSums(lambda: "unit").run_if_due(link)
        assert await queued(link) == 0
        assert "could not be updated and will be tried again: LockNotAvailableError" in caplog.text


class UnmeasurableQueue:
    """A connection on which measuring the queue is cancelled."""

    def __init__(self, link: Any) -> None:
        self._link = link

    def __getattr__(self, name: str) -> Any:
        return getattr(self._link, name)

    async def fetchrow(self, query: str, *values: object) -> Any:
        if "age_s" in query:
            raise asyncpg.QueryCanceledError("canceling statement due to statement timeout")
        return await self._link.fetchrow(query, *values)


async def test_queue_is_moved_while_its_age_cannot_be_measured(url: str, tmp_path: Path) -> None:
    async with connected(url) as link:
        await register(link)
        await written(url, tmp_path, Traffic(1).rows())
        assert await queued(link) > 0
        sums = UnitSums(lambda: "unit")
        await sums.run_if_due(UnmeasurableQueue(link))
        assert await queued(link) == 0


async def test_day_that_times_out_is_tried_again(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await write_third(url, tmp_path)
    async with connected(url) as link, connected(url) as other:
        await register(link)
        sums = UnitSums(lambda: "unit", interval_s=0.0, day_s_max=0.1)
        async with other.transaction():
            await other.execute("lock table headgate.usage_20261103 in access exclusive mode")
            await sums.run_if_due(link)
        assert "will be tried again: TimeoutError" in caplog.text
        assert sums.lag.days == await link.fetchval("select count(*) from headgate.usage_unit_backlog") > 0
        await UnitSums(lambda: "unit").run_if_due(link)
        await assert_equal_to_rows(link)
        assert await link.fetchval("select sum(requests) from headgate.usage_unit_days") == 5
