"""Each process's directory replica, including how it behaves during database failures."""

import time
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from headgate.ledger.database import Database
from headgate.ledger.directory.directory_replica import DirectorySnapshot
from headgate.ledger.directory.postgres_directory import PostgresDirectory
from headgate.wire.keys import digest
from testing.postgres import Postgres
from tests.ledger.databases import ADMIN, ANY, SECRET, followed, migrated, scratch_database, until, with_key

pytestmark = pytest.mark.process

Link = asyncpg.Connection


@pytest_asyncio.fixture
async def directory(url: str) -> AsyncIterator[PostgresDirectory]:
    database = Database(url)
    yield PostgresDirectory(database)
    await database.stop()


async def test_notification_updates_only_the_changed_rows(url: str, directory: PostgresDirectory) -> None:
    pictures: list[DirectorySnapshot] = []
    async with followed(url, pictures.append) as copy:
        await until(lambda: copy.fresh)
        await with_key(directory, "acme/search/ci", "hg-one")
        await until(lambda: len(copy.snapshot.keys) == 1)
        before = copy.snapshot

        await directory.create_tenant("other", ANY, ADMIN)
        await until(lambda: "other" in copy.snapshot.tenants)

    assert before.keys[digest(SECRET, "hg-one")].tenant == "acme/search/ci"
    assert "other" not in before.tenants, "the snapshot was modified in place"
    assert (pictures[0].changed_tenants, copy.snapshot.changed_tenants) == (None, ("other",)), (
        "the first snapshot must be complete and the last one incremental"
    )
    assert copy.snapshot.tenants["acme"] is before.tenants["acme"], "an unchanged row was read again"
    assert [each.version for each in pictures] == sorted({each.version for each in pictures})


async def test_polling_finds_a_change_after_a_lost_notification(
    url: str, link: Link, directory: PostgresDirectory
) -> None:
    await link.execute("drop trigger notify_changed on headgate.directory_state")
    async with followed(url, poll_s=0.2) as copy:
        await until(lambda: copy.fresh)
        await directory.create_tenant("quiet", ANY, ADMIN)
        await until(lambda: "quiet" in copy.snapshot.tenants)


async def test_rotated_keys_overlap_and_revoked_keys_are_removed(url: str, directory: PostgresDirectory) -> None:
    await with_key(directory, "acme/search/ci", "hg-old")
    await directory.rotate_key("acme/search/ci", digest(SECRET, "hg-new"), None, 3600, ADMIN)
    async with followed(url) as copy:
        await until(lambda: copy.fresh)
        old, new = (copy.snapshot.keys[digest(SECRET, each)] for each in ("hg-old", "hg-new"))
        await directory.revoke_key("acme/search/ci", ADMIN)
        await until(lambda: not copy.snapshot.keys)

    assert new.expires_at is None
    assert old.expires_at is not None
    assert 3500 < (old.expires_at - time.time_ns()) / 1e9 < 3700


async def test_all_rows_are_read_in_pages(url: str, link: Link) -> None:
    await link.execute(
        "insert into headgate.tenants (id, changed_version) select 'org' || n, 1 from generate_series(1, 2500) n;"
        "update headgate.directory_state set version = 1"
    )
    async with followed(url) as copy:
        await until(lambda: copy.fresh)

    assert len(copy.snapshot.tenants) == 2500


async def test_restored_database_replaces_all_rows(url: str, link: Link, directory: PostgresDirectory) -> None:
    await with_key(directory, "acme/search/ci", "hg-one")
    async with followed(url, poll_s=0.1) as copy:
        await until(lambda: copy.fresh)
        assert copy.snapshot.keys
        # Simulates restoring a backup that lacks these rows.
        await link.execute(
            "delete from headgate.keys; delete from headgate.tenants;"
            "update headgate.directory_state set version = 0, incarnation = gen_random_uuid()"
        )
        await until(lambda: not copy.snapshot.keys and not copy.snapshot.tenants)


async def test_unmigrated_database_is_reported_with_the_next_step(empty_url: str) -> None:
    async with followed(empty_url) as copy:
        await until(lambda: copy.mismatch)
        assert copy.mismatch is not None
        assert "headgate ledger migrate" in copy.mismatch
        assert not copy.fresh
        await migrated(empty_url)
        await until(lambda: copy.fresh)


async def test_last_snapshot_stays_in_use_while_the_database_is_down(
    mortal_postgres: Postgres,
) -> None:
    async with scratch_database(mortal_postgres) as url:
        await migrated(url)
        database = Database(url)
        directory = PostgresDirectory(database)
        await with_key(directory, "acme/search/ci", "hg-one")
        await database.stop()
        async with followed(url, poll_s=0.5, answer_s_max=1.0) as copy:
            await until(lambda: copy.fresh)
            mortal_postgres.kill()
            # A replica that is merely old does not report a problem yet.
            await until(lambda: copy.problem)
            assert not copy.fresh
            assert copy.snapshot.keys

            mortal_postgres.restart()
            await until(lambda: copy.fresh)
            await directory.create_tenant("late", ANY, ADMIN)
            await until(lambda: "late" in copy.snapshot.tenants)

            mortal_postgres.pause()
            await until(lambda: not copy.fresh)
            mortal_postgres.resume()
            await until(lambda: copy.fresh)
        await database.stop()
