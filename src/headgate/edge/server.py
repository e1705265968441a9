"""How does a listener run, and how does it stop?

Signals, draining and the order of leaving are the composition's; a listener takes connections, looks a few times a
second for those that take too long, and at the end lets go of all of them.
"""

import asyncio
import contextlib
import socket
import sys
from functools import partial

from headgate.edge.admin.health import Health, HealthThread
from headgate.edge.connections import App, Connections, OnRefused
from headgate.edge.options import EdgeLimits

_BACKLOG = 2048
_UNSENT_BYTES_MAX = 64 * 1024
_TCP_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", 25 if sys.platform == "linux" else None)
_SWEEP_EVERY_S = 0.25
_LAST_REQUESTS_S = 0.25
"""How long those are heard who connected before the port was let go."""
_STOP_S_MAX = 2.0
"""How long open exchanges, and answers that are not read yet, may hold up the end."""


class Listener:
    """One application on one socket."""

    def __init__(
        self,
        app: App,
        listening: socket.socket,
        limits: EdgeLimits,
        *,
        on_refused: OnRefused = lambda _id, _refused: None,
        health: Health | None = None,
    ) -> None:
        """With `health`, a thread accepts connections and answers health probes while the loop is busy."""
        self.connections = Connections(app, limits, on_refused)
        self._socket = listening
        self._health = health
        self._accepting: HealthThread | None = None
        self._taking: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.address: tuple[str, int] = listening.getsockname()[:2]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._health is not None:
            taken = partial(loop.call_soon_threadsafe, self._take_accepted)
            self._accepting = HealthThread(self._socket, self._health, taken)
            self._accepting.start()
            return
        self._server = await loop.create_server(self.connections, sock=self._socket, backlog=_BACKLOG)

    def _take_accepted(self) -> None:
        while self._accepting is not None and self._accepting.accepted:
            task = asyncio.get_running_loop().create_task(self._take(self._accepting.accepted.popleft()))
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    async def _take(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self.connections, accepted)
        except OSError:
            accepted.close()

    async def sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            self.connections.sweep(asyncio.get_running_loop().time())

    async def stop_taking(self) -> None:
        """Lets go of a port that others listen on too: whoever connects from here on comes to one of them.

        Who has just connected is still heard, and after a moment the connections that wait for a request are closed.
        What is under way goes on.
        """
        if self._server is not None:
            self._server.close()
        await asyncio.sleep(_LAST_REQUESTS_S)
        self.connections.close_idle()

    async def stop(self) -> None:
        if self._accepting is not None:
            self._accepting.stop()
            await asyncio.gather(*self._taking, return_exceptions=True)
        elif self._server is not None:
            await asyncio.sleep(0)  # Accept pending connections first; closing would reset them.
            self._server.close()
        else:
            self._socket.close()
            return
        connections = self.connections
        await self._hear_the_last()
        connections.close_idle()
        await self._until_over()
        for task in list(connections.tasks):
            task.cancel()
        await asyncio.gather(*connections.tasks, return_exceptions=True)
        await self._until_over()
        connections.abort()
        # What was aborted is told so in the next turn of the loop.
        await asyncio.sleep(0)

    async def _hear_the_last(self) -> None:
        """Waits for the requests of callers that have just connected: they still expect a response."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_REQUESTS_S):
                while self.connections.any_unheard:  # noqa: ASYNC110 (a moment of a process's life)
                    await asyncio.sleep(0.01)

    async def _until_over(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S_MAX):
                while len(self.connections):  # noqa: ASYNC110 (a moment of a process's life, not worth an event)
                    await asyncio.sleep(0.01)


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A listening socket, or OSError with the address in it.

    One that is `shared` lets other processes of this user listen on the same port, if they say so too; the system then
    gives each connection to one of them.
    """
    listening = reserve(host, port, shared=shared)
    try:
        # Whoever else has bound it is known only from here on.
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise _cannot_listen(host, port, error) from error
    listening.setblocking(False)  # noqa: FBT003 (the name of that argument)
    return listening


def reserve(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """A socket that has the port and takes no connections, for whoever keeps it for those who do."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio would not take what it accepts for TCP and leave Nagle's algorithm on.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if _TCP_NOTSENT_LOWAT is not None:
        # Otherwise megabytes wait in the kernel for a slow reader, and that it reads at all shows only seconds later.
        listening.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES_MAX)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise _cannot_listen(host, port, error) from error
    return listening


def _cannot_listen(host: str, port: int, error: OSError) -> OSError:
    return OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}")
