"""A raw HTTP caller that can disconnect at any point in a request."""

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, Self

from testing.gateway import CHAT


class RawCaller:
    """One connection to the gateway. The test controls what is sent and read and how the connection ends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, url: str) -> Self:
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def ask(self, body: Mapping[str, Any], *, bytes_max: int | None = None) -> int:
        """Send a request, or only its first `bytes_max` bytes. Return the length of the complete request."""
        content = json.dumps(body).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}"
        whole = head.encode() + b"\r\n\r\n" + content
        self._writer.write(whole[:bytes_max])
        return len(whole)

    @property
    def got(self) -> bytes:
        """Bytes that have arrived but have not been read."""
        return bytes(self._reader._buffer)  # type: ignore[attr-defined]

    async def read(self, count: int) -> bytes:
        """Read `count` bytes of the response, or fewer if it ends sooner."""
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as all_there_was:
            return all_there_was.partial

    async def read_until(self, sign: bytes) -> bytes:
        return await self._reader.readuntil(sign)

    async def read_to_the_end(self) -> bytes:
        """Read until the connection closes or a chunked response is complete."""
        answer = b""
        while not answer.endswith(b"\r\n0\r\n\r\n"):
            piece = await self._reader.read(65_536)
            if not piece:
                break
            answer += piece
        return answer

    def leave(self, *, by_reset: bool = False) -> None:
        """Close the connection, or reset it as the operating system does for a killed process."""
        if by_reset:
            ours = self._writer.get_extra_info("socket")
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def closed(self) -> None:
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
