"""Supervisor that runs several gateways on one port of a machine.

The supervisor starts the workers and restarts them if they exit, but serves no requests itself. Each worker is a member
of the cell in the configuration, with its own name and admin port. All workers share the client port, and the kernel
assigns each connection to one of them. A worker that exits unexpectedly is restarted after 0.25 s. This backoff doubles
with each consecutive failure, up to 30 s. If every worker has failed to start three times in a row, the supervisor
exits with code 1.

SIGTERM and SIGINT are forwarded to the workers. A second signal makes them exit faster. SIGHUP is forwarded to all
workers at the same time. SIGUSR2 restarts the workers one after another, each when the previous one is ready, so that a
new version or configuration takes effect without interrupting streams.
"""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Final

from headgate.control.workers.process import WorkerProcess
from headgate.edge.listener import reserve
from headgate.model.units import SECOND, Duration
from headgate.telemetry.log import log_event

RESTART_DELAY_S: Final = 0.25
RESTART_DELAY_S_MAX: Final = 30.0
FAILED_STARTS_MAX: Final = 3
"""The supervisor exits once every worker has failed to start this many times in a row."""
STABLE_AFTER_S: Final = 10.0
"""How long a worker must be ready before it counts as started successfully, in seconds."""
KILL_AFTER_GRACE_S: Final = 15.0
"""Time in seconds between the end of the drain grace period and killing a worker."""


def reserve_exclusive(host: str, port: int) -> socket.socket:
    """Reserves the port for the workers. Raises `OSError` if another process is using it, even as a shared port."""
    with reserve(host, port) as alone:
        # Binding without sharing fails if another process is listening. The shared reservation follows immediately. A
        # process that binds in between does so with sharing enabled.
        port = alone.getsockname()[1]
    return reserve(host, port, shared=True)


async def supervise(
    commands: Sequence[Sequence[str]], grace_ns: Duration, reload_settings: Callable[[], Duration | None]
) -> int:
    """Runs one worker per command until all have exited. Returns the highest exit code."""
    supervisor = Supervisor(commands, grace_ns, reload_settings)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, supervisor.shut_down)
    loop.add_signal_handler(signal.SIGINT, supervisor.shut_down)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    loop.add_signal_handler(signal.SIGUSR2, supervisor.rolling_restart)
    return await supervisor.run()


class Supervisor:
    def __init__(
        self, commands: Sequence[Sequence[str]], grace_ns: Duration, reload_settings: Callable[[], Duration | None]
    ) -> None:
        """Creates one worker per command. `reload_settings` returns the drain grace period, or None if the file is
        invalid.
        """
        self._reread = reload_settings
        self._grace_ns = grace_ns
        self._workers = [Worker(number, command, self._on_worker_end) for number, command in enumerate(commands)]
        self._leaving = asyncio.Event()
        self._rolls = asyncio.Event()
        self._gave_up = False

    async def run(self) -> int:
        """Runs until all workers have exited."""
        rolling = asyncio.create_task(self._run_rolling_restarts())
        keeping = [asyncio.create_task(worker.run()) for worker in self._workers]
        leaving = asyncio.create_task(self._leaving.wait())
        await asyncio.wait([rolling, leaving, *keeping], return_when=asyncio.FIRST_COMPLETED)
        if not self._leaving.is_set():
            # A task failed with an internal error. Stop the workers before raising it.
            self.shut_down()
        rolling.cancel()
        _, late = await asyncio.wait(keeping, timeout=self._grace_ns / SECOND + KILL_AFTER_GRACE_S)
        for worker in self._workers if late else ():
            worker.kill()
        codes = await asyncio.gather(*keeping)
        with contextlib.suppress(asyncio.CancelledError):
            await rolling
        return 1 if self._gave_up else max(codes)

    # Signals

    def shut_down(self) -> None:
        self._leaving.set()
        for worker in self._workers:
            worker.shut_down()

    def reload(self) -> None:
        for worker in self._workers:
            worker.reload()

    def rolling_restart(self) -> None:
        """Requests a rolling restart. If one is already in progress, another one follows."""
        self._rolls.set()

    # Rolling restart

    async def _run_rolling_restarts(self) -> None:
        while True:
            await self._rolls.wait()
            self._rolls.clear()
            grace_ns = await asyncio.to_thread(self._reread)
            if grace_ns is not None:
                self._grace_ns = grace_ns
                await self._restart_workers()

    async def _restart_workers(self) -> None:
        log_event(logging.INFO, "rolling restart started", workers=len(self._workers))
        for worker in self._workers:
            if not await worker.restart():
                log_event(
                    logging.ERROR,
                    "worker failed to start; the other workers keep running; fix the problem and send SIGUSR2 again",
                    worker=worker.number,
                )
                return
        log_event(logging.INFO, "rolling restart finished")

    def _on_worker_end(self) -> None:
        """Stops the supervisor if no worker can start."""
        if not self._leaving.is_set() and all(worker.failed_starts >= FAILED_STARTS_MAX for worker in self._workers):
            self._gave_up = True
            log_event(logging.CRITICAL, "no worker could start; exiting; fix the problems logged above and start again")
            self.shut_down()


