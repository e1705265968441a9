"""How does a browser get the console's page, and what it is told from then on?

The page is a closed list of files. What happens is told as server-sent events: much at once to whoever comes, then a
little each second to all. Nobody waits for a reader: one that is behind misses what is told meanwhile, and one that
stays behind is cut off, after which its browser comes back by itself.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from headgate.edge.client import Client

CONSOLE: Final = b"/console/"
EVENTS: Final = b"/console/events"
LISTENERS_MAX: Final = 20
BEHIND_MAX: Final = 10
"""So many events in a row may a reader miss."""
_RETRY: Final = b"retry: 1000\n\n"
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_STREAM: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    # Proxies would wait for more.
    (b"x-accel-buffering", b"no"),
)


class ConsoleFile(Protocol):
    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]: ...
    @property
    def etag(self) -> bytes: ...
    @property
    def body(self) -> bytes: ...


class AdminConsole:
    """What lies below `/console/`."""

    def __init__(
        self,
        files: Mapping[bytes, ConsoleFile],
        first_events: Callable[[], bytes],
        *,
        listeners_max: int = LISTENERS_MAX,
    ) -> None:
        self._files = files
        self.listeners_max = listeners_max
        self._first_events = first_events
        self._listeners: dict[Client, _Listener] = {}
        self._closed = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def __call__(self, client: Client) -> bool:
        """Whether it was asked for something that is here; else nothing was answered."""
        path = client.path
        if path in (b"/", CONSOLE[:-1]):
            client.reply(307, [(b"location", CONSOLE), _TEXT], b"the console is at /console/\n")
        elif path == EVENTS and client.method == "GET":
            await self._listen(client)
        elif (file := self._files.get(path.removeprefix(CONSOLE)) if path.startswith(CONSOLE) else None) is not None:
            known = client.headers.get(b"if-none-match", b"")
            if file.etag in known:
                client.reply(304, file.headers, b"")
            else:
                client.reply(200, file.headers, file.body)
        else:
            return False
        return True

    def tell(self, events: bytes) -> None:
        for client, listener in tuple(self._listeners.items()):
            listener.behind = listener.behind + 1 if client.blocked else 0
            if listener.behind > BEHIND_MAX:
                listener.over.set()
            elif not listener.behind:
                client.write(events)

    def close(self) -> None:
        """Ends every stream; nobody is taken from here on."""
        self._closed = True
        for listener in self._listeners.values():
            listener.over.set()

    async def _listen(self, client: Client) -> None:
        if self._closed or len(self._listeners) >= self.listeners_max:
            why = b"leaving" if self._closed else b"%d watch already, which is all that may" % self.listeners_max
            client.reply(503, [_TEXT, (b"retry-after", b"5")], why + b"\n")
            return
        listener = self._listeners[client] = _Listener()
        try:
            client.notify_when_left(listener.over.set)
            client.start(200, _STREAM)
            client.write(_RETRY + self._first_events())
            await listener.over.wait()
            # Who is behind gets no end, which could only be written behind all that it has not read.
            if not client.left and listener.behind <= BEHIND_MAX:
                client.finish()
        finally:
            del self._listeners[client]


class _Listener:
    __slots__ = ("behind", "over")

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self.behind = 0
