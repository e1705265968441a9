"""Raw HTTP connections to the gateway, without a library that would reject invalid input."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from testing.gateway import CHAT, chat

ANSWER_S_MAX = 60.0
"""Timeout for a response in seconds, far longer than any response takes."""

_HEAD_BYTES_MAX = 1024 * 1024
"""Longest response head that a test reads."""


class Closed(Exception):
    """The gateway closed the connection instead of sending a response."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[bytes, bytes]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


class Caller:
    """One connection. A reset counts as a close, because closing with unread data causes a reset."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *pieces: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                self._writer.write(piece)
                await self._writer.drain()
                await asyncio.sleep(0)

    def send_now(self, data: bytes) -> None:
        """Write to the socket immediately, without yielding to the event loop."""
        self._writer.write(data)

    async def drip(self, data: bytes) -> None:
        """Send the data byte by byte, so that reads end at every position."""
        await self.send(*(data[at : at + 1] for at in range(len(data))))

    async def drip_slowly(self, data: bytes, *, every_s: float) -> None:
        for at in range(len(data)):
            await self.send(data[at : at + 1])
            await asyncio.sleep(every_s)

    async def flood(self, piece: bytes, bytes_max: int) -> int:
        """Send a piece repeatedly until the gateway disconnects or `bytes_max` is reached. Return the bytes sent."""
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < bytes_max and not self._reader.at_eof():
                self._writer.write(piece)
                await self._writer.drain()
                sent += len(piece)
        return sent

    async def answer(self, *, seconds_max: float = ANSWER_S_MAX) -> Answer:
        """Read the next final response; skip informational (1xx) responses."""
        try:
            async with asyncio.timeout(seconds_max):
                status, headers = await self._head()
                while status < 200:
                    status, headers = await self._head()
                return Answer(status, headers, await self._body(headers))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise Closed from None

    async def is_closed(self, *, seconds_max: float = ANSWER_S_MAX) -> bool:
        """Return whether the gateway closes the connection within `seconds_max` without sending another byte."""
        try:
            async with asyncio.timeout(seconds_max):
                return await self._reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    async def rest(self, *, seconds_max: float = ANSWER_S_MAX) -> bytes:
        """Read everything until the connection closes."""
        got = b""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(seconds_max):
                while data := await self._reader.read(65536):
                    got += data
        return got

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _head(self) -> tuple[int, dict[bytes, bytes]]:
        head = await self._reader.readuntil(b"\r\n\r\n")
        first, *lines = head.rstrip(b"\r\n").split(b"\r\n")
        fields = (line.partition(b":") for line in lines)
        return int(first.split(b" ")[1]), {name.lower(): value.strip() for name, _, value in fields}

    async def _body(self, headers: Mapping[bytes, bytes]) -> bytes:
        if b"content-length" in headers:
            return await self._reader.readexactly(int(headers[b"content-length"]))
        if headers.get(b"transfer-encoding") != b"chunked":
            return await self._reader.read()
        body = b""
        while size := int(await self._reader.readuntil(b"\r\n"), 16):
            body += await self._reader.readexactly(size)
            await self._reader.readexactly(2)
        await self._reader.readexactly(2)
        return body


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Caller]:
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=_HEAD_BYTES_MAX)
    caller = Caller(reader, writer)
    try:
        yield caller
    finally:
        caller.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def body_of(content: str, **fields: Any) -> bytes:
    return json.dumps(chat(content, **fields)).encode()


def head_of(
    *lines: bytes, first: bytes = b"POST %b HTTP/1.1" % CHAT.encode(), host: bytes | None = b"localhost"
) -> bytes:
    hosts = [] if host is None else [b"host: " + host]
    return b"\r\n".join([first, *hosts, *lines]) + b"\r\n\r\n"


def request_of(body: bytes, *lines: bytes, **options: Any) -> bytes:
    """Build a valid request."""
    return head_of(b"content-length: %d" % len(body), *lines, **options) + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


CHUNKED = b"transfer-encoding: chunked"
LAST_CHUNK = b"0\r\n\r\n"
