"""How does a caller get a whole answer from an engine that is better asked for a stream?

Like any answer that is not streamed, this one begins when it is known to the end: until then an attempt can be made
elsewhere, and the time to the first token is not told. Whoever gives up waiting has the engine's connection cut at
once. What the engine answers without a stream, as its errors, passes as it is.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from headgate.engines.connection import HttpAnswer
from headgate.model.ticket import Api
from headgate.ports.engine import Answer, EngineFault
from headgate.wire.joining import BrokenStream, Joined, Joiner

PIECE_BYTES: Final = 64 * 1024
"""As much is handed over at a time, so that a caller who does not read is not sent it all."""


async def joined(answer: HttpAnswer, api: Api) -> Answer:
    """The answer that the stream adds up to, once it has ended. Raises `EngineFault`."""
    if answer.status >= 300 or not answer.content_type.lower().startswith("text/event-stream"):
        return answer
    joiner = Joiner(api)
    try:
        await answer.pour(joiner.take)
        whole = joiner.conclude()
    except BrokenStream as broken:
        answer.close()
        raise EngineFault(str(broken)) from None
    except BaseException:
        answer.close()
        raise
    answer.let_end()
    return JoinedAnswer(answer, whole)


class JoinedAnswer:
    """A whole answer that is at hand."""

    __slots__ = ("_at", "_body", "_flowing", "_stream", "content_type", "reports_progress", "status")

    def __init__(self, stream: HttpAnswer, whole: Joined) -> None:
        self.status = whole.status
        self.content_type = "application/json"
        self.reports_progress = False
        self._stream = stream
        self._body = whole.body
        self._at = 0
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def read(self) -> bytes:
        piece = self._body[self._at : self._at + PIECE_BYTES]
        self._at += len(piece)
        return piece

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        while await self._flowing.wait() and (piece := await self.read()):
            if take(piece):
                return

    def pause(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def blames_request(self, body: bytes) -> bool:
        return self._stream.dialect.blames_request(self.status, body)

    def let_end(self) -> None:
        pass

    def close(self) -> None:
        self._stream.close()
