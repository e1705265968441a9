"""Databases for the tests of the ledger.

Each worker starts one PostgreSQL. Each test gets a copy of a migrated database, which is dropped afterwards: a copy
takes less time than the migrations, and a cluster with few files is removed quickly at the end. Only tests with the
mark `process` may use these fixtures.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
import pytest_asyncio

from headgate.ledger.database import Database
from testing.midnight import pass_midnight
from testing.postgres import Postgres, postgres
from tests.ledger.databases import migrated, new_database, scratch_database


@pytest.fixture(autouse=True)
def one_day() -> None:
    """Keep tests away from midnight, when budgets and partitions change."""
    pass_midnight()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that is slow because the machine stands still does not count as away, unless a test says when."""
    for limit in ("connect_s_max", "query_s_max"):
        monkeypatch.setitem(Database.__init__.__kwdefaults__, limit, 60.0)


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[Postgres]:
    with postgres(options=("fsync=off",)) as server:
        yield server


@pytest.fixture(scope="session")
def migrated_template(shared_postgres: Postgres) -> str:
    """Name of a migrated, empty database; nothing stays connected to it, so that it can be copied."""

    async def make() -> str:
        return await migrated(await new_database(shared_postgres))

    return asyncio.run(make()).rpartition("/")[2]


@pytest.fixture
def mortal_postgres(shared_postgres: Postgres) -> Iterator[Postgres]:
    """The shared server, for a test that kills it; it runs again afterwards."""
    yield shared_postgres
    if not shared_postgres.is_running:
        shared_postgres.restart()


@pytest_asyncio.fixture
async def url(shared_postgres: Postgres, migrated_template: str) -> AsyncIterator[str]:
    """Address of a migrated database that holds no rows."""
    async with scratch_database(shared_postgres, migrated_template) as address:
        yield address


@pytest_asyncio.fixture
async def empty_url(shared_postgres: Postgres) -> AsyncIterator[str]:
    """Address of a database that was never migrated."""
    async with scratch_database(shared_postgres) as address:
        yield address


@pytest_asyncio.fixture
async def link(url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """To look inside, beside what is tested."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()
