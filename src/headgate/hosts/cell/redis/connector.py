"""Opens connections to the store, directly or through sentinels.

Each step has a timeout. A step is not started again while it is still running, because a name lookup runs in a thread
that cannot be stopped. If sentinels are configured, all of them are queried in parallel for each connection, and the
address that most of them return is used.

This module does not use redis-py for three reasons:

- redis-py queries sentinels one after another and uses the first reply. A paused sentinel delays every reconnect, and
  an isolated one returns a master that has been replaced.
- Its URLs support neither sentinels nor `ca`.
- Its errors do not distinguish name resolution, TLS and connection failures, which `store_errors` reports separately.
"""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import hiredis
from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType]  (its addresses are bare tuples)

from headgate.hosts.cell.redis.connection import RedisCommand, RedisConnection
from headgate.hosts.cell.redis.location import Address, StoreLocation
from headgate.hosts.cell.redis.store_errors import StoreTooSlow, StoreUnusable
from headgate.ports.tls import InvalidTlsFile, client_context

log = logging.getLogger("headgate")

CONNECT_S_MAX: Final = 0.5
SENTINEL_S_MAX: Final = 0.2
HAPPY_EYEBALLS_S: Final = 0.1
"""Delay after which the next address of a host name is tried in parallel."""
SILENCE_S_MAX: Final = 1.0
"""Time without a reply after which a new connection is closed.

A connection that replies late is kept, because that is the first sign that a paused store has resumed.
"""
SENTINEL_SILENCE_S_MAX: Final = 0.3
"""Value used instead of `SILENCE_S_MAX` with sentinels, which may switch to another master in the meantime."""
PING_S_MAX: Final = 0.1
"""Maximum PING round trip for a store to count as fast enough to use."""
_PING_RETRY_S: Final = 0.05
_PING_TRIES: Final = 5

ResolveHost = Callable[..., Coroutine[Any, Any, list[Any]]]


