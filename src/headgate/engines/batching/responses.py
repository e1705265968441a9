"""Responses to requests that were sent in a batch.

A response is either passed through, assembled from parts, or built from an engine error for the whole batch.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from headgate.ports.engine import EngineResponse, FramedResponse
from headgate.wire.batch_codec import BUFFERED_BYTES_MAX

PIECE_BYTES: Final = 64 * 1024
"""Maximum bytes per piece, so that callers that read slowly exert backpressure."""
_NOT_ABOUT_REQUEST: Final = frozenset({401, 403, 404, 407, 408, 425, 429, 503})
"""Error statuses caused by the gateway's key, address or rate, not by the request.

Resending in halves would only double the calls.
"""


def is_about_request(status: int) -> bool:
    """Returns whether an error may have been caused by the request rather than the engine or its configuration."""
    return status >= 400 and status not in _NOT_ABOUT_REQUEST


class PassthroughResponse:
    """Engine response to one request, passed through. Closing it ends the call."""

    __slots__ = ("_answer", "_over", "content_type", "reports_progress", "secret", "status")
    usage_estimated = False

    def __init__(self, answer: EngineResponse, over: asyncio.Future[None]) -> None:
        self.status = answer.status
        self.content_type = answer.content_type
        self.reports_progress = answer.reports_progress
        self.secret = answer.secret
        self._answer = answer
        self._over = over

    async def read(self) -> bytes:
        return await self._answer.read()

    def take_body(self) -> bytes | None:
        return self._answer.take_body()

    async def stream_to(self, sink: Callable[[bytes], bool], chunk_sink: Callable[[bytes], bool] | None = None) -> None:
        await self._answer.stream_to(sink, chunk_sink)

    def pause(self) -> None:
        self._answer.pause()

    def resume(self) -> None:
        self._answer.resume()

    def is_request_error(self, body: bytes) -> bool:
        return self._answer.is_request_error(body)

    def drain(self) -> None:
        self._answer.drain()

    def close(self) -> None:
        self._answer.close()
        if not self._over.done():
            self._over.set_result(None)


class FramedPassthroughResponse(PassthroughResponse):
    """Passed-through response that also exposes framing details."""

    __slots__ = ("body_headers", "is_framed")

    def __init__(self, answer: FramedResponse, over: asyncio.Future[None]) -> None:
        super().__init__(answer, over)
        self.body_headers = answer.body_headers
        self.is_framed = answer.is_framed


def passthrough(answer: EngineResponse, over: asyncio.Future[None]) -> PassthroughResponse:
    return (
        FramedPassthroughResponse(answer, over)
        if isinstance(answer, FramedResponse)
        else PassthroughResponse(answer, over)
    )


class AssembledResponse:
    """Successful response that is assembled from parts, in order."""

    __slots__ = (
        "_backpressure",
        "_buffered_bytes",
        "_buffered_bytes_max",
        "_chunks",
        "_ended",
        "_fault",
        "_flowing",
        "_out_of_order_bytes",
        "_waiter",
        "content_type",
        "on_backpressure",
        "on_close",
        "reports_progress",
        "status",
        "usage_estimated",
    )
    secret = ""

    def __init__(self, held_bytes_max: int = BUFFERED_BYTES_MAX) -> None:
        self._buffered_bytes_max = held_bytes_max
        self.status = 200
        self.content_type = "application/json"
        self.reports_progress = False
        self.usage_estimated = False
        """Whether the usage is a proportional share rather than a count."""
        self.on_close: Callable[[], None] = lambda: None
        self.on_backpressure: Callable[[bool], None] = lambda _: None
        """Called to apply backpressure: true stops sending inputs, false resumes."""
        self._chunks: deque[bytes] = deque()
        self._buffered_bytes = self._out_of_order_bytes = 0
        self._backpressure = False
        self._ended = False
        self._fault: BaseException | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._waiter: asyncio.Future[None] | None = None

    # Called by the batcher

    @property
    def is_full(self) -> bool:
        return self._buffered_bytes >= self._buffered_bytes_max

    def put(self, data: bytes, *, out_of_order_bytes: int) -> None:
        """Adds body bytes. `out_of_order_bytes` counts bytes that arrived out of order and are buffered elsewhere."""
        self._out_of_order_bytes = out_of_order_bytes
        if data:
            self._chunks.append(data)
            self._buffered_bytes += len(data)
            self._wake()
        self._update_backpressure()

    def end(self, fault: BaseException | None) -> None:
        self._ended = True
        self._fault = fault
        self._wake()

    # For the relay

    async def read(self) -> bytes:
        while not self._chunks:
            if self._ended:
                if self._fault is not None:
                    raise self._fault
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._next_piece()

    def take_body(self) -> bytes | None:
        return None

    async def stream_to(self, sink: Callable[[bytes], bool], chunk_sink: Callable[[bytes], bool] | None = None) -> None:
        del chunk_sink
        while await self._flowing.wait() and (piece := await self.read()):
            if sink(piece):
                return

    def pause(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def is_request_error(self, body: bytes) -> bool:
        del body
        return False

    def drain(self) -> None:
        pass

    def close(self) -> None:
        self._chunks.clear()
        self.on_close()

    def _next_piece(self) -> bytes:
        taken: list[bytes] = []
        size = 0
        while self._chunks and size < PIECE_BYTES:
            taken.append(self._chunks.popleft())
            size += len(taken[-1])
        self._buffered_bytes -= size
        self._update_backpressure()
        return b"".join(taken)

    def _update_backpressure(self) -> None:
        resting = self._buffered_bytes + self._out_of_order_bytes >= self._buffered_bytes_max
        if resting is not self._backpressure:
            self._backpressure = resting
            self.on_backpressure(resting)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class BatchErrorResponse:
    """Engine error, delivered to each affected request."""

    __slots__ = ("_body", "content_type", "reports_progress", "request_error", "status")
    usage_estimated = False
    secret = ""

    def __init__(self, status: int, content_type: str, body: bytes, *, blames: bool) -> None:
        self.status = status
        self.content_type = content_type
        self.reports_progress = False
        self.request_error = blames
        """Whether the engine reports the request as invalid."""
        self._body = body

    def without_body(self) -> "BatchErrorResponse":
        return BatchErrorResponse(self.status, self.content_type, b"", blames=self.request_error)

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        return body

    def take_body(self) -> bytes | None:
        return None

    async def stream_to(self, sink: Callable[[bytes], bool], chunk_sink: Callable[[bytes], bool] | None = None) -> None:
        del chunk_sink
        if body := await self.read():
            sink(body)

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def is_request_error(self, body: bytes) -> bool:
        del body
        return self.request_error

    def drain(self) -> None:
        pass

    def close(self) -> None:
        pass
