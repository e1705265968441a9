"""How does the engine listen, stop listening, and die?

uvicorn serves it, as it serves vLLM. What uvicorn does not offer is cutting a connection: a reset in the middle of an
answer, or all of them at once when the engine is killed.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Generator
from typing import Any, Final, Self, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headgate.ports.clock import Clock
from headgate.simulation.server.app import EngineApp
from headgate.simulation.server.exchange import CUT
from headgate.simulation.server.options import EngineOptions

_KEEP_ALIVE_S: Final = 5
"""As vLLM's."""
_RESET: Final = struct.pack("ii", 1, 0)
"""Linger for no time: closing then sends a reset."""


class EngineServer:
    """A simulated engine on a port of its own, in the running loop.

    `start` returns when the port is bound and, unless there is a cold start, when it listens; `ready` waits for that.
    """

    def __init__(self, options: EngineOptions, clock: Clock) -> None:
        self.options = options
        self._clock = clock
        self._app: EngineApp | None = None
        self._server: _Server | None = None
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
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
        self._server = _Server(_config(self._app))
        self._serving = asyncio.create_task(self._serve(self._server, self._socket), name=f"engine {self.port}")
        if not self.options.cold_start_s:
            await self.ready()

    async def ready(self) -> None:
        assert self._serving is not None, "the engine has not been started"
        # uvicorn tells it by a flag alone.
        while self._server is not None and not self._server.started and not self._serving.done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        if self._serving.done():
            self._serving.result()

    async def stop(self) -> None:
        """Leaves at once: what still runs is cut."""
        if self._serving is None:
            return
        assert self._server is not None
        self._cut_all()
        self._server.should_exit = True
        if not self._server.started:
            self._serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._serving
        if self._socket is not None:
            self._socket.close()
        self.app.stop()
        self._serving = None

    async def kill(self) -> None:
        """Dies: nothing listens any more, and every open connection ends in the middle of what it was doing."""
        if self._server is not None:
            for listening in self._server.servers:
                listening.close()
        await self.stop()

    async def _serve(self, server: "_Server", listening: socket.socket) -> None:
        if self.options.cold_start_s:
            await asyncio.sleep(self.options.cold_start_s)
        await server.serve(sockets=[listening])

    def _cut_all(self) -> None:
        assert self._server is not None
        for connection in list(self._server.server_state.connections):
            cast("_Connection", connection).transport.abort()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leaves signals alone: there may be several engines in a process."""
        yield


class _Connection(HttpToolsProtocol):
    """uvicorn's connection, which tells each request how to cut it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[CUT] = self.cut

    def cut(self) -> None:
        found = self.transport.get_extra_info("socket")
        if found is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()


def _config(app: EngineApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        backlog=2048,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )


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
