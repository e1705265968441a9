"""Client connection for the benchmarks.

A connection carries one request at a time and parses HTTP/1.1 itself: the benchmark's processes share a core, so their
own overhead limits what they can measure. The parser relies on OpenAI responses never containing a bare line break.
"""

import asyncio
import re
import socket
import ssl
from dataclasses import dataclass
from time import monotonic_ns
from typing import Final, Protocol, cast

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_TOKENS: Final = re.compile(rb'"completion_tokens": ?(\d+)')
_EVENT: Final = b"data: "
_LAST_CHUNK: Final = b"0\r\n\r\n"
PROBLEM_BYTES_MAX: Final = 400


@dataclass(slots=True)
class Answer:
    """One response, with times relative to when its request was due."""

    due_ns: int
    first_ns: int | None = None
    """Time of the first byte of the body."""
    end_ns: int = 0
    events: int = 0
    tokens: int | None = None
    """Number of generated tokens, from the response's usage."""
    problem: str | None = None


class Asker(Protocol):
    """Sender of requests."""

    def got_events(self, count: int) -> None: ...

    def ended(self, connection: "Connection", answer: Answer) -> None: ...


class Connection(asyncio.Protocol):
    """Connection to a target, usable until `abort` or the first failed response."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._transport: asyncio.Transport
        self._answer: Answer | None = None
        self._kept = b""
        self._in_head = True
        self._bytes_left: int | None = None
        """Remaining bytes of a body with a content length. None if the body is chunked."""

    def ask(self, request: bytes, due_ns: int) -> None:
        assert self._answer is None, "the previous response has not ended"
        self._answer = Answer(due_ns)
        self._kept, self._in_head = b"", True
        self._transport.write(request)

    def abort(self) -> None:
        self._answer = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass of it.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None:
            self._fail(self._answer, "the connection was closed before the response was complete")

    def data_received(self, data: bytes) -> None:
        now_ns = monotonic_ns()
        answer = self._answer
        if answer is None:
            self._transport.abort()
            return
        text = self._kept + data
        if self._in_head:
            head, found, rest = text.partition(b"\r\n\r\n")
            if not found:
                self._kept = text
                return
            self._read_head(head, rest, answer)
            if answer.problem is not None:
                self._fail(answer, answer.problem)
                return
            text = data = rest
        if data and answer.first_ns is None:
            answer.first_ns = now_ns
        if self._read_body(text, len(data), answer):
            self._answer = None
            answer.end_ns = now_ns
            self._asker.ended(self, answer)

    def _read_head(self, head: bytes, rest: bytes, answer: Answer) -> None:
        if not head.startswith(b"HTTP/1.1 200"):
            line = head.partition(b"\r\n")[0]
            answer.problem = (line + b": " + rest[:PROBLEM_BYTES_MAX]).decode(errors="replace")
        length = _LENGTH.search(head)
        self._in_head = False
        self._bytes_left = int(length[1]) if length else None

    def _read_body(self, text: bytes, size: int, answer: Answer) -> bool:
        """Return whether the response is complete. `text` is the end of the previous data followed by the new data."""
        if self._bytes_left is not None:
            self._bytes_left -= size
            return self._bytes_left <= 0
        # Keep what may be the start of an event marker, but not a complete one, which would be counted twice.
        self._kept = text[-(len(_EVENT) - 1) :]
        if events := text.count(_EVENT):
            answer.events += events
            self._asker.got_events(events)
            if tokens := _TOKENS.search(text):
                answer.tokens = int(tokens[1])
        return text.endswith(_LAST_CHUNK)

    def _fail(self, answer: Answer, problem: str) -> None:
        self._answer = None
        self._transport.abort()
        answer.problem = problem
        answer.end_ns = monotonic_ns()
        self._asker.ended(self, answer)


async def connect(port: int, asker: Asker, tls: ssl.SSLContext | None = None) -> Connection:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(lambda: Connection(asker), "127.0.0.1", port, ssl=tls)
    return connection


def chat_body(model: str, *, chunks: int, pace_ms: float = 0) -> dict[str, object]:
    """Return the body of a chat request to the benchmark's upstream. It is streamed if `chunks` is not 0."""
    body: dict[str, object] = {
        "model": model,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"chunks={chunks} pace_ms={pace_ms} Tell me about water gates."},
        ],
        "max_tokens": 256,
        "temperature": 0.7,
    }
    if chunks:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def a_request(body: bytes, *, port: int, key: str) -> bytes:
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\n"
        b"host: 127.0.0.1:%d\r\n"
        b"user-agent: bench\r\n"
        b"authorization: Bearer %b\r\n"
        b"content-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (port, key.encode(), len(body), body)
    )
