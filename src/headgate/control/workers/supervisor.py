"""How do several gateways serve one port of one machine?

This process starts them, keeps them alive and serves nobody. Each is a member of the cell that the configuration names,
with a name and an admin port of its own; the port for callers is shared, and the system gives each connection to one of
them. One that dies is started again, at once the first time and then ever later. Where none of them starts, time after
time, something is wrong that waiting does not mend, and all ends with code 1.

SIGTERM and SIGINT are handed on, and once more to hurry; SIGHUP goes to all at once. SIGUSR2 restarts the workers one
after another, each when the one before is ready, so that another version or configuration is taken up and no stream is
cut.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Final

from headgate.control.workers.process import WorkerProcess
from headgate.edge.server import reserve
from headgate.model.units import SECOND, Duration
from headgate.telemetry.log import tell

PAUSE_S: Final = 0.25
PAUSE_S_MAX: Final = 30.0
STARTS_MAX: Final = 3
"""So many starts in a row may fail for each of them before all is given up."""
SETTLED_S: Final = 10.0
"""Who was ready for so long is not taken for one that cannot start."""
BEYOND_GRACE_S: Final = 15.0
"""How long after the grace time a worker may still be there before it is killed."""


def reserve_alone(host: str, port: int) -> socket.socket:
    """Keeps the port for our workers. Raises `OSError` where anybody has it, be it another who would share it."""
    with reserve(host, port) as alone:
        # Bound and not shared, it would not be given to us where somebody listens; the port is ours to keep a moment
        # later, and whoever comes in between shares it knowingly.
        port = alone.getsockname()[1]
    return reserve(host, port, shared=True)


async def supervise(
    commands: Sequence[Sequence[str]], grace_ns: Duration, reread: Callable[[], Duration | None]
) -> int:
    """Runs a worker per command until all have left. The exit code is the worst of theirs."""
    supervisor = Supervisor(commands, grace_ns, reread)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, supervisor.leave)
    loop.add_signal_handler(signal.SIGINT, supervisor.leave)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    loop.add_signal_handler(signal.SIGUSR2, supervisor.roll)
    return await supervisor.run()


class Supervisor:
    def __init__(
        self, commands: Sequence[Sequence[str]], grace_ns: Duration, reread: Callable[[], Duration | None]
    ) -> None:
        """One worker per command. `reread` reads the configuration again: the drain grace, or None if it is unfit."""
        self._reread = reread
        self._grace_ns = grace_ns
        self._workers = [Worker(number, command, self._on_end) for number, command in enumerate(commands)]
        self._leaving = asyncio.Event()
        self._rolls = asyncio.Event()
        self._gave_up = False

    async def run(self) -> int:
        """Until all have left."""
        rolling = asyncio.create_task(self._roll_for_ever())
        keeping = [asyncio.create_task(worker.keep()) for worker in self._workers]
        leaving = asyncio.create_task(self._leaving.wait())
        await asyncio.wait([rolling, leaving, *keeping], return_when=asyncio.FIRST_COMPLETED)
        if not self._leaving.is_set():
            # A mistake of ours has ended one of these; what runs is brought to an end before it is told.
            self.leave()
        rolling.cancel()
        _, late = await asyncio.wait(keeping, timeout=self._grace_ns / SECOND + BEYOND_GRACE_S)
        for worker in self._workers if late else ():
            worker.kill()
        codes = await asyncio.gather(*keeping)
        with contextlib.suppress(asyncio.CancelledError):
            await rolling
        return 1 if self._gave_up else max(codes)

    # Signals

    def leave(self) -> None:
        self._leaving.set()
        for worker in self._workers:
            worker.leave()

    def reload(self) -> None:
        for worker in self._workers:
            worker.reload()

    def roll(self) -> None:
        """Asked for while one is under way, another follows it."""
        self._rolls.set()

    # What follows from them

    async def _roll_for_ever(self) -> None:
        while True:
            await self._rolls.wait()
            self._rolls.clear()
            grace_ns = await asyncio.to_thread(self._reread)
            if grace_ns is not None:
                self._grace_ns = grace_ns
                await self._roll_once()

    async def _roll_once(self) -> None:
        tell(logging.INFO, "workers are restarted one after another", workers=len(self._workers))
        for worker in self._workers:
            if not await worker.renew():
                tell(
                    logging.ERROR,
                    "a worker does not start; the others stay as they are; mend that and send SIGUSR2 again",
                    worker=worker.number,
                )
                return
        tell(logging.INFO, "all workers were restarted")

    def _on_end(self) -> None:
        """Gives up where nobody can start."""
        if not self._leaving.is_set() and all(worker.failed_starts >= STARTS_MAX for worker in self._workers):
            self._gave_up = True
            tell(logging.CRITICAL, "no worker starts; giving up: mend what they say above and start again")
            self.leave()


class Worker:
    """A place for one process after another."""

    def __init__(self, number: int, command: Sequence[str], on_end: Callable[[], None]) -> None:
        self.number = number
        self.failed_starts = 0
        """How often in a row it has ended before it was ready."""
        self._failures = 0
        """How often in a row it has ended unasked, and soon."""
        self._command = command
        self._on_end = on_end
        self._process: WorkerProcess | None = None
        self._leaves = asyncio.Event()
        self._changed = asyncio.Condition()
        self._ready_runs = 0
        """How many of its processes have been ready."""

    async def keep(self) -> int:
        """Starts it again and again, until it is to leave. The exit code of the last."""
        code = 0
        while not self._leaves.is_set():
            code = await self._run()
            if not self._leaves.is_set() and self._failures:
                await self._pause()
        return code

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        self._process = process = await WorkerProcess.start(self._command)
        tell(logging.INFO, "worker started", worker=self.number, pid=process.pid)
        if self._leaves.is_set():
            process.leave()
        was_ready, since = await process.ready(), loop.time()
        if was_ready:
            tell(logging.INFO, "worker is ready", worker=self.number, pid=process.pid, admin=process.admin)
            self.failed_starts = 0
            self._ready_runs += 1
            await self._tell()
        code = await process.wait()
        self._process = None
        if process.asked_to_leave:
            tell(logging.INFO, "worker has left", worker=self.number, pid=process.pid, code=code)
            self._failures = 0
        else:
            tell(logging.ERROR, "worker ended unasked", worker=self.number, pid=process.pid, code=code)
            self._failures = 1 if was_ready and loop.time() - since >= SETTLED_S else self._failures + 1
            self.failed_starts += not was_ready
            self._on_end()
        await self._tell()
        return code

    async def _pause(self) -> None:
        pause_s = min(PAUSE_S_MAX, PAUSE_S * 2 ** min(self._failures - 1, 10))
        tell(logging.WARNING, "worker is started again", worker=self.number, wait_s=pause_s)
        try:
            async with asyncio.timeout(pause_s):
                await self._leaves.wait()
        except TimeoutError:
            pass

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def renew(self) -> bool:
        """Ends this process and returns when its successor is ready; False where it does not start."""
        ready_runs, self.failed_starts = self._ready_runs, 0
        if self._process is not None:
            self._process.leave()
        async with self._changed:
            await self._changed.wait_for(lambda: self._ready_runs > ready_runs or self.failed_starts >= STARTS_MAX)
        return self._ready_runs > ready_runs

    def leave(self) -> None:
        self._leaves.set()
        if self._process is not None:
            self._process.leave()

    def reload(self) -> None:
        if self._process is not None:
            self._process.reload()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
