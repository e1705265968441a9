"""A misbehaving engine. The `user` field of the request selects its behaviour."""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from testing.raw_server import RawServer

_LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_STREAM: Final = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_WHOLE: Final = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
_LAST: Final = b"0\r\n\r\n"
_FLOOD_BYTES_MAX: Final = 128 * 1024 * 1024
_PIECE: Final = b"a" * 262_144

Behaviour = Callable[[asyncio.StreamWriter, dict[str, Any]], Awaitable[None]]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(data: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(data).encode()


def token(text: str = "x") -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})


def usage(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def completion(prompt: int = 5, output: int = 2) -> bytes:
    message = {"role": "assistant", "content": "hi"}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return json.dumps({"id": "c", "model": "m", "choices": choices, "usage": usage(prompt, output)}).encode()


def framed(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def ok(writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
    """Send a correct two-token response, including its usage."""
    if not asked.get("stream"):
        writer.write(framed(completion()))
        return
    events = token("a") + token("b") + event({"id": "c", "choices": [], "usage": usage(5, 2)}) + b"data: [DONE]\n\n"
    writer.write(_STREAM + chunk(events) + _LAST)


async def paced(writer: asyncio.StreamWriter, _asked: dict[str, Any]) -> None:
    """Send a hundred tokens, ten milliseconds apart."""
    writer.write(_STREAM)
    for _ in range(100):
        writer.write(chunk(token("t")))
        await writer.drain()
        await asyncio.sleep(0.01)
    writer.write(chunk(event({"id": "c", "choices": [], "usage": usage(5, 100)}) + b"data: [DONE]\n\n") + _LAST)


async def endless_trailer(writer: asyncio.StreamWriter, _asked: dict[str, Any]) -> None:
    writer.write(_WHOLE + chunk(completion()) + b"0\r\nx-a: ")
    await _flood(writer, _PIECE)


async def many_trailers(writer: asyncio.StreamWriter, _asked: dict[str, Any]) -> None:
    writer.write(_WHOLE + chunk(completion()) + b"0\r\n")
    await _flood(writer, b"a: b\r\n" * 40_000)


async def chunk_extension(writer: asyncio.StreamWriter, _asked: dict[str, Any]) -> None:
    writer.write(_STREAM + chunk(token()) + b"5;")
    await _flood(writer, _PIECE)


async def endless_line(writer: asyncio.StreamWriter, _asked: dict[str, Any]) -> None:
    writer.write(_STREAM + chunk(token()) + b"10000000\r\ndata: ")
    await _flood(writer, _PIECE)


async def comments(writer: asyncio.StreamWriter, _asked: dict[str, Any]) -> None:
    writer.write(_STREAM)
    await _flood(writer, chunk(b": ping\n\n" * 20_000))


async def one_byte_chunks(writer: asyncio.StreamWriter, _asked: dict[str, Any]) -> None:
    writer.write(_STREAM)
    await _flood(writer, b"".join(chunk(bytes([each])) for each in token() * 400))


async def usage_bomb(writer: asyncio.StreamWriter, _asked: dict[str, Any]) -> None:
    writer.write(_WHOLE + chunk(b'"usage":{' * 28_000) * 4 + chunk(b"}") + _LAST)


async def false_usage(writer: asyncio.StreamWriter, _asked: dict[str, Any]) -> None:
    writer.write(framed(completion(10**9, 10**9)))


async def honest(writer: asyncio.StreamWriter, asked: dict[str, Any]) -> None:
    """Report one prompt token per four bytes of the request, counting all fields."""
    writer.write(framed(completion(len(json.dumps(asked)) // 4, 2)))


async def failure(writer: asyncio.StreamWriter, _asked: dict[str, Any]) -> None:
    writer.write(framed(b'{"error": {"message": "boom", "code": 500}}', b"500 Internal Server Error"))


async def long_head(writer: asyncio.StreamWriter, _asked: dict[str, Any]) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nx-a: ")
    await _flood(writer, _PIECE)


async def _flood(writer: asyncio.StreamWriter, piece: bytes) -> None:
    for _ in range(_FLOOD_BYTES_MAX // len(piece)):
        writer.write(piece)
        await writer.drain()


BEHAVIOURS: Final[dict[str, Behaviour]] = {
    each.__name__: each
    for each in (
        ok,
        paced,
        endless_trailer,
        many_trailers,
        chunk_extension,
        endless_line,
        comments,
        one_byte_chunks,
        usage_bomb,
        false_usage,
        honest,
        failure,
        long_head,
    )
}


class HostileEngine(RawServer):
    """One misbehaving endpoint. It responds to GET requests as vLLM does."""

    buffer_bytes = 64 * 1024 * 1024

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                await self._answer(reader, writer)
                await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        if not head.startswith(b"POST"):
            writer.write(framed(b'{"object": "list", "data": [{"id": "fake", "object": "model"}]}'))
            return
        self.asked += 1
        asked = json.loads(body)
        await BEHAVIOURS[asked.get("user", "ok")](writer, asked)
