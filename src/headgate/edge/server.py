"""How do both listeners run in one process, and how do they stop?

uvicorn serves them; signals, draining and the order of leaving are ours. So are the bounds of one
connection (connection.py).
"""

import asyncio
import contextlib
import socket
from collections.abc import Generator
from typing import Any

import uvicorn

from headgate.edge.connection import connection

# Longer than the 60 s after which common load balancers let an idle connection go: whoever
# closes first must be the one that does not send requests.
_KEEP_ALIVE_S = 75
_BACKLOG = 2048


class Listener:
    """One application on one socket."""

    def __init__(self, app: Any, listening: socket.socket, *, client_stall_max_s: float) -> None:
        config = uvicorn.Config(
            app,
            http=connection(client_stall_max_s),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=2,
        )
        self._server = _Server(config)
        self._socket = listening
        self.address: tuple[str, int] = listening.getsockname()[:2]

    async def serve(self) -> None:
        await self._server.serve(sockets=[self._socket])

    async def started(self) -> None:
        while not self._server.started:  # noqa: ASYNC110 (uvicorn tells it by this flag alone)
            await asyncio.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or OSError with the address in it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio would not take what it accepts for TCP and leave Nagle's algorithm on.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listening.bind((host, port))
        # Whoever else has bound it is known only from here on.
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listening


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leaves signals alone: they mean draining, which is not this server's to decide."""
        yield
