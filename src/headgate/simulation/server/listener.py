"""How does the engine listen, stop listening, and die?

aiohttp serves it. A request can be cut: by a reset in the middle of an answer, or all of them at once if the engine is
killed.
"""

import asyncio
import contextlib
import socket
from typing import Final, Self

from aiohttp import web

from headgate.ports.clock import Clock
from headgate.simulation.server.app import EngineApp
from headgate.simulation.server.exchange import Exchange
from headgate.simulation.server.options import EngineOptions

_KEEP_ALIVE_S: Final = 5.0
"""As vLLM's."""
_BACKLOG: Final = 2048


class EngineServer:
    """A simulated engine on a port of its own, in the running loop.

    `start` returns when the port is bound and, unless there is a cold start, when it listens; `ready` waits for that.
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
        """Leaves at once: nothing listens any more, and what still runs is cut."""
        if self._starting is None:
            return
        assert self._connections is not None
        assert self._socket is not None
        self._starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await self._starting).close()
        self._socket.close()
        self._connections.cut_all()
        await self._connections.shutdown(1.0)
        self.app.stop()
        self._starting = None

    async def kill(self) -> None:
        """Dies: nothing listens any more, and every open connection ends in the middle of what it was doing."""
        await self.stop()

    async def _listen(self, connections: "_Connections", bound: socket.socket) -> asyncio.Server:
        if self.options.cold_start_s:
            await asyncio.sleep(self.options.cold_start_s)
        return await asyncio.get_running_loop().create_server(connections, sock=bound, backlog=_BACKLOG)


class _Connections(web.Server):
    """aiohttp's connections, which tell each request when its client has left."""

    def __init__(self, app: EngineApp) -> None:
        super().__init__(self._handle, access_log=None, keepalive_timeout=_KEEP_ALIVE_S, auto_decompress=False)
        self._app = app
        self._left: dict[web.RequestHandler, asyncio.Future[None]] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._left[handler] = asyncio.get_running_loop().create_future()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._left.pop(handler).set_result(None)

    def cut_all(self) -> None:
        for connection in self.connections:
            if isinstance(connection.transport, asyncio.Transport):
                connection.transport.abort()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        left = self._left.get(request.protocol)
        if left is None:
            raise ConnectionResetError("the client has left")
        exchange = Exchange(request, left)
        await self._app.answer(exchange)
        return exchange.response


def _bind(host: str, port: int) -> socket.socket:
    """A port that is taken, but on which nobody listens: who connects is refused."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Inherited by what is accepted. uvloop does it by itself; asyncio only for a socket that is named as TCP, and a
    # first token would otherwise wait for the acknowledgement of its head.
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return bound
