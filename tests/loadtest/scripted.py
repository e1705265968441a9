"""Server that sends scripted responses byte for byte.

async with ScriptedServer(answer(429, headers={"retry-after-ms": "1"}), stream("a", "b")) as server:
    ...    # send requests to server.url; server.requests contains them as (headers, body)
"""

import asyncio
import contextlib
import json
from collections import deque
from typing import Any, Self


def answer(status: int, *, code: str | None = None, headers: dict[str, str] | None = None) -> bytes:
    """Returns a non-streaming response with an error body."""
    body = json.dumps({"error": {"message": "no", "type": "test", "param": None, "code": code}}).encode()
    return (
        _head(status, {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}) + body
    )


def stream(*events: str, last_chunk: bool = True) -> bytes:
    """Returns an event stream with one event per text."""
    head = _head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
    chunks = [f"data: {event}\n\n".encode() for event in events]
    return head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n" * last_chunk


def token(text: str) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]})


def _head(status: int, headers: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} Told", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode()


class ScriptedServer:
    def __init__(self, *answers: bytes, close_after: bool = False) -> None:
        """The last response repeats. Empty bytes close the connection without a response."""
        self._answers = deque(answers)
        self._close_after = close_after
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.connections = 0
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
                headers = dict(line.split(": ", 1) for line in lines)
                self.requests.append((headers, json.loads(await reader.readexactly(int(headers["content-length"])))))
                said = self._answers.popleft() if len(self._answers) > 1 else self._answers[0]
                writer.write(said)
                await writer.drain()
                if self._close_after or not said:
                    break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self._serving.discard(task)
