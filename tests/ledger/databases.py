"""Creates databases, directory contents and replicas for tests."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg

from headgate.control.directory_sync import migrate_database
from headgate.ledger.database import Database
from headgate.ledger.directory.directory_replica import DirectoryReplica, DirectorySnapshot
from headgate.ledger.directory.postgres_directory import PostgresDirectory
from headgate.ports.directory import Actor, TenantSettings
from headgate.wire.keys import digest
from testing.postgres import Postgres

SECRET = b"a secret that is only for tests"
ADMIN = Actor("alice", "127.0.0.1")
ANY = TenantSettings()


async def new_database(server: Postgres, template: str = "template1") -> str:
    name = f"t{secrets.token_hex(6)}"
    await _execute(server, f"create database {name} template {template}")
    return server.url_of(name)


@asynccontextmanager
async def scratch_database(server: Postgres, template: str = "template1") -> AsyncIterator[str]:
    """A database that is dropped afterwards. Removing hundreds of databases at the end would take a minute."""
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


async def with_key(directory: PostgresDirectory, key: str, secret: str, terms: TenantSettings = ANY) -> None:
    """Create a key and the tenants above it."""
    organisation, project, _ = key.split("/")
    for level in (organisation, f"{organisation}/{project}"):
        if not [each for each in await directory.tenants(below=level, after="", limit=1) if each.id == level]:
            await directory.create_tenant(level, ANY, ADMIN)
    await directory.create_key(key, digest(SECRET, secret), terms, None, ADMIN)


@asynccontextmanager
async def followed(
    url: str,
    on_change: Callable[[DirectorySnapshot], None] = lambda _: None,
    *,
    poll_s: float = 60.0,
    answer_s_max: float = 30.0,
) -> AsyncIterator[DirectoryReplica]:
    """A replica that follows the database. With the default `poll_s`, it is updated only through NOTIFY."""
    copy = DirectoryReplica(
        Database(url, connect_s_max=answer_s_max, query_s_max=answer_s_max), on_change, poll_s=poll_s
    )
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
