"""What passes between one client and the engine's listener? Raw ASGI below, a few verbs above."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

CUT: Final = "headgate.cut"
"""Where a request's scope holds the way to reset its connection."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_JSON: Final = (b"content-type", b"application/json")


class ClientLeft(Exception):
    """The client closed its connection before its request was whole."""


class BodyTooLarge(Exception):
    """The body exceeds what the engine takes."""


class Exchange:
    __slots__ = ("_receive", "_scope", "_send")

    def __init__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send

    @property
    def method(self) -> str:
        return self._scope["method"]

    @property
    def path(self) -> str:
        return self._scope["path"]

    def header(self, name: bytes) -> str:
        found = (value for each, value in self._scope["headers"] if each == name)
        return next(found, b"").decode("latin-1")

    async def body(self, size_max: int) -> bytes:
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            body += message.get("body", b"")
            if len(body) > size_max:
                raise BodyTooLarge
            if not message.get("more_body", False):
                return bytes(body)

    async def gone(self) -> None:
        """Returns when the client has left, or its answer is complete."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, content_type: bytes) -> None:
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type)]}
        )

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def reply(self, status: int, body: bytes, content_type: tuple[bytes, bytes] = _JSON) -> None:
        headers = [content_type, (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self.finish(body)

    async def cut(self) -> None:
        """Resets the connection, whatever of the answer is still on its way."""
        leaving = asyncio.ensure_future(self.gone())
        self._scope[CUT]()
        await leaving
