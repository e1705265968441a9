"""What does a request get that was asked together with others?

An answer like that of any engine: one that passes as it is, an engine's word on the request, or one that is put
together of the parts that have come.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from headgate.ports.engine import Answer, FramedAnswer
from headgate.wire.batches import HELD_BYTES_MAX

PIECE_BYTES: Final = 64 * 1024
"""As much is handed over at a time, so that a caller who does not read is not sent it all."""
_OTHERWISE: Final = frozenset({401, 403, 404, 407, 408, 425, 429, 503})
"""What says nothing of what was asked: our key, our address, our pace. To ask again in halves would ask twice as much.
"""


def is_of_request(status: int) -> bool:
    """Whether an error may be about what was asked, rather than about the engine or its setup."""
    return status >= 400 and status not in _OTHERWISE


class PassedAnswer:
    """An engine's own answer to one request. Whoever lets go of it ends the call."""

    __slots__ = ("_answer", "_over", "content_type", "reports_progress", "status")
    usage_estimated = False

    def __init__(self, answer: Answer, over: asyncio.Future[None]) -> None:
        self.status = answer.status
        self.content_type = answer.content_type
        self.reports_progress = answer.reports_progress
        self._answer = answer
        self._over = over

    async def read(self) -> bytes:
        return await self._answer.read()

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        await self._answer.pour(take)

    def pause(self) -> None:
        self._answer.pause()

    def resume(self) -> None:
        self._answer.resume()

    def blames_request(self, body: bytes) -> bool:
        return self._answer.blames_request(body)

    def let_end(self) -> None:
        self._answer.let_end()

    def close(self) -> None:
        self._answer.close()
        if not self._over.done():
            self._over.set_result(None)


class FramedPassedAnswer(PassedAnswer):
    """Likewise, where more is known of the answer than its bytes."""

    __slots__ = ("is_framed", "kept_headers")

    def __init__(self, answer: FramedAnswer, over: asyncio.Future[None]) -> None:
        super().__init__(answer, over)
        self.kept_headers = answer.kept_headers
        self.is_framed = answer.is_framed


def passed_on(answer: Answer, over: asyncio.Future[None]) -> PassedAnswer:
    return FramedPassedAnswer(answer, over) if isinstance(answer, FramedAnswer) else PassedAnswer(answer, over)


class GatheredAnswer:
    """A good answer whose parts come one after the other, in order."""

    __slots__ = (
        "_chunks",
        "_early",
        "_ended",
        "_fault",
        "_flowing",
        "_held",
        "_held_bytes_max",
        "_resting",
        "_waiter",
        "content_type",
        "let_go",
        "reports_progress",
        "rest",
        "status",
        "usage_estimated",
    )

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._held_bytes_max = held_bytes_max
        self.status = 200
        self.content_type = "application/json"
        self.reports_progress = False
        self.usage_estimated = False
        """Whether its usage is a share in proportion, not a count."""
        self.let_go: Callable[[], None] = lambda: None
        self.rest: Callable[[bool], None] = lambda _: None
        """Told when no more is to be asked for it, and when that is over."""
        self._chunks: deque[bytes] = deque()
        self._held = self._early = 0
        self._resting = False
        self._ended = False
        self._fault: BaseException | None = None
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._waiter: asyncio.Future[None] | None = None

    # Told by the batcher

    @property
    def is_full(self) -> bool:
        return self._held >= self._held_bytes_max

    def put(self, data: bytes, *, early: int) -> None:
        """More of it; and so many bytes are held elsewhere, which have come before what goes before them."""
        self._early = early
        if data:
            self._chunks.append(data)
            self._held += len(data)
            self._wake()
        self._weigh()

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
        return self._piece()

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        while await self._flowing.wait() and (piece := await self.read()):
            if take(piece):
                return

    def pause(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def blames_request(self, body: bytes) -> bool:
        del body
        return False

    def let_end(self) -> None:
        pass

    def close(self) -> None:
        self._chunks.clear()
        self.let_go()

    def _piece(self) -> bytes:
        taken: list[bytes] = []
        size = 0
        while self._chunks and size < PIECE_BYTES:
            taken.append(self._chunks.popleft())
            size += len(taken[-1])
        self._held -= size
        self._weigh()
        return b"".join(taken)

    def _weigh(self) -> None:
        resting = self._held + self._early >= self._held_bytes_max
        if resting is not self._resting:
            self._resting = resting
            self.rest(resting)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class ToldAnswer:
    """An engine's error, as it is told to those it concerns."""

    __slots__ = ("_body", "blames", "content_type", "reports_progress", "status")
    usage_estimated = False

    def __init__(self, status: int, content_type: str, body: bytes, *, blames: bool) -> None:
        self.status = status
        self.content_type = content_type
        self.reports_progress = False
        self.blames = blames
        """Whether the engine says that what it was asked is wrong."""
        self._body = body

    def without_words(self) -> "ToldAnswer":
        return ToldAnswer(self.status, self.content_type, b"", blames=self.blames)

    async def read(self) -> bytes:
        body, self._body = self._body, b""
        return body

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        if body := await self.read():
            take(body)

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def blames_request(self, body: bytes) -> bool:
        del body
        return self.blames

    def let_end(self) -> None:
        pass

    def close(self) -> None:
        pass
