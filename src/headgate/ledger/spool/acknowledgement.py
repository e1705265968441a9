"""Acknowledgements of journal entries. A request waits for its acknowledgement before it is sent."""

import asyncio
from typing import NamedTuple


class Acknowledgement:
    """Result of writing a batch of journal entries, shared by all requests with an entry in the batch."""

    __slots__ = ("_waiters", "written")

    def __init__(self) -> None:
        self.written: bool | None = None
        """Result of the write; None until it is known."""
        self._waiters: list[asyncio.Future[None]] = []

    def waiter(self) -> asyncio.Future[None]:
        """Returns a future that is done once `written` is known.

        Each request has its own future, so that cancelling one does not cancel the others.
        """
        waiter = asyncio.get_running_loop().create_future()
        if self.written is None:
            self._waiters.append(waiter)
        else:
            waiter.set_result(None)
        return waiter

    async def wait(self) -> bool:
        while self.written is None:
            await self.waiter()
        return self.written

    def settle(self, *, written: bool) -> None:
        """Sets the result. Only the first call has an effect, because requests act on it."""
        if self.written is not None:
            return
        self.written = written
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


class PendingEntry(NamedTuple):
    """Journal entry for an attempt that is about to be sent."""

    slot: int
    acknowledgement: Acknowledgement
