"""Runs processes in a Ray cluster without importing Ray.

A driver (`driver/`) runs in an interpreter that has Ray installed, and communicates in lines of JSON. If the driver
exits, Ray ends everything that the driver started, and all processes in this cluster count as ended. The next call to
`run` starts a new driver.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headgate.fleets.processes.child_process import ChildProcess
from headgate.fleets.ray.options import RayOptions

DRIVER: Final = Path(__file__).with_name("driver")
"""Driver program. It needs Ray, so it is run as a program and never imported. It has its own directory, so that
`fleets/ray` is not on its import path.
"""
CONNECT_S_MAX: Final = 120.0
"""Maximum time for a driver to connect to the cluster, in seconds."""
EXIT_S_MAX: Final = 15.0
LINE_BYTES_MAX: Final = 64 * 1024
LOG_TAIL_BYTES: Final = 600
UNKNOWN_EXIT_STATUS: Final = -1
"""Exit status reported for a process whose real status is unknown."""


class RayChild(ChildProcess):
    """One process in the cluster, from the request to start it until it exits."""

    def __init__(self, run: int, cluster: "RayCluster") -> None:
        self._run = run
        self._cluster = cluster
        self._pid = 0
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.address = ""
        """Host and port of the process. Empty until it is running on a node."""
        self.pending_reason = ""
        """Why the process is pending, if Ray has been short of capacity for a while."""
        self.problem = ""
        """Details about the exit, if any are known besides the status."""
        self.hint = ""

    @property
    def pid(self) -> int:
        """Process ID on its node."""
        return self._pid

    async def wait(self) -> int:
        return await asyncio.shield(self._status)

    async def terminate(self, *, within_s: float) -> None:
        if not self._status.done():
            self._cluster.end(self._run, within_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s + EXIT_S_MAX):
                    await self.wait()

    async def kill_group(self) -> None:
        await self.terminate(within_s=0.0)

    # Called for messages from the driver

    def placed(self, host: str, port: int, pid: int, actor: str) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._pid = pid
        self.hint = f"; for its output, run: ray logs actor --id {actor}"

    def ended(self, status: int, problem: str = "") -> None:
        self.problem = problem
        if not self._status.done():
            self._status.set_result(status)


class RayCluster:
    """One driver at a time, and the processes that it runs."""

    def __init__(self, options: RayOptions, *, log: Path, leave_s_max: float = EXIT_S_MAX) -> None:
        self._options = options
        self._leave_s_max = leave_s_max
        self._log = log
        self._starting: asyncio.Task[None] | None = None
        self._driver: asyncio.subprocess.Process | None = None
        self._reader_tasks: set[asyncio.Task[None]] = set()
        """Readers of the current driver and of previous drivers that have not exited yet."""
        self._children: dict[int, RayChild] = {}
        self._runs = 0

    @property
    def pid(self) -> int | None:
        return None if self._driver is None else self._driver.pid

    async def run(self, command: Sequence[str], environment: Mapping[str, str]) -> RayChild:
        """Requests a process, which is not yet placed on a node. Raises `OSError` if the cluster is unreachable."""
        while self._driver is None:
            if self._starting is None:
                self._starting = asyncio.create_task(self._start())
            # The caller may be cancelled while other callers are waiting for the same driver.
            await asyncio.shield(self._starting)
        self._runs += 1
        child = self._children[self._runs] = RayChild(self._runs, self)
        needs = {"cpus": self._options.cpus, "gpus": self._options.gpus, "resources": dict(self._options.resources)}
        self._send_command({"run": self._runs, "command": list(command), "environment": dict(environment), **needs})
        return child

    def end(self, run: int, within_s: float) -> None:
        self._send_command({"end": run, "within_s": within_s})

    async def stop(self) -> None:
        """Makes the driver stop everything and exit."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        if (driver := self._driver) is not None:
            assert driver.stdin is not None
            driver.stdin.close()
            try:
                async with asyncio.timeout(self._leave_s_max):
                    await driver.wait()
            except TimeoutError:
                driver.kill()
        if self._reader_tasks:
            # The event loop reports internal errors from these tasks, so `stop` does not raise them.
            await asyncio.wait(self._reader_tasks)

    def _send_command(self, order: Mapping[str, object]) -> None:
        driver = self._driver
        # If the driver has just exited, its processes will shortly be reported as exited.
        if driver is not None and driver.stdin is not None and not driver.stdin.is_closing():
            driver.stdin.write(msgspec.json.encode(order) + b"\n")

    async def _start(self) -> None:
        try:
            driver = await self._spawn()
        finally:
            self._starting = None
        self._driver = driver
        self._reader_tasks.add(listening := asyncio.create_task(self._read_messages(driver)))
        listening.add_done_callback(self._reader_tasks.discard)

    async def _spawn(self) -> asyncio.subprocess.Process:
        """Starts a driver and waits until it is connected to the cluster."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            driver = await asyncio.create_subprocess_exec(
                *(self._options.python, str(DRIVER), "--address", self._options.address),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES_MAX,
                # The gateway forwards signals that the terminal sends to its process group.
                start_new_session=True,
            )
        try:
            await self._wait_until_connected(driver)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                driver.kill()
            await driver.wait()
            raise
        return driver

    async def _wait_until_connected(self, driver: asyncio.subprocess.Process) -> None:
        assert driver.stdout is not None
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                line = await driver.stdout.readline()
        except TimeoutError:
            raise OSError(f"Ray at {self._options.address!r} did not respond within {CONNECT_S_MAX:g} s") from None
        news: dict[str, Any] = msgspec.json.decode(line) if line else {}
        if "up" not in news:
            why = news.get("failed") or f"the driver exited{self._log_tail()}"
            raise OSError(f"{why}; check the address, and that {self._options.python} has the cluster's Ray version")

    async def _read_messages(self, driver: asyncio.subprocess.Process) -> None:
        """Handles messages until the driver exits."""
        assert driver.stdout is not None
        try:
            while line := await driver.stdout.readline():
                self._handle_message(msgspec.json.decode(line))
        except Exception:
            # Without a reader, the state of its engines is unknown. Killing the driver ends them too.
            with contextlib.suppress(ProcessLookupError):
                driver.kill()
            raise
        finally:
            self._driver = None
            children, self._children = self._children, {}
            for child in children.values():
                child.ended(UNKNOWN_EXIT_STATUS, f"the Ray driver exited{self._log_tail()}")
            await driver.wait()

    def _handle_message(self, news: dict[str, Any]) -> None:
        match news:
            case {"placed": int(run), "host": str(host), "port": int(port), "pid": int(pid), "actor": str(actor)}:
                self._children[run].placed(host, port, pid, actor)
            case {"waits": int(run), "why": str(why)}:
                self._children[run].pending_reason = why
            case {"ended": int(run), "status": int(status)}:
                self._children.pop(run).ended(status)
            case {"ended": int(run), "problem": str(problem)}:
                self._children.pop(run).ended(UNKNOWN_EXIT_STATUS, problem)
            case _:
                raise AssertionError(f"unknown message from the driver: {news!r}")

    def _log_tail(self) -> str:
        """Returns the end of the driver's log for a message; empty if there is no log."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES))
                said = log.read().decode(errors="replace").strip()
        except OSError:
            return ""
        return f"; end of the log {self._log}: {said}" if said else ""
