"""What has this caller been sent, and is it still there?

One HTTP exchange, seen from our side: raw ASGI below, four verbs above.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]


class BodyTooLarge(Exception):
    """The request's body exceeds what the door accepts."""


class ClientLeft(Exception):
    """The caller closed its connection before its request was complete."""


class Client:
    __slots__ = ("_receive", "_send", "always", "blocked", "finished", "headers", "method", "path", "started")

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server is set up for HTTP alone"
        self._receive = receive
        self._send = send
        self.method: str = scope["method"]
        self.path: bytes = scope["raw_path"]
        """As it was sent: what is authorised is exactly what is routed."""
        self.headers: Mapping[bytes, bytes] = dict(scope["headers"])
        self.always: Headers = []
        """What goes into the head of every answer."""
        self.started = False
        """Whether the head of an answer has been sent."""
        self.finished = False
        """Whether the end of an answer has been sent."""
        self.blocked = False
        """Whether something to be sent waits for the caller to read."""

    async def body(self, size_max: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            part: bytes = message.get("body", b"")
            size += len(part)
            if size > size_max:
                raise BodyTooLarge
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def gone(self) -> None:
        """Returns when the caller has left, or its answer is complete."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.finish(body)

    async def start(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        head = [*self.always, *headers]
        await self._put({"type": "http.response.start", "status": status, "headers": head})
        self.started = True

    async def write(self, data: bytes) -> None:
        await self._put({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        await self._put({"type": "http.response.body", "body": data, "more_body": False})
        self.finished = True

    async def _put(self, message: Message) -> None:
        """Waits first, if the caller has to read what it was sent before. Interrupted there, it sends nothing."""
        self.blocked = True
        try:
            await self._send(message)
        finally:
            self.blocked = False
