"""How does a test get a database of its own?

One PostgreSQL for all tests of this folder, with a database for each test; a test that kills it starts its own.
"""

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
import pytest_asyncio

from testing.postgres import Postgres, postgres
from tests.ledger.databases import migrated, new_database


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[Postgres]:
    with postgres(options=("fsync=off",)) as server:
        yield server


@pytest_asyncio.fixture
async def url(shared_postgres: Postgres) -> str:
    """Of a database that has been migrated and holds nothing."""
    return await migrated(await new_database(shared_postgres))


@pytest_asyncio.fixture
async def link(url: str) -> "AsyncIterator[asyncpg.Connection[asyncpg.Record]]":
    """To look inside, beside what is tested."""
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()
