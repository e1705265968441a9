"""How is a database made for a test, and what stands in it?"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg

from headgate.control.directory_sync import migrate_database
from headgate.ledger.database import Database
from headgate.ledger.directory.copy import Copy, Picture
from headgate.ledger.directory.directory import PostgresDirectory
from headgate.ports.directory import Actor, TenantTerms
from headgate.wire.keys import digest
from testing.postgres import Postgres

SECRET = b"a secret that is only for tests"
ADMIN = Actor("alice", "127.0.0.1")
ANY = TenantTerms()


async def new_database(server: Postgres, template: str = "template1") -> str:
    name = f"t{secrets.token_hex(6)}"
    await _execute(server, f"create database {name} template {template}")
    return server.url_of(name)


@asynccontextmanager
async def scratch_database(server: Postgres, template: str = "template1") -> AsyncIterator[str]:
    """A database that is dropped afterwards: hundreds of them take a minute to remove at the end."""
    url = await new_database(server, template)
    try:
        yield url
    finally:
        if server.is_running:
            await _execute(server, f"drop database if exists {url.rpartition('/')[2]} with (force)")


async def _execute(server: Postgres, statement: str) -> None:
    link = await asyncpg.connect(server.url)
    try:
        await link.execute(statement)
    finally:
        await link.close()


async def migrated(url: str) -> str:
    await migrate_database(url, lambda _: None)
    return url


async def with_key(directory: PostgresDirectory, key: str, secret: str, terms: TenantTerms = ANY) -> None:
    """A key of this name, with the levels above it."""
    organisation, project, _ = key.split("/")
    for level in (organisation, f"{organisation}/{project}"):
        if not [each for each in await directory.tenants(below=level, after="", limit=1) if each.id == level]:
            await directory.create_tenant(level, ANY, ADMIN)
    await directory.create_key(key, digest(SECRET, secret), terms, None, ADMIN)


@asynccontextmanager
async def followed(
    url: str,
    on_change: Callable[[Picture], None] = lambda _: None,
    *,
    poll_s: float = 60.0,
    answer_s_max: float = 30.0,
) -> AsyncIterator[Copy]:
    """A copy that follows; by NOTIFY alone, as long as the test does not poll."""
    copy = Copy(Database(url, connect_s_max=answer_s_max, query_s_max=answer_s_max), on_change, poll_s=poll_s)
    running = asyncio.create_task(copy.run())
    try:
        yield copy
    finally:
        running.cancel()
        await asyncio.wait([running])


async def until(true: Callable[[], object], *, seconds_max: float = 60.0) -> None:
    async with asyncio.timeout(seconds_max):
        while not true():
            await asyncio.sleep(0.01)
