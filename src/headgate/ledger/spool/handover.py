"""Hands the spool's file operations to a writer thread, so that the event loop never waits for the disk.

The thread runs one batch at a time. Work that is added in the meantime forms the next batch, so that under load many
requests share the cost of one wakeup. The work of a batch runs in order; its results return to the event loop together.

If a batch takes longer than `stall_s`, the disk hangs. The owner is notified then, and again when the batch ends.
Nothing is cancelled: the thread stays in its system call until the disk responds or the process ends.
"""

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, NamedTuple, ParamSpec, TypeVar

Args = ParamSpec("Args")
Result = TypeVar("Result")

STALL_S: Final = 0.5
"""Time after which a write counts as hanging. Writes to the page cache take microseconds, and at most 0.2 s when the
kernel throttles a writer."""
_SOON_S: Final = 0.002
"""Maximum delay before work without a waiting request is handed over, usually together with other work."""
_LATE_S: Final = 0.1
"""If a check runs this late, the process was paused; the thread then gets the same time again."""


class Work(NamedTuple):
    run: Callable[[], None]
    """Called in the writer thread. May raise `OSError`."""
    done: Callable[[OSError | None], None]
    """Called in the event loop with the exception of `run`, or None."""


Results = Sequence[tuple[Work, OSError | None]]


class Handover:
    """Created inside a running event loop."""

    def __init__(
        self,
        collect: Callable[[], Sequence[Work]],
        *,
        on_stalled: Callable[[], None],
        on_resumed: Callable[[float], None],
        stall_s: float = STALL_S,
    ) -> None:
        """`collect` returns the work that has been added since it was last called."""
        self._collect = collect
        self._on_stalled, self._on_resumed = on_stalled, on_resumed
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._batches: SimpleQueue[Sequence[Work] | None] = SimpleQueue()
        self._results: SimpleQueue[Results] = SimpleQueue()
        self._scheduled = False
        self._later: asyncio.TimerHandle | None = None
        self._busy = False
        self._since = 0.0
        """When the thread received its current batch."""
        self._timer: asyncio.TimerHandle | None = None
        self._excused = False
        self._idle: list[asyncio.Future[None]] = []
        self.stalled = False
        threading.Thread(target=self._write, name="headgate-spool", daemon=True).start()

    def wake(self) -> None:
        """Hands added work over as soon as the thread is free."""
        if not self._scheduled and not self._busy:
            self._scheduled = True
            self._loop.call_soon(self._hand)

    def wake_soon(self) -> None:
        """Hands over added work that no request waits for, after a short delay."""
        if self._later is None and not self._scheduled and not self._busy:
            self._later = self._loop.call_later(_SOON_S, self._hand)

    async def settled(self) -> None:
        """Waits until all work that was added so far has been done, or has failed."""
        if self._later is not None:
            self._hand()
        while self._scheduled or self._busy:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    def close(self) -> None:
        """Ends the thread after its current work."""
        for timer in (self._timer, self._later):
            if timer is not None:
                timer.cancel()
        self._batches.put(None)

    def drain(self, limit_s: float) -> bool:
        """Runs all work and blocks the event loop meanwhile. False if that takes longer than `limit_s`."""
        until = monotonic() + limit_s
        while True:
            if self._busy:
                try:
                    results = self._results.get(timeout=max(0.0, until - monotonic()))
                except Empty:
                    return False
                self._settle(results)
            elif works := self._collect():
                self._give(works)
            else:
                return True

    def _hand(self) -> None:
        self._scheduled = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._busy:
            return
        if works := self._collect():
            self._give(works)
            if self._timer is None:
                self._timer = self._loop.call_later(self._stall_s, self._check)
            return
        idle, self._idle = self._idle, []
        for waiter in idle:
            if not waiter.done():
                waiter.set_result(None)

    def _give(self, works: Sequence[Work]) -> None:
        self._busy, self._excused, self._since = True, False, self._loop.time()
        self._batches.put(works)

    def _acknowledge(self) -> None:
        while not self._results.empty():
            self._settle(self._results.get())
        self._hand()

    def _settle(self, results: Results) -> None:
        self._busy = False
        for work, error in results:
            work.done(error)
        if self.stalled:
            self.stalled = False
            self._on_resumed(self._loop.time() - self._since)

    def _check(self) -> None:
        """Reports a stall if the current batch has taken too long."""
        self._timer = None
        if not self._busy or self.stalled:
            return
        overdue_s = self._loop.time() - self._since - self._stall_s
        if overdue_s < 0 or not self._results.empty():
            self._timer = self._loop.call_later(max(-overdue_s, 0.001), self._check)
        elif overdue_s > _LATE_S and not self._excused:
            self._excused = True
            self._timer = self._loop.call_later(_LATE_S, self._check)
        else:
            self.stalled = True
            self._on_stalled()

    # In the thread

    def _write(self) -> None:
        while (works := self._batches.get()) is not None:
            self._results.put([(work, _error_of(work)) for work in works])
            try:
                self._loop.call_soon_threadsafe(self._acknowledge)
            except RuntimeError:
                # The event loop has been closed.
                return


def _error_of(work: Work) -> OSError | None:
    try:
        work.run()
    except OSError as error:
        return error
    except MemoryError:
        return OSError(errno.ENOMEM, "Cannot allocate memory")
    return None


async def in_thread(function: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs) -> Result:
    """Like `asyncio.to_thread`, but in a new thread, so that a hanging disk blocks neither other work nor the exit."""
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  Raised again where it is awaited.
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="headgate-spool-aside", daemon=True).start()
    return await asyncio.wrap_future(future)
