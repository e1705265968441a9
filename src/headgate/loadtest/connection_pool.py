"""Connection pool for the load test.

A request uses the most recently idle connection, or a new one up to a limit. At the limit, it waits for a free
connection. This delay is caused by the generator and is reported as such.
"""

import asyncio
import socket
import ssl
from typing import Final

from headgate.loadtest.connection import LoadTestConnection
from headgate.loadtest.problem import WorkloadError
from headgate.loadtest.target import TargetUrl

CONNECTIONS_MAX: Final = 10_000
CONNECT_S_MAX: Final = 5.0
"""Connect timeout in seconds, the same as the OpenAI SDK's."""


class ConnectionPool:
    def __init__(self, target: TargetUrl, *, start_ns: int, most: int = CONNECTIONS_MAX) -> None:
        self._target = target
        self._start_ns = start_ns
        # New connections are opened only if none are idle, so the limit applies to idle and busy ones together.
        self._free = asyncio.Semaphore(most)
        # Idle connections, with the most recently idle one at the end.
        self._idle: dict[LoadTestConnection, None] = {}
        self._addresses: list[str] = []
        self._tls = ssl.create_default_context() if target.tls else None
        self.connections_max = most
        self.open = 0
        self.open_peak = 0
        self.waits = 0
        """Number of requests that had to wait for a free connection."""

    async def resolve(self) -> None:
        """Resolves the host name once. With a lookup for each connection, the test would measure the resolver."""
        target = self._target
        try:
            found = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise WorkloadError(f'cannot resolve host "{target.host}" ({error.strerror}); check the URL') from None
        self._addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))

    async def acquire(self) -> None:
        """Waits until a connection may be used. `release` must be called afterwards."""
        if self._free.locked():
            self.waits += 1
        await self._free.acquire()

    async def connection(self) -> LoadTestConnection:
        """Returns an idle or new connection. On failure, raises `OSError` or its subclass `TimeoutError`."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_open:
                return connection
        async with asyncio.timeout(CONNECT_S_MAX):
            return await self._connect()

    async def _connect(self) -> LoadTestConnection:
        failure: OSError | None = None
        for place, address in enumerate(self._addresses):
            try:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: LoadTestConnection(self._start_ns, self._lost),
                    address,
                    self._target.port,
                    ssl=self._tls,
                    server_hostname=self._target.host if self._tls else None,
                )
            except OSError as error:
                failure = failure or error
                continue
            if place > 0:  # Next time, start with the address that worked.
                self._addresses.insert(0, self._addresses.pop(place))
            self.open += 1
            self.open_peak = max(self.open_peak, self.open)
            return connection
        assert failure is not None, "resolve() was not called"
        raise failure

    def release(self, connection: LoadTestConnection | None) -> None:
        """Returns a connection to the pool.

        It is closed if its response is incomplete, so that the server stops generating.
        """
        if connection is not None and connection.is_open:
            if connection.reusable:
                self._idle[connection] = None
            else:
                connection.abort()
        self._free.release()

    def _lost(self, connection: LoadTestConnection) -> None:
        self.open -= 1
        self._idle.pop(connection, None)

    def close(self) -> None:
        for connection in self._idle:
            connection.abort()
        self._idle.clear()
