"""Does every process know what the directory holds, whatever happens to the database?"""

import time
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio

from headgate.ledger.database import Database
from headgate.ledger.directory.copy import Picture
from headgate.ledger.directory.directory import PostgresDirectory
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


async def test_a_change_is_known_by_notification_and_only_it_is_read(url: str, directory: PostgresDirectory) -> None:
    pictures: list[Picture] = []
    async with followed(url, pictures.append) as copy:
        await until(lambda: copy.fresh)
        await with_key(directory, "acme/search/ci", "hg-one")
        await until(lambda: len(copy.picture.keys) == 1)
        before = copy.picture

        await directory.create_tenant("other", ANY, ADMIN)
        await until(lambda: "other" in copy.picture.tenants)

    assert before.keys[digest(SECRET, "hg-one")].tenant == "acme/search/ci"
    assert "other" not in before.tenants, "a picture is replaced, never changed"
    assert (pictures[0].changed, copy.picture.changed) == (None, ("other",)), "all, and then what differs"
    assert copy.picture.tenants["acme"] is before.tenants["acme"], "what did not change was read anew"
    assert [each.version for each in pictures] == sorted({each.version for each in pictures})


async def test_a_missed_notification_is_made_good_by_asking(url: str, link: Link, directory: PostgresDirectory) -> None:
    await link.execute("drop trigger tell on headgate.directory_state")
    async with followed(url, poll_s=0.2) as copy:
        await until(lambda: copy.fresh)
        await directory.create_tenant("quiet", ANY, ADMIN)
        await until(lambda: "quiet" in copy.picture.tenants)


async def test_rotated_keys_overlap_and_revoked_ones_are_gone(url: str, directory: PostgresDirectory) -> None:
    await with_key(directory, "acme/search/ci", "hg-old")
    await directory.rotate_key("acme/search/ci", digest(SECRET, "hg-new"), None, 3600, ADMIN)
    async with followed(url) as copy:
        await until(lambda: copy.fresh)
        old, new = (copy.picture.keys[digest(SECRET, each)] for each in ("hg-old", "hg-new"))
        await directory.revoke_key("acme/search/ci", ADMIN)
        await until(lambda: not copy.picture.keys)

    assert new.expires_at is None
    assert old.expires_at is not None
    assert 3500 < (old.expires_at - time.time_ns()) / 1e9 < 3700


async def test_many_rows_come_in_pages_and_all_of_them(url: str, link: Link) -> None:
    await link.execute(
        "insert into headgate.tenants (id, changed) select 'org' || n, 1 from generate_series(1, 2500) n;"
        "update headgate.directory_state set version = 1"
    )
    async with followed(url) as copy:
        await until(lambda: copy.fresh)

    assert len(copy.picture.tenants) == 2500


async def test_another_database_under_the_same_address_replaces_everything(
    url: str, link: Link, directory: PostgresDirectory
) -> None:
    await with_key(directory, "acme/search/ci", "hg-one")
    async with followed(url, poll_s=0.1) as copy:
        await until(lambda: copy.fresh)
        assert copy.picture.keys
        # As if it had been restored from a time before all of it.
        await link.execute(
            "delete from headgate.keys; delete from headgate.tenants;"
            "update headgate.directory_state set version = 0, incarnation = gen_random_uuid()"
        )
        await until(lambda: not copy.picture.keys and not copy.picture.tenants)


async def test_a_database_that_was_not_migrated_says_the_next_step(empty_url: str) -> None:
    async with followed(empty_url) as copy:
        await until(lambda: copy.mismatch)
        assert copy.mismatch is not None
        assert "headgate ledger migrate" in copy.mismatch
        assert not copy.fresh
        await migrated(empty_url)
        await until(lambda: copy.fresh)


async def test_what_was_known_stays_known_while_the_database_is_killed_and_comes_back(
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
            # A copy that is only old has no problem yet.
            await until(lambda: copy.problem)
            assert not copy.fresh
            assert copy.picture.keys

            mortal_postgres.restart()
            await until(lambda: copy.fresh)
            await directory.create_tenant("late", ANY, ADMIN)
            await until(lambda: "late" in copy.picture.tenants)

            mortal_postgres.pause()
            await until(lambda: not copy.fresh)
            mortal_postgres.resume()
            await until(lambda: copy.fresh)
        await database.stop()
