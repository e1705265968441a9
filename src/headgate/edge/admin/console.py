"""Serves the web console and its event stream.

The console is a fixed list of files. A new subscriber first receives the complete state. After that, all subscribers
receive an update every second as server-sent events. A slow subscriber misses updates and is disconnected if it does
not catch up. Its browser then reconnects.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from headgate.edge.client import Client

CONSOLE: Final = b"/console/"
EVENTS: Final = b"/console/events"
SUBSCRIBERS_MAX: Final = 20
MISSED_EVENTS_MAX: Final = 10
"""Maximum number of consecutive updates that a subscriber may miss."""
_RETRY: Final = b"retry: 1000\n\n"
_TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")
_STREAM: Final = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    # Keeps proxies from buffering the stream.
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
    """Files and event stream below `/console/`."""

    def __init__(
        self,
        files: Mapping[bytes, ConsoleFile],
        first_events: Callable[[], bytes],
        *,
        subscribers_max: int = SUBSCRIBERS_MAX,
    ) -> None:
        self._files = files
        self.subscribers_max = subscribers_max
        self._first_events = first_events
        self._subscribers: dict[Client, _Subscriber] = {}
        self._closed = False

    @property
    def subscribers(self) -> int:
        return len(self._subscribers)

    async def __call__(self, client: Client, *, session_event: bytes = b"", lifetime_s: float | None = None) -> bool:
        """Responds to a console request. A stream begins with the `session_event` and ends after its lifetime.

        If the path is not part of the console, returns False without sending a response.
        """
        path = client.path
        if path in (b"/", CONSOLE[:-1]):
            client.reply(307, [(b"location", CONSOLE), _TEXT], b"the console is at /console/\n")
        elif path == EVENTS and client.method == "GET":
            await self._subscribe(client, session_event, lifetime_s)
        elif (file := self._files.get(path.removeprefix(CONSOLE)) if path.startswith(CONSOLE) else None) is not None:
            known = client.headers.get(b"if-none-match", b"")
            if file.etag in known:
                client.reply(304, file.headers, b"")
            else:
                client.reply(200, file.headers, file.body)
        else:
            return False
        return True

    def broadcast(self, events: bytes) -> None:
        for client, listener in tuple(self._subscribers.items()):
            listener.missed = listener.missed + 1 if client.blocked else 0
            if listener.missed > MISSED_EVENTS_MAX:
                listener.ended.set()
            elif not listener.missed:
                client.write(events)

    def close(self) -> None:
        """Ends all streams and rejects new subscribers."""
        self._closed = True
        for listener in self._subscribers.values():
            listener.ended.set()

    async def _subscribe(self, client: Client, session_event: bytes, lifetime_s: float | None) -> None:
        if self._closed or len(self._subscribers) >= self.subscribers_max:
            full = b"console streams are limited to %d" % self.subscribers_max
            why = b"the gateway is shutting down" if self._closed else full
            client.reply(503, [_TEXT, (b"retry-after", b"5")], why + b"\n")
            return
        listener = self._subscribers[client] = _Subscriber()
        try:
            client.notify_on_disconnect(listener.ended.set)
            client.start(200, _STREAM)
            client.write(_RETRY + session_event + self._first_events())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(lifetime_s):
                    await listener.ended.wait()
            # A slow subscriber is not sent an end of stream, because it would queue behind all the unread data.
            if not client.disconnected and listener.missed <= MISSED_EVENTS_MAX:
                client.finish()
        finally:
            del self._subscribers[client]


class _Subscriber:
    __slots__ = ("ended", "missed")

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.missed = 0
