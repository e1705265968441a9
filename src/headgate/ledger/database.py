"""How is the database reached, and what is said when it is not?

Every connection, query and wait has a limit, so that a database that hangs holds nobody up. The address holds a
password: no message repeats any part of it, and what the database itself says of an error is cut to its first line
with the password taken out.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, cast
from urllib.parse import unquote, urlsplit

import asyncpg  # pyright: ignore[reportMissingTypeStubs]

from headgate.ledger.link import Link

CONNECT_S_MAX: Final = 3.0
QUERY_S_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 4
"""Of one process, for what operators ask; each reader beside them has one of its own."""
TELL_CHARS_MAX: Final = 200

FAILURES: Final = (
    *(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError),
    # A connection that breaks in the middle of something may say that it is beside itself.
    asyncpg.InternalClientError,
)
"""What a database that is away, restarting or of another mind raises."""
UNFIT: Final = (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError)
"""What one raises that is well, of values that it cannot hold (classes 22 and 23 of SQLSTATE)."""


class Database:
    """One database, by its address."""

    def __init__(self, url: str, *, connect_s_max: float = CONNECT_S_MAX, query_s_max: float = QUERY_S_MAX) -> None:
        self._url = url
        self._connect_s_max = connect_s_max
        self._query_s_max = query_s_max
        self._slots = asyncio.Semaphore(CONNECTIONS_MAX)
        self._idle: list[Link] = []
        self._stopped = False

    async def connect(self) -> Link:
        """A connection of its own, which the caller closes (`close`)."""
        async with asyncio.timeout(self._connect_s_max):
            link: object = await asyncpg.connect(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
                self._url,
                timeout=self._connect_s_max,  # pyright: ignore[reportArgumentType]  Any number will do.
                command_timeout=self._query_s_max,
                server_settings={
                    "application_name": "headgate",
                    # Days are compared as text, whatever the database would write them like by itself.
                    "DateStyle": "ISO",
                    "TimeZone": "UTC",
                    "statement_timeout": str(int(self._query_s_max * 1e3)),
                },
            )
        return cast("Link", link)

    @asynccontextmanager
    async def borrowed(self) -> AsyncGenerator[Link]:
        """One of few. It goes back whole, or not at all."""
        async with asyncio.timeout(self._connect_s_max):
            await self._slots.acquire()
        try:
            link = await self._at_hand()
            try:
                yield link
            except BaseException:
                # Whatever it was, a new connection has no trace of it.
                await close(link)
                raise
            if self._stopped:
                await close(link)
            else:
                self._idle.append(link)
        finally:
            self._slots.release()

    async def _at_hand(self) -> Link:
        while self._idle:
            link = self._idle.pop()
            if not link.is_closed():
                return link
        return await self.connect()

    async def stop(self) -> None:
        self._stopped = True
        while self._idle:
            await close(self._idle.pop())

    def problem(self, error: BaseException) -> str:
        """What went wrong, in words that name no secret."""
        return problem(error, self._url)


async def close(link: Link) -> None:
    """Politely within a second, else at once."""
    try:
        await link.close(timeout=1.0)
    except FAILURES:
        link.terminate()


def problem(error: BaseException, url: str) -> str:
    match error:
        case TimeoutError():
            said = "it did not answer in time"
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            said = "it refuses the user or the password of database.url; correct them"
        case asyncpg.InvalidCatalogNameError():
            said = "there is no database of this name; create it, or correct database.url"
        case OSError() if error.strerror:
            said = f"it cannot be reached ({error.strerror})"
        case _:
            lines = str(error).splitlines() or [type(error).__name__]
            said = lines[0]
    for secret in _secrets(url):
        said = said.replace(secret, "***")
    return said[:TELL_CHARS_MAX]


def _secrets(url: str) -> list[str]:
    try:
        written = urlsplit(url).password or ""
    except ValueError:
        return [url]
    return [each for each in (url, written, unquote(written)) if each]