class Connector:
    def __init__(self, place: StoreLocation, *, resolve: ResolveHost | None = None) -> None:
        """`resolve` resolves host names (default: the event loop)."""
        self.location = place
        self._resolve = resolve
        self._silence_s = SILENCE_S_MAX if place.master is None else SENTINEL_SILENCE_S_MAX
        self._tls: ssl.SSLContext | None = None
        self._tls_stamps: tuple[tuple[int, ...] | None, ...] = ()
        """Device, inode, size and modification time of each file in use."""
        self._tls_problem: str | None = None
        """Why the current files cannot be used. It is logged once."""
        self._lookups: dict[str, asyncio.Future[list[Any]]] = {}

    async def address(self) -> Address:
        """Returns the current address of the store."""
        place = self.location
        if place.master is None:
            return place.addresses[0]
        await self._refresh_tls()
        asked = [asyncio.ensure_future(self._ask_sentinel(sentinel)) for sentinel in place.addresses]
        try:
            return await self._majority_address(asked)
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def connect(self, address: Address, on_lost: Callable[[Exception], None]) -> RedisConnection:
        """Returns an authenticated connection to the configured database."""
        await self._refresh_tls()
        wire = await self._open_connection(address, on_lost)
        return await _close_on_error(wire, self._authenticate(wire, ()))

    async def connect_responsive(
        self, address: Address, on_lost: Callable[[Exception], None], checks: Sequence[RedisCommand]
    ) -> RedisConnection:
        """Returns a connection like `connect`, but only if the store passes all checks and responds quickly."""
        await self._refresh_tls()
        wire = await self._open_connection(address, on_lost)
        return await _close_on_error(wire, self._wait_responsive(wire, checks))

    async def _wait_responsive(self, wire: RedisConnection, checks: Sequence[RedisCommand]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._authenticate(wire, checks)
        for _ in range(_PING_TRIES):
            if loop.time() - began <= PING_S_MAX:
                return
            await asyncio.sleep(_PING_RETRY_S)
            began = loop.time()
            await wire.request([("PING",)], self._silence_s)
        raise StoreTooSlow

    async def _authenticate(self, wire: RedisConnection, more: Sequence[RedisCommand]) -> None:
        place = self.location
        login = () if place.login is None else (place.login,)
        database = (("SELECT", place.database),) if place.database else ()
        await wire.request([*login, *database, *more, ("PING",)], self._silence_s)

    # Sentinels

    async def _majority_address(self, asked: list[asyncio.Task[Address | None]]) -> Address:
        """Returns the address given by a majority of sentinels.

        Without a majority, returns the most frequent address when all have replied or timed out.
        """
        named: Counter[Address] = Counter()
        causes: list[Exception] = []
        unknown = 0
        for answer in asyncio.as_completed(asked):
            try:
                address = await answer
            except (OSError, TimeoutError, hiredis.HiredisError, StoreUnusable) as cause:
                causes.append(cause)
                continue
            if address is None:
                unknown += 1
                continue
            named[address] += 1
            if named[address] * 2 > len(asked):
                return address
        if named:
            return named.most_common(1)[0][0]
        if unknown:
            raise StoreUnusable(
                f"is unknown to its sentinels as {self.location.master!r}; correct the name in cell.store"
            )
        told = next((each for each in causes if isinstance(each, hiredis.ReplyError | ssl.SSLError)), None)
        if told is not None:
            raise told
        raise StoreUnusable(
            "is unknown because no sentinel is responding; check the sentinels or their addresses in cell.store"
        )

    async def _ask_sentinel(self, sentinel: Address) -> Address | None:
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.location.master or "")
        async with asyncio.timeout(SENTINEL_S_MAX):
            wire = await self._open_connection(sentinel, _ignore)
            try:
                [address] = await self._query_sentinel(wire, question)
            finally:
                wire.close()
        try:
            return None if address is None else (address[0].decode(), int(address[1]))
        except (AttributeError, LookupError, TypeError, ValueError) as foreign:
            raise StoreUnusable(
                "is unknown because a sentinel returned an invalid address; check the sentinels"
            ) from foreign

    async def _query_sentinel(self, wire: RedisConnection, question: RedisCommand) -> list[Any]:
        try:
            return await wire.request([question], SENTINEL_S_MAX)
        except hiredis.ReplyError as refused:
            if self.location.login is None or not str(refused).startswith("NOAUTH"):
                raise
        return (await wire.request([self.location.login, question], SENTINEL_S_MAX))[1:]

    # Connection

    async def _open_connection(self, address: Address, on_lost: Callable[[Exception], None]) -> RedisConnection:
        host, port = address
        loop = asyncio.get_running_loop()
        tls = self._tls
        async with asyncio.timeout(CONNECT_S_MAX):
            found = [(*kind, "", (at[0], port, *at[2:])) for *kind, _, at in await self._lookup(host)]
            raw = await start_connection(found, happy_eyeballs_delay=HAPPY_EYEBALLS_S, loop=loop)
            _, wire = await loop.create_connection(
                lambda: RedisConnection(on_lost), sock=raw, ssl=tls, server_hostname=host if tls else None
            )
        return wire

    async def _lookup(self, host: str) -> list[Any]:
        """Resolves a host name. Concurrent lookups of the same name are shared."""
        lookup = self._lookups.get(host)
        if lookup is None:
            look_up = self._resolve or asyncio.get_running_loop().getaddrinfo
            lookup = asyncio.ensure_future(look_up(host, None, type=socket.SOCK_STREAM))
            self._lookups[host] = lookup
            lookup.add_done_callback(lambda done: _remove_lookup(self._lookups, host, done))
        try:
            return await asyncio.shield(lookup)
        except UnicodeError as unwritable:
            raise StoreUnusable("has an invalid host name; correct the host in cell.store") from unwritable

    async def _refresh_tls(self) -> None:
        """Reads the TLS files if they have changed. Raises `StoreUnusable` if there have never been usable ones."""
        if self.location.tls:
            # Reading the system's authorities takes longer than the time allowed for a connection.
            await asyncio.to_thread(self._read_tls)

    def _read_tls(self) -> None:
        """While the files cannot be used, for example because the new key has not been written yet, the previous ones
        stay in use.
        """
        files = self.location.tls_files
        stamps = tuple(_stamp(each) for each in files.files)
        if self._tls is not None and stamps == self._tls_stamps:
            return
        try:
            self._tls = client_context(files)
        except InvalidTlsFile as unread:
            if self._tls is None:
                wrong = f"cannot be reached, because {unread}; correct the file or its path in cell.store"
                raise StoreUnusable(wrong) from unread
            if str(unread) != self._tls_problem:
                log.warning("TLS for the cell's store: %s; the previous files stay in use", unread)
            self._tls_problem = str(unread)
        else:
            self._tls_stamps, self._tls_problem = stamps, None


def _stamp(file: str) -> tuple[int, ...] | None:
    try:
        found = Path(file).stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


async def _close_on_error(wire: RedisConnection, steps: Coroutine[Any, Any, None]) -> RedisConnection:
    try:
        await steps
    except BaseException:
        wire.close()
        raise
    return wire


def _remove_lookup(lookups: dict[str, asyncio.Future[list[Any]]], host: str, done: asyncio.Future[list[Any]]) -> None:
    lookups.pop(host, None)
    if not done.cancelled():
        # The caller may have been cancelled. Retrieving the exception avoids a warning.
        done.exception()


def _ignore(cause: Exception) -> None:
    """Ignores the error, because the waiting caller receives it."""
