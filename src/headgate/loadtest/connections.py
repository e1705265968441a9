"""Which connection carries the next request?

The one that became free last, else a new one, up to a bound. At the bound a request waits for a connection to come
free; that is the generator's own delay and is told as such.
"""

import asyncio
import socket
import ssl
from typing import Final

from headgate.loadtest.connection import Connection
from headgate.loadtest.problem import Problem
from headgate.loadtest.target import Target

CONNECTIONS_MAX: Final = 10_000
CONNECT_SECONDS_MAX: Final = 5.0
"""As the official client has it."""


class Connections:
    def __init__(self, target: Target, *, start_ns: int, most: int = CONNECTIONS_MAX) -> None:
        self._target = target
        self._start_ns = start_ns
        # New ones are made only when none is idle, so idle and busy ones together stay under the bound as well.
        self._free = asyncio.Semaphore(most)
        # In the order in which they came free.
        self._idle: dict[Connection, None] = {}
        self._addresses: list[str] = []
        self._tls = ssl.create_default_context() if target.tls else None
        self.most = most
        self.open = 0
        self.open_most = 0
        self.waits = 0
        """How many requests found the bound reached."""

    async def resolve(self) -> None:
        """Looks the host up, once: a lookup for each connection would measure the resolver."""
        target = self._target
        try:
            found = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise Problem(f'"{target.host}" has no known address ({error.strerror}); check the URL') from None
        self._addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))

    async def turn(self) -> None:
        """Returns with the right to one connection, at once if the bound is not reached; `release` gives it back."""
        if self._free.locked():
            self.waits += 1
        await self._free.acquire()

    async def take(self) -> Connection:
        """An idle connection or a new one. Raises `OSError`, `TimeoutError` among them, where none is to be had."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_open:
                return connection
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            return await self._connect()

    async def _connect(self) -> Connection:
        failure: OSError | None = None
        for place, address in enumerate(self._addresses):
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._start_ns, self._lost),
                    address,
                    self._target.port,
                    ssl=self._tls,
                    server_hostname=self._target.host if self._tls else None,
                )
            except OSError as error:
                failure = failure or error
                continue
            if place > 0:  # Later connections begin with what answers.
                self._addresses.insert(0, self._addresses.pop(place))
            self.open += 1
            self.open_most = max(self.open_most, self.open)
            return connection
        assert failure is not None, "resolve() comes first"
        raise failure

    def release(self, connection: Connection | None) -> None:
        """Ends a turn. A connection whose answer is not whole is closed, which tells the server to stop."""
        if connection is not None and connection.is_open:
            if connection.reusable:
                self._idle[connection] = None
            else:
                connection.abort()
        self._free.release()

    def _lost(self, connection: Connection) -> None:
        self.open -= 1
        self._idle.pop(connection, None)

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