class Worker:
    """Runs one worker process after another."""

    def __init__(self, number: int, command: Sequence[str], on_end: Callable[[], None]) -> None:
        self.number = number
        self.failed_starts = 0
        """Number of consecutive runs that ended before the worker was ready."""
        self._failures = 0
        """Number of consecutive unexpected exits shortly after startup."""
        self._command = command
        self._on_end = on_end
        self._process: WorkerProcess | None = None
        self._shutting_down = asyncio.Event()
        self._changed = asyncio.Condition()
        self._ready_runs = 0
        """Number of runs that became ready."""

    async def run(self) -> int:
        """Restarts the process until the worker is asked to exit. Returns the most recent exit code."""
        code = 0
        while not self._shutting_down.is_set():
            code = await self._run_process()
            if not self._shutting_down.is_set() and self._failures:
                await self._wait_restart()
        return code

    async def _run_process(self) -> int:
        loop = asyncio.get_running_loop()
        self._process = process = await WorkerProcess.start(self._command)
        log_event(logging.INFO, "worker started", worker=self.number, pid=process.pid)
        if self._shutting_down.is_set():
            process.terminate()
        was_ready, since = await process.wait_ready(), loop.time()
        if was_ready:
            log_event(logging.INFO, "worker is ready", worker=self.number, pid=process.pid, admin=process.admin)
            self.failed_starts = 0
            self._ready_runs += 1
            await self._notify()
        code = await process.wait()
        self._process = None
        if process.is_terminating:
            log_event(logging.INFO, "worker exited", worker=self.number, pid=process.pid, code=code)
            self._failures = 0
        else:
            log_event(logging.ERROR, "worker exited unexpectedly", worker=self.number, pid=process.pid, code=code)
            self._failures = 1 if was_ready and loop.time() - since >= STABLE_AFTER_S else self._failures + 1
            self.failed_starts += not was_ready
            self._on_end()
        await self._notify()
        return code

    async def _wait_restart(self) -> None:
        pause_s = min(RESTART_DELAY_S_MAX, RESTART_DELAY_S * 2 ** min(self._failures - 1, 10))
        log_event(logging.WARNING, "restarting worker", worker=self.number, wait_s=pause_s)
        try:
            async with asyncio.timeout(pause_s):
                await self._shutting_down.wait()
        except TimeoutError:
            pass

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def restart(self) -> bool:
        """Restarts the process and returns when the new one is ready. Returns false if it does not start."""
        ready_runs, self.failed_starts = self._ready_runs, 0
        if self._process is not None:
            self._process.terminate()
        async with self._changed:
            await self._changed.wait_for(
                lambda: self._ready_runs > ready_runs or self.failed_starts >= FAILED_STARTS_MAX
            )
        return self._ready_runs > ready_runs

    def shut_down(self) -> None:
        self._shutting_down.set()
        if self._process is not None:
            self._process.terminate()

    def reload(self) -> None:
        if self._process is not None:
            self._process.reload()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
