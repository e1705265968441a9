"""Runs the spool's file operations in a writer thread, so that the event loop never waits for the disk.

The thread runs one batch at a time. Work added in the meantime forms the next batch, so that under load, many requests
share the cost of one wakeup. The operations in a batch run in order, and their results are returned to the event loop
together.

If a batch takes longer than `stall_s`, the disk counts as hanging. The owner is notified at that point, and again when
the batch ends. Nothing is cancelled: the thread stays in its system call until the disk responds or the process exits.
"""

import asyncio
import errno
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Final, ParamSpec, Protocol, TypeVar

Args = ParamSpec("Args")
Result = TypeVar("Result")

STALL_AFTER_S: Final = 0.5
"""How long a batch may take before the disk counts as hanging.

Writes to the page cache take microseconds, or up to 0.2 s if the kernel throttles the writer.
"""
_BATCH_DELAY_S: Final = 0.002
"""Delay before handing over work that no request is waiting for. It usually joins an earlier batch."""
_PAUSED_S: Final = 0.1
"""If a check is this late, the process was probably paused, and the thread gets this much extra time."""


class DiskOperation(Protocol):
    def run(self) -> None:
        """Called in the writer thread. May raise `OSError`."""
        ...

    def finish(self, error: OSError | None) -> None:
        """Called in the event loop with the exception raised by `run`, or None."""
        ...


class DiskCall:
    """An operation that is not frequent enough for a class of its own."""

    __slots__ = ("_on_done", "_operation")

    def __init__(self, operation: Callable[[], None], on_done: Callable[[OSError | None], None]) -> None:
        self._operation, self._on_done = operation, on_done

    def run(self) -> None:
        self._operation()

    def finish(self, error: OSError | None) -> None:
        self._on_done(error)


Results = Sequence[tuple[DiskOperation, OSError | None]]
"""Finished operations and their errors."""


class DiskThread:
    """The spool's writer thread. Must be created inside a running event loop."""

    def __init__(
        self,
        collect: Callable[[], Sequence[DiskOperation]],
        *,
        on_stalled: Callable[[], None],
        on_resumed: Callable[[float], None],
        stall_s: float = STALL_AFTER_S,
    ) -> None:
        """`collect` returns the work that has been added since it was last called."""
        self._collect = collect
        self._on_stalled, self._on_resumed = on_stalled, on_resumed
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._batches: SimpleQueue[Sequence[DiskOperation] | None] = SimpleQueue()
        self._results: SimpleQueue[Results] = SimpleQueue()
        self._scheduled = False
        self._delayed: asyncio.TimerHandle | None = None
        self._busy = False
        self._since = 0.0
        """Time at which the thread received its current batch."""
        self._timer: asyncio.TimerHandle | None = None
        self._extended = False
        self._idle: list[asyncio.Future[None]] = []
        self.stalled = False
        threading.Thread(target=self._write, name="headgate-spool", daemon=True).start()

    def wake(self) -> None:
        """Hands over added work as soon as the thread is free."""
        if not self._scheduled and not self._busy:
            self._scheduled = True
            self._loop.call_soon(self._submit_waiting)

    def wake_soon(self) -> None:
        """Hands over, after a short delay, added work that no request is waiting for."""
        if self._delayed is None and not self._scheduled and not self._busy:
            self._delayed = self._loop.call_later(_BATCH_DELAY_S, self._submit_delayed)

    async def flush(self) -> None:
        """Waits until all work added so far has been done or has failed."""
        if self._delayed is not None:
            self._submit_waiting()
        while self._scheduled or self._busy:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    def close(self) -> None:
        """Ends the thread after its current work."""
        for timer in (self._timer, self._delayed):
            if timer is not None:
                timer.cancel()
        self._batches.put(None)

    def drain(self, limit_s: float) -> bool:
        """Runs all work, blocking the event loop. Returns false after `limit_s`."""
        until = monotonic() + limit_s
        while True:
            if self._busy:
                try:
                    results = self._results.get(timeout=max(0.0, until - monotonic()))
                except Empty:
                    return False
                self._finish(results)
            elif works := self._collect():
                self._submit(works)
            else:
                return True

    def _submit_delayed(self) -> None:
        # The timer is not cancelled if another batch takes its work. It is set once per interval, not once per batch.
        self._delayed = None
        self._submit_waiting()

    def _submit_waiting(self) -> None:
        self._scheduled = False
        if self._busy:
            return
        if works := self._collect():
            self._submit(works)
            if self._timer is None:
                self._timer = self._loop.call_later(self._stall_s, self._check)
            return
        idle, self._idle = self._idle, []
        for waiter in idle:
            if not waiter.done():
                waiter.set_result(None)

    def _submit(self, works: Sequence[DiskOperation]) -> None:
        self._busy, self._extended, self._since = True, False, self._loop.time()
        self._batches.put(works)

    def _acknowledge(self) -> None:
        while not self._results.empty():
            self._finish(self._results.get())
        self._submit_waiting()

    def _finish(self, results: Results) -> None:
        self._busy = False
        for work, error in results:
            work.finish(error)
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
        elif overdue_s > _PAUSED_S and not self._extended:
            self._extended = True
            self._timer = self._loop.call_later(_PAUSED_S, self._check)
        else:
            self.stalled = True
            self._on_stalled()

    # Runs in the thread

    def _write(self) -> None:
        while (works := self._batches.get()) is not None:
            self._results.put(_run(works))
            try:
                self._loop.call_soon_threadsafe(self._acknowledge)
            except RuntimeError:
                # The event loop has been closed.
                return


def _run(works: Sequence[DiskOperation]) -> Results:
    results: list[tuple[DiskOperation, OSError | None]] = []
    for work in works:
        try:
            work.run()
        except OSError as error:
            results.append((work, error))
        except MemoryError:
            results.append((work, OSError(errno.ENOMEM, "Cannot allocate memory")))
        else:
            results.append((work, None))
    return results


async def in_thread(function: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs) -> Result:
    """Like `asyncio.to_thread`, but in a new thread, so that a hanging disk does not block other work or keep the
    process from exiting.
    """
    future: Future[Result] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = function(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001  The awaiting coroutine raises it again.
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="headgate-spool-aside", daemon=True).start()
    return await asyncio.wrap_future(future)
