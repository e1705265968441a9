"""How does a caller leave at exactly this moment? A connection of its own, by which one request is sent and cut."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Self

from testing.gateway import CHAT


class RawCaller:
    """One connection to the gateway. What is sent and read, and how it ends, is up to the test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, url: str) -> Self:
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def ask(self, body: Mapping[str, Any], *, bytes_max: int | None = None) -> int:
        """Sends a request, or only so many bytes of it; how long it is."""
        content = json.dumps(body).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
        whole = head.encode() + b"\r\n\r\n" + content
        self._writer.write(whole[:bytes_max])
        return len(whole)

    @property
    def got(self) -> bytes:
        """What has come and has not been read, without waiting for more."""
        return bytes(self._reader._buffer)  # type: ignore[attr-defined]

    async def read(self, count: int) -> bytes:
        """So many bytes of the answer, fewer if it ends before."""
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as all_there_was:
            return all_there_was.partial

    async def read_until(self, sign: bytes) -> bytes:
        return await self._reader.readuntil(sign)

    async def read_to_the_end(self) -> bytes:
        """All that comes until the connection breaks or a chunked answer ends in good order."""
        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            piece = await self._reader.read(65_536)
            if not piece:
                break
            answer += piece
        return answer

    def leave(self, *, by_reset: bool = False) -> None:
        """Closes, as a program does that ends in good order; or resets, as the system does for one that was killed."""
        if by_reset:
            ours = self._writer.get_extra_info("socket")
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def closed(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
