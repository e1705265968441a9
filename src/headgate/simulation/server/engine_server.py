"""HTTP server for a simulated engine, based on aiohttp.

A single connection can be reset by a fault in the middle of a response. All of them are reset when the engine stops.
"""

import asyncio
import contextlib
import socket
from typing import Final, Self

from aiohttp import web

from headgate.ports.clock import Clock
from headgate.simulation.server.app import EngineApp
from headgate.simulation.server.exchange import EngineExchange
from headgate.simulation.server.options import EngineOptions

_KEEP_ALIVE_S: Final = 5.0
"""Keep-alive timeout in seconds, the same as vLLM's."""
_BACKLOG: Final = 2048


class EngineServer:
    """A simulated engine on its own port, in the running event loop.

    `start` returns once the port is bound. Without a cold start, the engine is then also listening. `ready` waits until
    it is listening.
    """

    def __init__(self, options: EngineOptions, clock: Clock) -> None:
        self.options = options
        self._clock = clock
        self._app: EngineApp | None = None
        self._connections: _Connections | None = None
        self._socket: socket.socket | None = None
        self._starting: asyncio.Task[asyncio.Server] | None = None
        self.port = options.port

    @property
    def url(self) -> str:
        return f"http://{self.options.host}:{self.port}"

    @property
    def app(self) -> EngineApp:
        assert self._app is not None, "the engine has not been started"
        return self._app

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._socket = _bind(self.options.host, self.port)
        self.port = self._socket.getsockname()[1]
        self._app = EngineApp(self.options, self._clock)
        self._connections = _Connections(self._app)
        self._starting = asyncio.create_task(self._listen(self._connections, self._socket), name=f"engine {self.port}")
        if not self.options.cold_start_s:
            await self.ready()

    async def ready(self) -> None:
        assert self._starting is not None, "the engine has not been started"
        await asyncio.shield(self._starting)

    async def stop(self) -> None:
        """Stops immediately: closes the listener and aborts all open connections."""
        if self._starting is None:
            return
        assert self._connections is not None
        assert self._socket is not None
        self._starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await self._starting).close()
        self._socket.close()
        self._connections.abort_all()
        await self._connections.shutdown(1.0)
        self.app.stop()
        self._starting = None

    async def kill(self) -> None:
        """Simulates a crash. Every open connection is aborted."""
        await self.stop()

    async def _listen(self, connections: "_Connections", bound: socket.socket) -> asyncio.Server:
        if self.options.cold_start_s:
            await asyncio.sleep(self.options.cold_start_s)
        return await asyncio.get_running_loop().create_server(connections, sock=bound, backlog=_BACKLOG)


class _Connections(web.Server):
    """aiohttp server that notifies each request when its client has disconnected."""

    def __init__(self, app: EngineApp) -> None:
        super().__init__(self._handle, access_log=None, keepalive_timeout=_KEEP_ALIVE_S, auto_decompress=False)
        self._app = app
        self._disconnected: dict[web.RequestHandler, asyncio.Future[None]] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._disconnected[handler] = asyncio.get_running_loop().create_future()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._disconnected.pop(handler).set_result(None)

    def abort_all(self) -> None:
        for connection in self.connections:
            if isinstance(connection.transport, asyncio.Transport):
                connection.transport.abort()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        left = self._disconnected.get(request.protocol)
        if left is None:
            raise ConnectionResetError("the client disconnected")
        exchange = EngineExchange(request, left)
        await self._app.handle(exchange)
        return exchange.response


def _bind(host: str, port: int) -> socket.socket:
    """Binds the port without listening, so that connections are refused."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted connections inherit this option. Unlike uvloop, asyncio sets it only for sockets created as TCP. Without
    # it, the first token would wait for the acknowledgement of the response head.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return bound
