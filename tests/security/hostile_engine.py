"""A malicious or broken engine.

The engine answers probes correctly. Each generation request gets the next scripted response as raw bytes. When the
script is empty, the engine echoes the prompt, so that a caller can check that the response is its own.
"""

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from testing.raw_server import RawServer

HANG = None
"""Script piece that makes the engine send nothing more."""

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Script:
    """Response sent once the request has been read completely."""

    pieces: tuple[bytes | None, ...]
    close: bool = True
    """Whether the connection is closed after the last piece."""
    early: bool = False
    """Whether the response is sent after the head has been read, before the body."""


def framed(body: bytes, *headers: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    """Build a correct response."""
    lines = [b"HTTP/1.1 " + status, b"content-type: " + kind, b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def a_completion(content: str) -> bytes:
    message = {"role": "assistant", "content": content}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return json.dumps({"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": choices}).encode()


@dataclass
class HostileEngine(RawServer):
    script: deque[Script] = field(default_factory=deque)
    prompts: list[str] = field(default_factory=list)
    connections: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the gateway has closed a connection that was not idle."""
    endless: Callable[[], bytes] | None = None
    """Source of data that is sent repeatedly, as fast as the gateway reads it, instead of a response."""
    probes: int = 0
    probes_sent_to: str = ""
    """Base URL that probes are redirected to. Probes are answered if it is empty."""

    def __post_init__(self) -> None:
        super().__init__()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left.set()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request and return whether the connection stays open."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        length = int(found[1]) if (found := _LENGTH.search(head)) else 0
        if not head.startswith(b"POST"):
            await reader.readexactly(length)
            self.probes += 1
            where = b"location: " + self.probes_sent_to.encode() + head.split(b" ")[1]
            writer.write(framed(b"", where, status=b"307 Temporary") if self.probes_sent_to else _page(head))
            return True
        script = self.script.popleft() if self.script else None
        if script is not None and script.early:
            return await self._play(script, reader, writer)
        prompt = json.loads(await reader.readexactly(length))["messages"][-1]["content"]
        self.prompts.append(prompt)
        if self.endless is not None:
            await self._send_for_ever(writer)
        return await self._play(script or Script((framed(a_completion(prompt)),), close=False), reader, writer)

    async def _send_for_ever(self, writer: asyncio.StreamWriter) -> None:
        assert self.endless is not None
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
        while True:
            writer.write(self.endless())
            await writer.drain()
            await asyncio.sleep(0)

    async def _play(self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        for piece in script.pieces:
            if piece is HANG:
                # Wait until the gateway disconnects, ignoring what it sends.
                while await reader.read(65536):
                    pass
                raise ConnectionResetError
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return not script.close


def _page(head: bytes) -> bytes:
    path = head.split(b" ")[1]
    if path == b"/v1/models":
        return framed(b'{"object":"list","data":[{"id":"fake","object":"model","created":0,"owned_by":"x"}]}')
    if path == b"/metrics":
        return framed(b"vllm:num_requests_running 0\n", kind=b"text/plain")
    if path == b"/version":
        return framed(b'{"version":"0"}')
    return framed(b"")
