"""Upstream for the proxy benchmarks: an engine that does no computation, run as a process.

    python -m bench.mock_upstream PORT

The prompt selects the response. `chunks=N pace_ms=P` produces a stream of N token chunks, the first immediately and
each of the others P ms after the previous one. Non-streaming requests get one JSON response of about a kilobyte. The
bytes are prepared in advance, and each token chunk is one write, as in an engine's frontend.
"""

import asyncio
import gc
import json
import re
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic_ns
from typing import Any, Final, cast

import uvloop

from bench.precise_timer import PreciseTimer

MODEL: Final = "bench-model"
EVENTS_AFTER_TOKENS: Final = 2
"""Number of events after a stream's tokens: the usage and the end."""

_ORDER: Final = re.compile(rb"chunks=(\d+) pace_ms=(\d+)")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ID: Final = {"id": "chatcmpl-6f1c3b1de8a94f0d9f4f3a52c5e0b7aa", "created": 1767225600, "model": MODEL}
_PROMPT_TOKENS: Final = 42


class UpstreamConnection(asyncio.Protocol):
    """One client connection, which carries one request at a time until the client closes it."""

    def __init__(self, alarm: PreciseTimer, callers: set["UpstreamConnection"]) -> None:
        self._alarm = alarm
        self._callers = callers
        self._transport: asyncio.Transport
        self._kept = b""
        self._tokens_left = 0
        self._closing = b""
        self._pace_ns = 0
        self._next_ns = 0
        self._gone = False

    @property
    def streaming(self) -> bool:
        return self._tokens_left > 0

    def close(self) -> None:
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport is not a subclass of it.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._callers.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone = True
        self._tokens_left = 0
        self._callers.discard(self)

    def data_received(self, data: bytes) -> None:
        self._kept += data
        while self._kept and not self._tokens_left and (request := self._take_request()):
            self._answer(*request)

    def _take_request(self) -> tuple[bytes, bytes] | None:
        """Return the head and body of the next request, or None if it is incomplete."""
        head_end = self._kept.find(b"\r\n\r\n")
        if head_end < 0:
            return None
        head = self._kept[:head_end]
        length = _LENGTH.search(head)
        body_end = head_end + 4 + (int(length[1]) if length else 0)
        if len(self._kept) < body_end:
            return None
        body = self._kept[head_end + 4 : body_end]
        self._kept = self._kept[body_end:]
        return head, body

    def _answer(self, head: bytes, body: bytes) -> None:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0]
        if method == b"GET":
            self._transport.write(_page(path, running=sum(caller.streaming for caller in self._callers)))
        elif path != b"/v1/chat/completions" or b"\r\ntransfer-encoding:" in head.lower():
            self._transport.write(_whole(b'{"detail":"unsupported request"}', status=b"404 Not Found"))
        elif b'"stream":true' in body or b'"stream": true' in body:
            self._start_stream(body)
        else:
            self._transport.write(_ANSWER)

    def _start_stream(self, body: bytes) -> None:
        order = _ORDER.search(body)
        tokens, pace_ms = (int(order[1]), int(order[2])) if order else (16, 0)
        self._tokens_left = max(1, tokens)
        self._closing = _closing(tokens, tells_usage=b'"include_usage":true' in body.replace(b" ", b""))
        self._pace_ns = pace_ms * 1_000_000
        self._next_ns = monotonic_ns()
        self._transport.write(_STREAM_HEAD)
        self._send_token()

    def _send_token(self) -> None:
        if self._gone:
            return
        self._tokens_left -= 1
        if self._tokens_left:
            self._transport.write(_TOKEN)
            # Measured from the previous due time, so that a late chunk does not delay the next ones.
            self._next_ns += self._pace_ns
            self._alarm.schedule(self._next_ns, self._send_token)
        else:
            self._transport.write(_LAST_TOKEN)
            self._transport.write(self._closing)
            self.data_received(b"")


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _whole(body: bytes, *, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(body), body)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(choices: list[dict[str, Any]], usage: dict[str, int] | None) -> bytes:
    event = {**_ID, "object": "chat.completion.chunk", "choices": choices, "usage": usage}
    return _chunk(b"data: " + _json(event) + b"\n\n")


def _token(finish_reason: str | None) -> bytes:
    return _event(
        [{"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": finish_reason}], None
    )


def _usage(tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": _PROMPT_TOKENS,
        "completion_tokens": tokens,
        "total_tokens": _PROMPT_TOKENS + tokens,
    }


def _closing(tokens: int, *, tells_usage: bool) -> bytes:
    usage = _event([], _usage(tokens)) if tells_usage else b""
    return usage + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _answer() -> bytes:
    message = {"role": "assistant", "content": "Water flows where the gate lets it. " * 20}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return _whole(_json({**_ID, "object": "chat.completion", "choices": [choice], "usage": _usage(180)}))


def _page(path: bytes, *, running: int) -> bytes:
    match path:
        case b"/health":
            return _whole(b"")
        case b"/version":
            return _whole(b'{"version":"0.32.0"}')
        case b"/v1/models":
            return _whole(_json({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm"}]}))
        case b"/metrics":
            values = {
                "num_requests_running": running,
                "num_requests_waiting": 0,
                "kv_cache_usage_perc": 0.25,
                "num_preemptions_total": 0,
            }
            lines = "".join(f'vllm:{name}{{model_name="{MODEL}"}} {value}\n' for name, value in values.items())
            return _whole(lines.encode(), kind=b"text/plain; version=0.0.4; charset=utf-8")
        case _:
            return _whole(b'{"detail":"Not Found"}', status=b"404 Not Found")


_TOKEN: Final = _token(None)
_LAST_TOKEN: Final = _token("stop")
_ANSWER: Final = _answer()
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)


@asynccontextmanager
async def listening(port: int) -> AsyncGenerator[int]:
    """Run the upstream on the current loop and yield its port. Port 0 selects a free one."""
    loop = asyncio.get_running_loop()
    alarm, callers = PreciseTimer(loop), set[UpstreamConnection]()
    server = await loop.create_server(partial(UpstreamConnection, alarm, callers), "127.0.0.1", port, backlog=4096)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for caller in tuple(callers):
            caller.close()
        alarm.close()


async def serve(port: int) -> None:
    """Run the upstream until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    async with listening(port):
        await over.wait()


if __name__ == "__main__":
    # Reference counting frees each request's objects. A garbage collection would only add a pause to the results.
    gc.disable()
    uvloop.run(serve(int(sys.argv[1])))
