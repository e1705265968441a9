"""How is a connection to the store made, and to which of several machines?

Each step has a time limit, and none is begun a second time while the first still goes on: a lookup of a name runs in a
thread that nobody can stop. Where sentinels are named they are asked anew each time, all at once, and whom most of them
name is taken.

Why this is not left to redis-py: it asks sentinels one after the other and believes the first, so a paused one delays
every reconnect and an isolated one names a master that was replaced; its URLs know no sentinels and no `ca`; and its
errors wrap what failed, the name, TLS or the connection, in one kind, while `problem` tells them apart for operators.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import hiredis
from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType]  (its addresses are bare tuples)

from headgate.hosts.cell.redis.place import Address, Place
from headgate.hosts.cell.redis.problem import Slow, Unusable
from headgate.hosts.cell.redis.wire import Command, Wire

CONNECT_S_MAX: Final = 0.5
SENTINEL_S_MAX: Final = 0.2
EYES_S: Final = 0.1
"""How long one address of a name may stay silent before the next is tried beside it."""
SILENCE_S_MAX: Final = 1.0
"""A new connection is given up after so much silence. One that was silent and answers at last is not: where a store was
paused that is the earliest sign that it goes on."""
REPLACEABLE_S_MAX: Final = 0.3
"""The same where sentinels may name another meanwhile."""
PROMPT_S_MAX: Final = 0.1
"""A store that needs longer for a PING is left alone."""
_AGAIN_S: Final = 0.05
_TRIES: Final = 5

LookUp = Callable[..., Coroutine[Any, Any, list[Any]]]


class Connector:
    def __init__(self, place: Place, *, look_up: LookUp | None = None) -> None:
        """`look_up` finds the addresses of a host; the event loop does where it is not given."""
        self.place = place
        self._look_up = look_up
        self._silence_s = SILENCE_S_MAX if place.master is None else REPLACEABLE_S_MAX
        self._tls: ssl.SSLContext | None = None
        self._lookups: dict[str, asyncio.Future[list[Any]]] = {}

    async def address(self) -> Address:
        """Of the store itself, at this moment."""
        place = self.place
        if place.master is None:
            return place.addresses[0]
        asked = [asyncio.ensure_future(self._ask(sentinel)) for sentinel in place.addresses]
        try:
            return await self._named(asked)
        finally:
            for each in asked:
                each.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def connected(self, address: Address, on_lost: Callable[[Exception], None]) -> Wire:
        """Let in, and at the right database."""
        wire = await self._wire(address, on_lost)
        return await _or_close(wire, self._greet(wire, ()))

    async def prompt(self, address: Address, on_lost: Callable[[Exception], None], checks: Sequence[Command]) -> Wire:
        """As `connected`, when the store refuses none of these and is quick again."""
        wire = await self._wire(address, on_lost)
        return await _or_close(wire, self._until_prompt(wire, checks))

    async def _until_prompt(self, wire: Wire, checks: Sequence[Command]) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._greet(wire, checks)
        for _ in range(_TRIES):
            if loop.time() - began <= PROMPT_S_MAX:
                return
            await asyncio.sleep(_AGAIN_S)
            began = loop.time()
            await wire.answers([("PING",)], self._silence_s)
        raise Slow

    async def _greet(self, wire: Wire, more: Sequence[Command]) -> None:
        place = self.place
        login = () if place.login is None else (place.login,)
        database = (("SELECT", place.database),) if place.database else ()
        await wire.answers([*login, *database, *more, ("PING",)], self._silence_s)

    # Whom the sentinels name

    async def _named(self, asked: list[asyncio.Task[Address | None]]) -> Address:
        """As soon as most agree; else, when all have answered or are late, whom the most name."""
        named: Counter[Address] = Counter()
        causes: list[Exception] = []
        unknown = 0
        for answer in asyncio.as_completed(asked):
            try:
                address = await answer
            except (OSError, TimeoutError, hiredis.HiredisError, Unusable) as cause:
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
            raise Unusable(f"is not known to its sentinels as {self.place.master!r}; correct that name in cell.store")
        told = next((each for each in causes if isinstance(each, hiredis.ReplyError | ssl.SSLError)), None)
        if told is not None:
            raise told
        raise Unusable("is not known, since no sentinel answers; see to them, or correct their addresses in cell.store")

    async def _ask(self, sentinel: Address) -> Address | None:
        question = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.place.master or "")
        async with asyncio.timeout(SENTINEL_S_MAX):
            wire = await self._wire(sentinel, _ignore)
            try:
                [address] = await self._answer(wire, question)
            finally:
                wire.close()
        try:
            return None if address is None else (address[0].decode(), int(address[1]))
        except (AttributeError, LookupError, TypeError, ValueError) as foreign:
            raise Unusable("is not known: a sentinel returned no valid address; check the sentinels") from foreign

    async def _answer(self, wire: Wire, question: Command) -> list[Any]:
        try:
            return await wire.answers([question], SENTINEL_S_MAX)
        except hiredis.ReplyError as refused:
            if self.place.login is None or not str(refused).startswith("NOAUTH"):
                raise
        return (await wire.answers([self.place.login, question], SENTINEL_S_MAX))[1:]

    # The connection itself

    async def _wire(self, address: Address, on_lost: Callable[[Exception], None]) -> Wire:
        host, port = address
        loop = asyncio.get_running_loop()
        tls = self._context() if self.place.tls else None
        async with asyncio.timeout(CONNECT_S_MAX):
            found = [(*kind, "", (at[0], port, *at[2:])) for *kind, _, at in await self._lookup(host)]
            raw = await start_connection(found, happy_eyeballs_delay=EYES_S, loop=loop)
            _, wire = await loop.create_connection(
                lambda: Wire(on_lost), sock=raw, ssl=tls, server_hostname=host if tls else None
            )
        return wire

    async def _lookup(self, host: str) -> list[Any]:
        """One at a time for each name, shared by all who ask meanwhile."""
        lookup = self._lookups.get(host)
        if lookup is None:
            look_up = self._look_up or asyncio.get_running_loop().getaddrinfo
            lookup = asyncio.ensure_future(look_up(host, None, type=socket.SOCK_STREAM))
            self._lookups[host] = lookup
            lookup.add_done_callback(lambda done: _forget(self._lookups, host, done))
        try:
            return await asyncio.shield(lookup)
        except UnicodeError as unwritable:
            raise Unusable("has a name that no host can have; correct the host in cell.store") from unwritable

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            try:
                self._tls = ssl.create_default_context(cafile=self.place.ca)
            except (OSError, ssl.SSLError) as unread:
                wrong = f"cannot be trusted: the authority in ?ca={self.place.ca} cannot be read ({unread})"
                raise Unusable(f"{wrong}; correct the file, or its name in cell.store") from unread
        return self._tls


async def _or_close(wire: Wire, steps: Coroutine[Any, Any, None]) -> Wire:
    try:
        await steps
    except BaseException:
        wire.close()
        raise
    return wire


def _forget(lookups: dict[str, asyncio.Future[list[Any]]], host: str, done: asyncio.Future[list[Any]]) -> None:
    lookups.pop(host, None)
    if not done.cancelled():
        # Whoever asked may have left; that the name was not found is then nobody's news.
        done.exception()


def _ignore(cause: Exception) -> None:
    """Who waits for an answer is told."""
