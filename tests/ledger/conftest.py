"""Databases for the ledger tests.

Each worker starts one PostgreSQL server. Each test gets a copy of a migrated database, which is dropped afterwards. A
copy takes less time than the migrations, and a cluster with few files is removed quickly at the end. Only tests marked
`process` may use these fixtures.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
import pytest_asyncio

from headgate.ledger.database import Database
from testing.midnight import wait_past_midnight
from testing.postgres import Postgres, postgres
from tests.ledger.databases import migrated, new_database, scratch_database


@pytest.fixture(autouse=True)
def one_day() -> None:
    """Keep tests away from midnight, when budgets and partitions change."""
    wait_past_midnight()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the default timeouts, so that the database does not count as unreachable if the machine stalls."""
    for limit in ("connect_s_max", "query_s_max"):
        monkeypatch.setitem(Database.__init__.__kwdefaults__, limit, 60.0)


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[Postgres]:
    with postgres(options=("fsync=off",)) as server:
        yield server


@pytest.fixture(scope="session")
def migrated_template(shared_postgres: Postgres) -> str:
    """Name of a migrated, empty database. It has no open connections, so that it can be copied."""

    async def make() -> str:
        return await migrated(await new_database(shared_postgres))

    return asyncio.run(make()).rpartition("/")[2]


@pytest.fixture
def mortal_postgres(shared_postgres: Postgres) -> Iterator[Postgres]:
    """The shared server, for a test that kills it. It is restarted afterwards."""
    yield shared_postgres
    if not shared_postgres.is_running:
        shared_postgres.restart()


@pytest_asyncio.fixture
async def url(shared_postgres: Postgres, migrated_template: str) -> AsyncIterator[str]:
    """URL of a migrated database without rows."""
    async with scratch_database(shared_postgres, migrated_template) as address:
        yield address


@pytest_asyncio.fixture
async def empty_url(shared_postgres: Postgres) -> AsyncIterator[str]:
    """URL of a database that has never been migrated."""
    async with scratch_database(shared_postgres) as address:
        yield address


@pytest_asyncio.fixture
async def link(url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """A separate connection for inspecting the database."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()
