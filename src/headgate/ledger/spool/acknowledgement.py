"""Acknowledgements that notes were written to disk, for which requests wait."""

import asyncio
from typing import NamedTuple


class Acknowledgement:
    """Whether a batch of notes was written. Shared by all requests with a note in the batch."""

    __slots__ = ("_waiters", "written")

    def __init__(self) -> None:
        self.written: bool | None = None
        """None until the result is known."""
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> bool:
        while self.written is None:
            # A future for each request, so that cancelling one request does not cancel the others.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return self.written

    def settle(self, *, written: bool) -> None:
        """Only the first call counts, because requests have acted on it."""
        if self.written is not None:
            return
        self.written = written
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


class Note(NamedTuple):
    """A note of an attempt that is about to be sent."""

    slot: int
    acknowledgement: Acknowledgement
