"""Every row is written to the database exactly once, whatever fails."""

import asyncio
import random
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import asyncpg
import pytest

from headgate.ledger.database import DATABASE_ERRORS, Database, close
from headgate.ledger.partitions import Partitions, drop_expired
from headgate.ledger.reports.queries import cost_lines
from headgate.ledger.rows import day_of
from headgate.ledger.spool import spool as spool_module
from headgate.ledger.spool.spool import SEGMENT_ROWS_MAX
from headgate.model.units import SECOND, Instant
from headgate.ports.cost_reports import ReportFilter
from testing.fault_proxy import Fault, FaultProxy
from testing.memory_ledger import MemoryLedger
from testing.postgres import Postgres
from tests.ledger.databases import migrated, until
from tests.ledger.rows import NOON, a_row, a_spool, a_time, all_days, all_rows, writing

COMMIT = b"Q\0\0\0\x0cCOMMIT"
Link = "asyncpg.Connection[Any]"


def through(proxy: FaultProxy, url: str) -> str:
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/{url.rpartition('/')[2]}"


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


def commits_of(proxy: FaultProxy) -> int:
    return sum(count for question, count in proxy.questions.items() if question.startswith(COMMIT))


@pytest.mark.process
@pytest.mark.parametrize(
    ("fault", "was_committed"),
    [(Fault(only=COMMIT, reset_after=0), True), (Fault(only=COMMIT, lost="question"), False)],
    ids=["response lost", "query lost"],
)
async def test_unconfirmed_commit_is_neither_lost_nor_duplicated(
    url: str, link: Link, tmp_path: Path, fault: Fault, was_committed: bool
) -> None:
    async with FaultProxy(port_of(url)) as proxy, a_spool(tmp_path) as spool:
        async with writing(through(proxy, url), spool) as writer:
            await until(lambda: writer.problem is None)
            commits = commits_of(proxy)
            proxy.fault = fault
            for number in range(50):
                spool.add([a_row(f"req_{number}")])
            await until(lambda: commits_of(proxy) > commits)
            if not was_committed:
                # The lost query is never answered; the connection is broken so that the test does not have to wait for
                # a timeout.
                proxy.break_all()
            await until(lambda: writer.problem is not None)
            proxy.fault = Fault()
            assert await writer.flush(60.0)

            assert writer.duplicates == (50 if was_committed else 0)
    assert len(await all_rows(link)) == 50
    assert [each[:2] for each in (await all_days(link)).values()] == [(50, 50)]


@pytest.mark.process
async def test_broken_connections_neither_lose_nor_duplicate_rows(url: str, link: Link, tmp_path: Path) -> None:
    chance, twin = random.Random(7), MemoryLedger()
    async with FaultProxy(port_of(url)) as proxy, a_spool(tmp_path) as spool:
        async with writing(through(proxy, url), spool, flush_s=0.001) as writer:
            await until(lambda: writer.problem is None)
            cuts = 0
            for number in range(400):
                rows = [a_row(f"req_{number}", tenant=f"t{number % 7}")]
                spool.add(rows)
                twin.add(rows)
                if number % 8 == 0:
                    proxy.fault = Fault(reset_after=chance.randrange(120)) if chance.random() < 0.5 else Fault()
                    await asyncio.sleep(chance.random() * 0.02)
                    proxy.break_all()
                    cuts += 1
            proxy.fault = Fault()
            assert await writer.flush(60.0), writer.problem
    assert cuts == 50
    assert await all_rows(link) == [twin.rows[key] for key in sorted(twin.rows)]
    assert await all_days(link) == twin.days()


@pytest.mark.process
async def test_concurrent_writers_for_the_same_days_do_not_block_each_other(
    url: str, link: Link, tmp_path: Path
) -> None:
    async def one(name: int) -> int:
        async with a_spool(tmp_path / str(name)) as spool, writing(url, spool, flush_s=0.001) as writer:
            for number in range(60):
                # Each writer uses a different tenant order.
                tenant = (number * (name + 3)) % 60
                spool.add([a_row(f"req_{name}_{number}", tenant=f"t{tenant}")])
                await asyncio.sleep(0.002)
            assert await writer.flush(60.0), writer.problem
            return writer.reconnects

    reconnects = await asyncio.gather(*(one(name) for name in range(6)))
    assert sum(each[0] for each in (await all_days(link)).values()) == 360
    assert reconnects == [0] * 6


