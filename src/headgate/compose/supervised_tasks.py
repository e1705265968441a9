"""A gateway process's background tasks, and the internal error that ends the process."""

import asyncio
from collections.abc import Callable, Coroutine

from headgate.telemetry.log import log


class SupervisedTasks:
    """Logs and keeps the process's first internal error. Calls `shut_down` for every internal error.

    After an internal error, the state of the process can no longer be trusted, and the scheduler makes no more
    decisions about open requests. The server ends them, either with status 500 if the response has not started, or by
    truncating the response in a way that clients can detect.
    """

    def __init__(self, shut_down: Callable[[], None]) -> None:
        self._shut_down = shut_down
        self._background_tasks: set[asyncio.Future[None]] = set()
        self.fault: BaseException | None = None

    def run_in_background(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background_tasks.add(task)
        task.add_done_callback(self._background_tasks.discard)
        task.add_done_callback(self.on_task_done)

    def on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_fault(error)

    def on_fault(self, error: BaseException) -> None:
        if self.fault is None:
            log.critical("internal error; exiting immediately. This is a bug in Headgate", exc_info=error)
            self.fault = error
        self._shut_down()
