"""One HTTP exchange between a client and the simulated engine, on top of an aiohttp request."""

import asyncio
import contextlib
import socket
import struct
from typing import Final

from aiohttp import web

_JSON: Final = "application/json"
_RESET: Final = struct.pack("ii", 1, 0)
"""Zero linger time, so that closing the socket sends a reset."""


class EngineClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


class EngineBodyTooLarge(Exception):
    """The body exceeds the engine's limit."""


class EngineExchange:
    __slots__ = ("_disconnected", "_request", "response")

    def __init__(self, request: web.BaseRequest, left: asyncio.Future[None]) -> None:
        """Wraps a request. `left` is done once the connection is closed."""
        self._request = request
        self._disconnected = left
        self.response: web.StreamResponse = web.Response()

    @property
    def method(self) -> str:
        return self._request.method

    @property
    def path(self) -> str:
        return self._request.path

    def header(self, name: str) -> str:
        return self._request.headers.get(name, "")

    async def body(self, size_max: int) -> bytes:
        body = bytearray()
        try:
            if self.header("expect").lower() == "100-continue":
                await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                self._request.writer.output_size = 0
            async for chunk in self._request.content.iter_any():
                body += chunk
                if len(body) > size_max:
                    raise EngineBodyTooLarge
        except (ConnectionError, web.RequestPayloadError):
            raise EngineClientDisconnected from None
        return bytes(body)

    async def wait_disconnected(self) -> None:
        """Waits until the client has disconnected."""
        await asyncio.shield(self._disconnected)

    async def start(self, status: int, content_type: str) -> None:
        self.response = web.StreamResponse(status=status, headers={"content-type": content_type})
        with contextlib.suppress(ConnectionError):
            await self.response.prepare(self._request)

    async def write(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            await self.response.write(data)

    async def finish(self, data: bytes = b"") -> None:
        with contextlib.suppress(ConnectionError):
            await self.response.write_eof(data)

    async def reply(self, status: int, body: bytes, content_type: str = _JSON) -> None:
        self.response = web.Response(status=status, body=body, headers={"content-type": content_type})
        with contextlib.suppress(ConnectionError):
            await self.response.prepare(self._request)
            await self.response.write_eof()

    async def reset(self) -> None:
        """Resets the connection and discards unsent data."""
        transport = self._request.transport
        if transport is not None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        await self.wait_disconnected()