@pytest.mark.process
async def test_row_rejected_by_the_database_does_not_block_others(
    url: str, link: Link, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_spool(tmp_path) as spool, writing(url, spool) as writer:
        for number in range(20):
            spool.add([a_row(f"req_{number}", model="bad\0text canary" if number == 13 else "m")])
        spool.add([a_row("huge", tokens_in=2**40)])
        spool.add_endpoint_times([a_time()])
        assert await writer.flush(60.0)
        assert writer.rows_rejected == 2
    assert len(await all_rows(link)) == 19
    assert await link.fetchval("select count(*) from headgate.endpoint_time") == 1
    assert sum(each[0] for each in (await all_days(link)).values()) == 19
    assert "req_13" in caplog.text
    assert "canary" not in caplog.text


@pytest.mark.process
async def test_unreadable_spool_is_not_reported_as_a_database_problem(
    url: str, link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise OSError(24, "Too many open files")

    async with a_spool(tmp_path, memory_rows_max=0) as spool:
        for number in range(SEGMENT_ROWS_MAX):
            spool.add([a_row(f"req_{number}")])
        # Only now have the rows left memory; a writer that was already running could take them before that.
        await spool.flush()
        monkeypatch.setattr(spool_module, "read_batch", fail)
        async with writing(url, spool) as writer:
            await until(lambda: writer.problem is None)
            await until(lambda: spool.problem is not None)
            away, waiting = writer.problem, spool.rows_waiting
            monkeypatch.undo()
            assert await writer.flush(60.0)

            assert (away, waiting, writer.reconnects, spool.rows_lost) == (None, SEGMENT_ROWS_MAX, 0, 0)
    assert await link.fetchval("select count(*) from headgate.usage") == SEGMENT_ROWS_MAX


@pytest.mark.process
async def test_disk_error_does_not_stop_the_writer(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(spool_module, "find_orphans", fail)
    async with a_spool(tmp_path) as spool, writing(url, spool, maintain_interval_s=0.01, take_over_s=0.0) as writer:
        await until(lambda: spool.problem is not None)
        problem = spool.problem
        spool.add([a_row()])
        assert await writer.flush(60.0)
        monkeypatch.undo()
        await until(lambda: spool.problem is None)

    assert problem is not None
    assert "check the disk" in problem


@pytest.mark.process
async def test_possibly_written_row_for_a_dropped_day_is_not_summed_again(
    url: str, link: Link, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = Instant(int((datetime.now(UTC) - timedelta(days=10)).timestamp()) * SECOND)
    new = Instant(int(datetime.now(UTC).timestamp()) * SECOND)
    for name in ("first", "again"):
        async with a_spool(tmp_path / name) as spool:
            spool.add([a_row("old", at=old), a_row("new", at=new)])
            spool._current.untried = name == "first"
            async with writing(url, spool, retention_days=3) as writer:
                assert await writer.flush(60.0)
                refused = writer.rows_rejected
        await drop_expired(link, retention_days=3)

    assert refused == 1
    assert sum(each[0] for each in (await all_days(link)).values()) == 2
    assert "older than ledger.retention" in caplog.text


def test_internal_error_in_asyncpg_is_treated_as_a_connection_failure() -> None:
    # asyncpg raises this error when a connection breaks during COPY.
    assert isinstance(asyncpg.InternalClientError("lost its state"), DATABASE_ERRORS)


@pytest.mark.process
async def test_unknown_models_share_one_daily_sum(url: str, link: Link, tmp_path: Path) -> None:
    nobodys = {"attempt": 0, "pool": "", "endpoint": "", "payer": "", "cause": ""}
    async with a_spool(tmp_path) as spool, writing(url, spool) as writer:
        for number in range(20):
            for outcome in ("invalid_request", "forbidden", "unauthorized", "key_unverified", "model_not_found"):
                spool.add([a_row(f"{outcome}_{number}", model=f"made-up-{number}", outcome=outcome, **nobodys)])
            left = nobodys | {"service_class": "", "outcome": "cancelled"}
            spool.add([a_row(f"left_{number}", model=f"made-up-{number}", **left)])
        spool.add([a_row("known", outcome="rate_limited", **nobodys)])
        assert await writer.flush(60.0)

    found = await link.fetch("select model, sum(requests)::integer from headgate.usage_daily group by 1 order by 1")
    assert [tuple(row) for row in found] == [("", 120), ("m", 1)]
    day = datetime(2026, 11, 15, tzinfo=UTC)
    window = [Instant(int(at.timestamp()) * SECOND) for at in (day, day + timedelta(hours=23))]
    hourly, count, total = await cost_lines(link, ReportFilter(*window), by="model", key="", depth=1, limit=10)
    assert ({line.name: line.unsent for line in hourly}, count, total.unsent) == ({"": 120, "m": 1}, 2, 121)


@pytest.mark.process
async def test_schema_mismatch_is_reported_until_the_database_is_migrated(empty_url: str, tmp_path: Path) -> None:
    async with a_spool(tmp_path) as spool, writing(empty_url, spool) as writer:
        spool.add([a_row()])
        await until(lambda: writer.mismatch is not None)
        assert writer.mismatch is not None
        assert "headgate ledger migrate" in writer.mismatch
        await migrated(empty_url)
        await until(lambda: writer.rows_written == 1)

        assert writer.mismatch is None


@pytest.mark.process
async def test_rows_wait_while_the_database_does_not_exist(shared_postgres: Postgres, tmp_path: Path) -> None:
    nobody = shared_postgres.url_of("nobody_made_this")
    async with a_spool(tmp_path) as spool, writing(nobody, spool) as writer:
        spool.add([a_row()])

        await until(lambda: "create it" in (writer.problem or ""))
        assert not await writer.flush(0.1)
        assert spool.rows_waiting == 1


# Partitions and retention


@pytest.mark.process
async def test_partitions_can_be_created_concurrently(url: str, link: Link) -> None:
    database = Database(url)
    links = [await database.connect() for _ in range(6)]
    days = {date(2026, 1, 1) + timedelta(days=number) for number in range(5)}
    await asyncio.gather(*(Partitions().ensure(each, days) for each in links))
    for each in links:
        await close(each)

    names = await link.fetch("select relname from pg_class where relname ~ '^usage_[0-9]{8}$' order by 1")
    today = datetime.now(UTC).date()
    wanted = days | {today, today + timedelta(days=1)}
    assert [row[0] for row in names] == [f"usage_{day:%Y%m%d}" for day in sorted(wanted)]


@pytest.mark.process
async def test_old_rows_are_written_to_their_own_partition(url: str, link: Link, tmp_path: Path) -> None:
    old = Instant(NOON - 40 * 86_400 * SECOND)
    async with a_spool(tmp_path) as spool, writing(url, spool) as writer:
        spool.add([a_row("old", at=old), a_row("new")])
        assert await writer.flush(60.0)
    assert {row.at for row in await all_rows(link)} == {old, NOON}


@pytest.mark.process
async def test_retention_applies_to_every_growing_table(url: str, link: Link, tmp_path: Path) -> None:
    # The audit log trigger uses the database's clock, so all ages here are relative to it.
    now = await link.fetchval("select now()")
    ages = [Instant(int((now - timedelta(days=days)).timestamp()) * SECOND) for days in (0, 29, 31, 50)]
    async with a_spool(tmp_path) as spool, writing(url, spool) as writer:
        for at in ages:
            spool.add([a_row(f"req_{at}", at=at)])
            spool.add_endpoint_times([a_time(at=at)])
        assert await writer.flush(60.0)
    for days in (1, 70):
        await link.execute(
            "insert into headgate.budget_notifications values ('tenant:a', 'day', $1, 50, 1, 1)",
            now - timedelta(days=days),
        )
    for days in (100, 402):
        await _audit(link, days)

    dropped = await drop_expired(link, retention_days=30, now=now)
    assert dropped == 2
    assert {row.at for row in await all_rows(link)} == {ages[0], ages[1]}
    assert await link.fetchval("select count(*) from headgate.endpoint_time") == 2
    assert await link.fetchval("select count(*) from headgate.budget_notifications") == 1
    assert await link.fetchval("select count(*) from headgate.audit") == 1
    # Daily sums are kept.
    assert len(await all_days(link)) == 4


async def _audit(link: Link, days: int) -> None:
    await link.execute(
        "insert into headgate.audit (at, actor, origin, action, target)"
        " values (now() - $1 * interval '1 day', 'a', 'o', 'x', 't')",
        days,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    "statement", ["delete from headgate.audit", "truncate headgate.audit", "update headgate.audit set actor = 'b'"]
)
async def test_recent_audit_log_entries_cannot_be_changed_or_deleted(link: Link, statement: str) -> None:
    await _audit(link, 100)
    with pytest.raises(asyncpg.RaiseError, match="append-only"):
        await link.execute(statement)


@pytest.mark.process
async def test_only_one_process_applies_retention_at_a_time(url: str, link: Link) -> None:
    await link.execute("select pg_advisory_lock($1)", 0x68656165)
    other = await Database(url).connect()
    found = await drop_expired(other, retention_days=30)
    await close(other)

    assert found is None


@pytest.mark.process
async def test_partition_in_use_is_dropped_later(url: str, link: Link, tmp_path: Path) -> None:
    old = Instant(NOON - 50 * 86_400 * SECOND)
    async with a_spool(tmp_path) as spool, writing(url, spool) as writer:
        spool.add([a_row("old", at=old)])
        assert await writer.flush(60.0)
    reader = await asyncpg.connect(url)
    async with reader.transaction():
        await reader.fetch("select * from headgate.usage")
        assert await drop_expired(link, retention_days=30) == 0
    assert await drop_expired(link, retention_days=30) == 1
    await reader.close()
    assert day_of(old) == date(2026, 9, 26)
