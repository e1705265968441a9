"""How do several gateways serve one port of one machine?

This process starts them, keeps them alive and serves nobody. Each is a member of the cell that the configuration names,
with a name and an admin port of its own; the port for callers is shared, and the system gives each connection to one of
them. One that dies is started again, at once the first time and then ever later. Where none of them starts, time after
time, something is wrong that waiting does not mend, and all ends with code 1.

SIGTERM and SIGINT are handed on, and once more to hurry; SIGHUP goes to all at once. SIGUSR2 restarts the workers one
after another, each when the one before is ready, so that another version or configuration is taken up and no stream is
cut.
"""

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headgate.cli.serve import first_settings, read_settings, say_what_is_taken
from headgate.cli.worker_process import WorkerProcess
from headgate.model.units import SECOND

if TYPE_CHECKING:
    from headgate.config.settings import Settings

PAUSE_S: Final = 0.25
PAUSE_S_MAX: Final = 30.0
STARTS_MAX: Final = 3
"""So many starts in a row may fail for each of them before all is given up."""
SETTLED_S: Final = 10.0
"""Who was ready for so long is not taken for one that cannot start."""
BEYOND_GRACE_S: Final = 15.0
"""How long after the grace time a worker may still be there before it is killed."""


def as_worker(settings: "Settings", *, worker: int, workers: int, port: int) -> "Settings":
    """What one of them makes of the file: an admin port of its own, and at least as many members as there are here."""
    from headgate.config.settings import Address

    admin = settings.admin_listen
    return replace(
        settings,
        listen=Address(settings.listen.host, settings.listen.port or port),
        admin_listen=Address(admin.host, admin.port and admin.port + worker),
        scaler_listen=settings.scaler_listen if worker == 0 else None,
        cell=settings.cell and replace(settings.cell, members=max(settings.cell.members, workers)),
    )


def supervise(args: argparse.Namespace) -> int:
    """The exit code is the worst of theirs."""
    import uvloop

    def read() -> "Settings":
        return read_settings(args.file)

    settings = first_settings(args.file, read)
    if settings is None:
        return 1
    if wrong := _wrong(settings, args.file, args.workers):
        print(f"headgate: {wrong}", file=sys.stderr)
        return 1
    try:
        reserved = reserve_alone(*settings.listen)
    except OSError as error:
        say_what_is_taken(error, args.file)
        return 1
    with reserved:
        return uvloop.run(_supervise(args, settings, read, reserved.getsockname()[1]))


def reserve_alone(host: str, port: int) -> socket.socket:
    """Keeps the port for our workers. Raises `OSError` where anybody has it, be it another who would share it."""
    from headgate.edge.server import reserve

    with reserve(host, port) as alone:
        # Bound and not shared, it would not be given to us where somebody listens; the port is ours to keep a moment
        # later, and whoever comes in between shares it knowingly.
        port = alone.getsockname()[1]
    return reserve(host, port, shared=True)


async def _supervise(args: argparse.Namespace, settings: "Settings", read: "Callable[[], Settings]", port: int) -> int:
    supervisor = Supervisor(args, settings, read, port)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, supervisor.leave)
    loop.add_signal_handler(signal.SIGINT, supervisor.leave)
    loop.add_signal_handler(signal.SIGHUP, supervisor.reload)
    loop.add_signal_handler(signal.SIGUSR2, supervisor.roll)
    return await supervisor.run()


class Supervisor:
    def __init__(
        self, args: argparse.Namespace, settings: "Settings", read: "Callable[[], Settings]", port: int
    ) -> None:
        self._read = read
        self._file: Path = args.file
        self._grace_ns = settings.drain_grace_ns
        self._workers = [Worker(number, _arguments(args, number, port), self._on_end) for number in range(args.workers)]
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
        from headgate.config.problems import ConfigErrors
        from headgate.telemetry.log import tell

        while True:
            await self._rolls.wait()
            self._rolls.clear()
            try:
                settings = await asyncio.to_thread(self._read)
            except ConfigErrors as errors:
                for problem in errors.problems:
                    tell(logging.WARNING, "the new configuration is wrong", problem=problem)
                tell(logging.WARNING, "no worker is restarted; mend the file and send SIGUSR2 again", file=self._file)
                continue
            if wrong := _wrong(settings, self._file, len(self._workers)):
                tell(logging.WARNING, "no worker is restarted", problem=wrong)
                continue
            self._grace_ns = settings.drain_grace_ns
            await self._roll_once()

    async def _roll_once(self) -> None:
        from headgate.telemetry.log import tell

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
        from headgate.telemetry.log import tell

        if not self._leaving.is_set() and all(worker.failed_starts >= STARTS_MAX for worker in self._workers):
            self._gave_up = True
            tell(logging.CRITICAL, "no worker starts; giving up: mend what they say above and start again")
            self.leave()


class Worker:
    """A place for one process after another."""

    def __init__(self, number: int, arguments: list[str], on_end: Callable[[], None]) -> None:
        self.number = number
        self.failed_starts = 0
        """How often in a row it has ended before it was ready."""
        self._failures = 0
        """How often in a row it has ended unasked, and soon."""
        self._arguments = arguments
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
        from headgate.telemetry.log import tell

        loop = asyncio.get_running_loop()
        self._process = process = await WorkerProcess.start(self._arguments)
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
        from headgate.telemetry.log import tell

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


def _arguments(args: argparse.Namespace, worker: int, port: int) -> list[str]:
    which = [f"--workers={args.workers}", f"--worker={worker}", f"--port={port}"]
    return [str(args.file), f"--log-level={args.log_level}", f"--log-format={args.log_format}", *which]


def _wrong(settings: "Settings", file: Path, workers: int) -> str | None:
    """Why they cannot run by this file, with the next step."""
    if settings.cell is None:
        return (
            f"{file} names no cell, and workers that do not know of each other would give the same place twice; "
            "add cell: {store: redis://HOST:PORT} to it, or leave --workers out"
        )
    first = settings.admin_listen.port
    if first == 0:
        return None
    ports = range(first, first + workers)
    taken = f"the admin listeners of {workers} workers take the ports {ports[0]} to {ports[-1]}"
    if ports[-1] > 65_535:
        return f"{taken}, which do not exist; choose a lower admin_listen in {file}"
    others = {"listen": settings.listen, "scaler_listen": settings.scaler_listen}
    for setting, address in others.items():
        if address is not None and address.port in ports:
            return f"{taken}, and {setting} is among them; choose another port for it in {file}"
    return None
