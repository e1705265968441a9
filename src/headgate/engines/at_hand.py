"""What is an answer that needs no more of its engine?

One that is known to the end before the caller gets any of it: put together from a stream, or given here because the
engine has no path for what is asked.
"""

import asyncio
from collections.abc import Callable
from typing import Final

PIECE_BYTES: Final = 64 * 1024
"""As much is handed over at a time, so that a caller who does not read is not sent it all."""


class AtHandAnswer:
    """A whole answer, without a connection behind it."""

    __slots__ = (
        "_at",
        "_blames",
        "_body",
        "_flowing",
        "content_type",
        "is_framed",
        "kept_headers",
        "reports_progress",
        "status",
    )
    usage_estimated = False

    def __init__(self, status: int, body: bytes, *, blames: bool = False) -> None:
        self.status = status
        self.content_type = "application/json"
        self.kept_headers: tuple[tuple[bytes, bytes], ...] = ()
        self.is_framed = True
        self.reports_progress = False
        self._blames = blames
        self._body = body
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
        return self._blames

    def let_end(self) -> None:
        pass

    def close(self) -> None:
        pass
