"""Database connections, and messages about their failures.

Every connection attempt, query and wait has a timeout, so that a hanging database does not block anything. The URL
contains a password, so messages never contain any part of the URL. Error messages from the database are reduced to
their first line, without the password.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, cast
from urllib.parse import unquote, urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from headgate.ledger.connection import DatabaseConnection

CONNECT_S_MAX: Final = 3.0
QUERY_S_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 4
"""Maximum number of pooled connections per process, used for operator requests. Writers and replicas have their own
connections.
"""
ERROR_CHARS_MAX: Final = 200

DATABASE_ERRORS: Final = (
    *(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError),
    # asyncpg may raise this if a connection breaks during an operation.
    asyncpg.InternalClientError,
)
"""Exceptions raised if the database is unreachable, restarting or misconfigured."""
DATA_ERRORS: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
"""Exceptions raised when a working database rejects invalid values (SQLSTATE classes 22 and 23)."""


class Database:
    """A database and a small pool of connections to it."""

    def __init__(self, url: str, *, connect_s_max: float = CONNECT_S_MAX, query_s_max: float = QUERY_S_MAX) -> None:
        self._url = url
        self._connect_s_max = connect_s_max
        self._query_s_max = query_s_max
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._idle: list[DatabaseConnection] = []
        self._stopped = False

    async def connect(self) -> DatabaseConnection:
        """A new connection, outside the pool. The caller must `close` it."""
        async with asyncio.timeout(self._connect_s_max):
            link: object = await asyncpg.connect(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                self._url,
                timeout=self._connect_s_max,  # pyright: ignore[reportArgumentType]  A float is valid.
                command_timeout=self._query_s_max,
                server_settings={
                    "application_name": "headgate",
                    # Days are compared as text, so their format must not depend on the database's settings.
                    "DateStyle": "ISO",
                    "TimeZone": "UTC",
                    "statement_timeout": str(int(self._query_s_max * 1e3)),
                },
            )
        return cast("DatabaseConnection", link)

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[DatabaseConnection]:
        """A connection from the pool. After an error, it is closed instead of being returned to the pool."""
        async with asyncio.timeout(self._connect_s_max):
            await self._slots.acquire()
        try:
            link = await self._idle_or_new()
            try:
                yield link
            except BaseException:
                # The connection may be in an unknown state, so the next caller gets a new connection.
                await close(link)
                raise
            if self._stopped:
                await close(link)
            else:
                self._idle.append(link)
        finally:
            self._slots.release()

    async def _idle_or_new(self) -> DatabaseConnection:
        while self._idle:
            link = self._idle.pop()
            if not link.is_closed():
                return link
        return await self.connect()

    async def stop(self) -> None:
        self._stopped = True
        while self._idle:
            await close(self._idle.pop())

    def describe(self, error: BaseException) -> str:
        """Error description without secrets."""
        return describe_error(error, self._url)


async def close(link: DatabaseConnection) -> None:
    """Closes the connection gracefully within one second, or terminates it if that fails."""
    try:
        await link.close(timeout=1.0)
    except DATABASE_ERRORS:
        link.terminate()


def describe_error(error: BaseException, url: str) -> str:
    match error:
        case TimeoutError():
            said = "no response in time"
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            said = "user or password rejected; correct database.url"
        case asyncpg.InvalidCatalogNameError():
            said = "the database does not exist; create it or correct database.url"
        case OSError() if error.strerror:
            said = f"connection failed ({error.strerror})"
        case _:
            lines = str(error).splitlines() or [type(error).__name__]
            said = lines[0]
    for secret in _secrets(url):
        said = said.replace(secret, "***")
    return said[:ERROR_CHARS_MAX]


def _secrets(url: str) -> list[str]:
    try:
        written = urlsplit(url).password or ""
    except ValueError:
        return [url]
    return [each for each in (url, written, unquote(written)) if each]
