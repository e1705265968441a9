"""Listener: accepts connections, closes connections that time out, and closes all connections when it stops.

Signal handling, draining and the shutdown sequence are in `compose`.
"""

import asyncio
import contextlib
import socket
import ssl
import sys
from functools import partial

from headgate.edge.admin.health import HealthCheck, HealthThread
from headgate.edge.connections import App, Connections, OnRejected
from headgate.edge.options import EdgeLimits
from headgate.edge.tls_handshake import TlsHandshake

_BACKLOG = 2048
_ACCEPTS_PER_TURN = 64
_ACCEPT_RETRY_S = 0.05
_UNSENT_BYTES_MAX = 64 * 1024
_TCP_NOTSENT_LOWAT: int | None = getattr(socket, "TCP_NOTSENT_LOWAT", 25 if sys.platform == "linux" else None)
_SWEEP_EVERY_S = 0.25
_FIRST_REQUEST_GRACE_S = 0.25
"""Time to wait for the first requests on new connections after the port is closed, in seconds."""
_STOP_S_MAX = 2.0
"""Maximum time to wait for open exchanges and unread responses when stopping, in seconds."""


class Listener:
    """Serves one application on one socket."""

    def __init__(
        self,
        app: App,
        listening: socket.socket,
        limits: EdgeLimits,
        *,
        on_rejected: OnRejected = lambda _id, _refused: None,
        health: HealthCheck | None = None,
        ready: HealthCheck | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """If `health` is given, a thread accepts connections and answers health probes even while the event loop is
        busy. With `tls`, it answers health probes and readiness probes without TLS.
        """
        self.connections = Connections(app, limits, on_rejected)
        self.connections.tls = tls
        self._encrypted = tls is not None
        self._socket = listening
        self._health = health
        self._ready = ready if self._encrypted else None
        self._health_thread: HealthThread | None = None
        self._adopting: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._stopped = False
        self.address: tuple[str, int] = listening.getsockname()[:2]

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._health is not None:
            taken = partial(loop.call_soon_threadsafe, self._adopt_accepted)
            self._health_thread = HealthThread(self._socket, self._health, taken, ready=self._ready)
            self._health_thread.start()
            return
        if self._encrypted:
            self._start_accepting()
            return
        self._server = await loop.create_server(self.connections, sock=self._socket, backlog=_BACKLOG)

    def _start_accepting(self) -> None:
        if not self._stopped:
            asyncio.get_running_loop().add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        """Accepts waiting connections, which begin with a TLS handshake."""
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, _address = self._socket.accept()
            except BlockingIOError:
                return
            except OSError:
                # Out of file descriptors. Connections wait in the backlog until some are freed.
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._socket)
                loop.call_later(_ACCEPT_RETRY_S, self._start_accepting)
                return
            accepted.setblocking(False)  # noqa: FBT003 (positional-only parameter)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            TlsHandshake(self.connections, accepted).start()

    def _close_port(self) -> None:
        self._stopped = True
        if self._server is not None:
            self._server.close()
        else:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def _adopt_accepted(self) -> None:
        while self._health_thread is not None and self._health_thread.accepted:
            accepted = self._health_thread.accepted.popleft()
            if self._encrypted:
                TlsHandshake(self.connections, accepted).start()
                continue
            task = asyncio.get_running_loop().create_task(self._adopt(accepted))
            self._adopting.add(task)
            task.add_done_callback(self._adopting.discard)

    async def _adopt(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(self.connections, accepted)
        except OSError:
            accepted.close()

    async def sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_EVERY_S)
            self.connections.sweep(asyncio.get_running_loop().time())

    async def stop_accepting(self) -> None:
        """Closes a port that other processes also listen on, so that new connections go to them.

        Requests on new connections are still accepted for a moment, then idle connections are closed. Open requests
        continue.
        """
        if self._server is not None or self._encrypted:
            self._close_port()
        await asyncio.sleep(_FIRST_REQUEST_GRACE_S)
        self.connections.close_idle()

    async def stop(self) -> None:
        if self._health_thread is not None:
            self._health_thread.stop()
            await asyncio.gather(*self._adopting, return_exceptions=True)
        elif self._server is not None or self._encrypted:
            await asyncio.sleep(0)  # Accept pending connections first, because closing would reset them.
            self._close_port()
        else:
            self._socket.close()
            return
        connections = self.connections
        await self._await_first_requests()
        connections.close_idle()
        await self._await_closed()
        for task in list(connections.tasks):
            task.cancel()
        await asyncio.gather(*connections.tasks, return_exceptions=True)
        await self._await_closed()
        connections.abort()
        # Aborted connections get their callback in the next iteration of the event loop.
        await asyncio.sleep(0)

    async def _await_first_requests(self) -> None:
        """Waits for requests from clients that have just connected, because they still expect a response."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_REQUEST_GRACE_S):
                while self.connections.any_unused:  # noqa: ASYNC110 (only during shutdown)
                    await asyncio.sleep(0.01)

    async def _await_closed(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S_MAX):
                while len(self.connections):  # noqa: ASYNC110 (only during shutdown)
                    await asyncio.sleep(0.01)


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Returns a listening socket. Raises OSError with the address in its message.

    A `shared` socket lets this user's other processes listen on the same port if their sockets are shared too. The
    system then distributes the connections among them.
    """
    listening = reserve(host, port, shared=shared)
    try:
        # A conflict with another process is detected only here.
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise _listen_error(host, port, error) from error
    listening.setblocking(False)  # noqa: FBT003 (positional-only parameter)
    return listening


def reserve(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Returns a socket that is bound to the port but not listening, to reserve the port for other processes."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be explicit. Otherwise asyncio does not recognize accepted sockets as TCP and leaves Nagle's
    # algorithm on.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if _TCP_NOTSENT_LOWAT is not None:
        # Otherwise the kernel buffers megabytes for a slow client, which hides its progress for seconds.
        listening.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, _UNSENT_BYTES_MAX)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise _listen_error(host, port, error) from error
    return listening


def _listen_error(host: str, port: int, error: OSError) -> OSError:
    return OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}")
