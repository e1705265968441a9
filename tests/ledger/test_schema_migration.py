"""Tests for compatibility between versions and database schemas."""

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from headgate.ledger.database import Database, close
from headgate.ledger.partitions import Partitions, drop_expired
from headgate.ledger.schema_migration import (
    OLDEST_USABLE,
    Migration,
    migrate,
    migrations,
    schema_mismatch,
    schema_state,
)

Link = "asyncpg.Connection[Any]"

KNOWN = migrations()
NEXT = len(KNOWN) + 1
EXPAND = Migration(NEXT, "expand", f"-- oldest schema: {OLDEST_USABLE}\ncreate table headgate.more ()")
BREAK = Migration(NEXT, "break", f"-- oldest schema: {NEXT}\ncreate table headgate.other ()")
TIMES = "insert into headgate.endpoint_time values ($1, 's', 'e', 'p', 10, 0, 0, 4, 6, 0, 7, 'on_demand')"


async def migrated_to(link: Link, known: tuple[Migration, ...]) -> None:
    await migrate(link, known, lambda _: None)


def test_every_migration_since_the_first_version_states_the_oldest_schema() -> None:
    assert [each.oldest_schema for each in KNOWN[:2]] == [1, 2]
    for each in KNOWN[2:]:
        assert each.sql.startswith("-- oldest schema: "), each.name
        assert each.oldest_schema <= each.number


@pytest.mark.process
async def test_gateway_keeps_working_after_an_expansion_it_does_not_know(link: Link) -> None:
    await migrated_to(link, (*KNOWN, EXPAND))

    assert await schema_mismatch(link, KNOWN) is None
    assert await schema_mismatch(link, KNOWN[:OLDEST_USABLE]) is None
    # Version 0.1 rejects every number in this table that it does not know.
    assert await link.fetchval("select max(number) from headgate.migrations") == 2


@pytest.mark.process
async def test_gateway_stops_after_a_breaking_migration_it_does_not_know(link: Link) -> None:
    await migrated_to(link, (*KNOWN, BREAK))

    problem = await schema_mismatch(link, KNOWN)
    assert problem is not None
    assert f"migration {NEXT:04} from a newer version" in problem
    assert "upgrade Headgate" in problem
    assert await schema_mismatch(link, (*KNOWN, BREAK)) is None
    assert await link.fetchval("select max(number) from headgate.migrations") == NEXT


@pytest.mark.process
async def test_gateway_uses_an_older_schema_and_reports_what_is_missing(empty_url: str) -> None:
    link = await asyncpg.connect(empty_url)
    await migrated_to(link, KNOWN[: OLDEST_USABLE - 1])
    assert "headgate ledger migrate" in (await schema_mismatch(link, KNOWN) or "")
    await migrated_to(link, KNOWN[:OLDEST_USABLE])

    state = await schema_state(link, KNOWN)
    assert (state.version, state.problem) == (OLDEST_USABLE, None)
    assert state.pending == KNOWN[OLDEST_USABLE:]
    assert "optional migrations 0003" in (state.hint or "")
    await link.close()


@pytest.mark.process
async def test_changed_file_and_missing_schema_are_detected(link: Link) -> None:
    assert await schema_mismatch(link, KNOWN) is None
    await link.execute("update headgate.schema_versions set sha256 = 'x' where number = 3")
    assert "migration 0003 was applied from a different file" in (await schema_mismatch(link, KNOWN) or "")
    await link.execute("delete from headgate.migrations where number = 2")
    assert "lacks 1 of" in (await schema_mismatch(link, KNOWN) or "")
    await link.execute("delete from headgate.migrations; delete from headgate.schema_versions")
    assert "has no Headgate schema" in (await schema_mismatch(link, KNOWN) or "")


# Partitions of the endpoint time


@pytest.mark.process
async def test_endpoint_times_from_before_partitions_are_kept_and_counted_once(empty_url: str) -> None:
    database = Database(empty_url)
    link = await asyncpg.connect(empty_url)
    await migrated_to(link, KNOWN[:2])
    now = datetime.now(UTC)
    moments = [now - timedelta(days=days) for days in (50, 31, 2, 0)]
    for at in moments:
        await link.execute(TIMES, at)
    before = await link.fetch("select * from headgate.endpoint_time order by at")
    hours = await link.fetch("select * from headgate.endpoint_hours order by hour")
    await migrated_to(link, KNOWN)

    assert await link.fetch("select * from headgate.endpoint_time order by at") == before
    assert await link.fetch("select * from headgate.endpoint_hours order by hour") == hours
    writer = await database.connect()
    await Partitions().ensure(writer, {(now + timedelta(days=7)).date()})
    await link.execute(TIMES, now + timedelta(days=7))
    assert await link.fetchval("select count(*) from only headgate.endpoint_time_default") == 0
    await drop_expired(writer, retention_days=30, now=now)
    assert await link.fetchval("select count(*) from headgate.endpoint_time") == 3
    await drop_expired(writer, retention_days=30, now=now + timedelta(days=33))
    assert await link.fetchval("select to_regclass('headgate.endpoint_time_before')") is None
    assert await link.fetchval("select count(*) from headgate.endpoint_time") == 1
    assert await link.fetchval("select sum(total_us) from headgate.endpoint_hours") == 50
    await close(writer)
    await link.close()


@pytest.mark.process
async def test_rows_in_the_default_partition_move_to_their_day(link: Link) -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    await link.execute(TIMES, at)
    assert await link.fetchval("select count(*) from headgate.endpoint_time_default") == 1
    for _ in range(2):
        await link.execute("select headgate.create_usage_partition($1)", at.date())
    await link.execute(f"{TIMES} on conflict do nothing", at)

    assert await link.fetchval("select count(*) from headgate.endpoint_time_default") == 0
    assert await link.fetchval("select count(*) from headgate.endpoint_time_20260301") == 1
    # The move must not count the row again.
    assert await link.fetchval("select sum(total_us) from headgate.endpoint_hours") == 10
