"""What a request that waits for the disk waits for."""

import asyncio
from typing import NamedTuple


class Acknowledgement:
    """Says whether a batch of notes was written. Shared by all requests with a note in the batch."""

    __slots__ = ("_waiters", "written")

    def __init__(self) -> None:
        self.written: bool | None = None
        """None while it is not known."""
        self._waiters: list[asyncio.Future[None]] = []

    async def wait(self) -> bool:
        while self.written is None:
            # One for each: a request that is cancelled while it waits must not cancel the others.
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return self.written

    def settle(self, *, written: bool) -> None:
        """The first answer counts: requests have acted on it."""
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
