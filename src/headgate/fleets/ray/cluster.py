"""How does the gateway have processes run in a Ray cluster without importing Ray?

A driver (driver/) is run by an interpreter that has Ray, and is spoken to in lines of JSON. If the driver ends,
Ray ends all that it had started, and every process that was held here counts as ended; whoever is run next starts
another driver.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headgate.fleets.processes.child import Child
from headgate.fleets.ray.options import RayOptions

DRIVER: Final = Path(__file__).with_name("driver")
"""Run, and never imported: it needs Ray. As a folder, since beside it stands a ray.py that it must not find."""
UP_S_MAX: Final = 120.0
"""A driver that has no connection to the cluster after so long is given up."""
LEAVE_S_MAX: Final = 15.0
LINE_BYTES_MAX: Final = 64 * 1024
LOG_TAIL_BYTES: Final = 600
GONE: Final = -1
"""The exit status of a process of which nobody knows how it ended."""


class RayChild(Child):
    """One process somewhere in the cluster, from being ordered to its end."""

    def __init__(self, run: int, cluster: "RayCluster") -> None:
        self._run = run
        self._cluster = cluster
        self._pid = 0
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.url = ""
        """Empty until it runs somewhere."""
        self.waits_why = ""
        """Why it does not, where Ray has had no room for it for a while."""
        self.problem = ""
        """How it ended, where there is more to say than a status."""
        self.hint = ""

    @property
    def pid(self) -> int:
        """On the node where it runs."""
        return self._pid

    async def wait(self) -> int:
        return await asyncio.shield(self._status)

    async def end(self, *, within_s: float) -> None:
        if not self._status.done():
            self._cluster.end(self._run, within_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s + LEAVE_S_MAX):
                    await self.wait()

    async def bury(self) -> None:
        await self.end(within_s=0.0)

    # What the driver tells

    def placed(self, host: str, port: int, pid: int, actor: str) -> None:
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._pid = pid
        self.hint = f"; its output: ray logs actor --id {actor}"

    def ended(self, status: int, problem: str = "") -> None:
        self.problem = problem
        if not self._status.done():
            self._status.set_result(status)


class RayCluster:
    """One driver at a time, and what runs by it."""

    def __init__(self, options: RayOptions, *, log: Path, leave_s_max: float = LEAVE_S_MAX) -> None:
        self._options = options
        self._leave_s_max = leave_s_max
        self._log = log
        self._starting: asyncio.Task[None] | None = None
        self._driver: asyncio.subprocess.Process | None = None
        self._listening: set[asyncio.Task[None]] = set()
        """To the driver, and to those before it that have yet to be gone."""
        self._children: dict[int, RayChild] = {}
        self._runs = 0

    @property
    def pid(self) -> int | None:
        return None if self._driver is None else self._driver.pid

    async def run(self, command: Sequence[str], environment: Mapping[str, str]) -> RayChild:
        """Orders a process; it has no place yet. Raises `OSError` where there is no cluster to order it from."""
        while self._driver is None:
            if self._starting is None:
                self._starting = asyncio.create_task(self._start())
            # Whoever asks may lose patience; others wait for the same driver.
            await asyncio.shield(self._starting)
        self._runs += 1
        child = self._children[self._runs] = RayChild(self._runs, self)
        needs = {"cpus": self._options.cpus, "gpus": self._options.gpus, "resources": dict(self._options.resources)}
        self._order({"run": self._runs, "command": list(command), "environment": dict(environment), **needs})
        return child

    def end(self, run: int, within_s: float) -> None:
        self._order({"end": run, "within_s": within_s})

    async def stop(self) -> None:
        """Has the driver give up everything and leave."""
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
        if self._listening:
            # What of these ended by a mistake of ours is told by the loop, and not to whoever stops us.
            await asyncio.wait(self._listening)

    def _order(self, order: Mapping[str, object]) -> None:
        driver = self._driver
        # Of one that has just ended, all that it held is about to be told to have ended.
        if driver is not None and driver.stdin is not None and not driver.stdin.is_closing():
            driver.stdin.write(msgspec.json.encode(order) + b"\n")

    async def _start(self) -> None:
        try:
            driver = await self._spawn()
        finally:
            self._starting = None
        self._driver = driver
        self._listening.add(listening := asyncio.create_task(self._listen(driver)))
        listening.add_done_callback(self._listening.discard)

    async def _spawn(self) -> asyncio.subprocess.Process:
        """A driver that has a connection to the cluster."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            driver = await asyncio.create_subprocess_exec(
                *(self._options.python, str(DRIVER), "--address", self._options.address),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                limit=LINE_BYTES_MAX,
                # What a terminal sends to the gateway's group is for the gateway to pass on.
                start_new_session=True,
            )
        try:
            await self._until_up(driver)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                driver.kill()
            await driver.wait()
            raise
        return driver

    async def _until_up(self, driver: asyncio.subprocess.Process) -> None:
        assert driver.stdout is not None
        try:
            async with asyncio.timeout(UP_S_MAX):
                line = await driver.stdout.readline()
        except TimeoutError:
            raise OSError(f"Ray at {self._options.address!r} did not answer within {UP_S_MAX:g} s") from None
        news: dict[str, Any] = msgspec.json.decode(line) if line else {}
        if "up" not in news:
            why = news.get("failed") or f"the driver ended{self._tail()}"
            raise OSError(f"{why}; see that {self._options.python} has the cluster's Ray and the address is right")

    async def _listen(self, driver: asyncio.subprocess.Process) -> None:
        """Until the driver has no more to tell, which is its end."""
        assert driver.stdout is not None
        try:
            while line := await driver.stdout.readline():
                self._hear(msgspec.json.decode(line))
        except Exception:
            # Nobody would hear what becomes of its engines; with the driver they end too.
            with contextlib.suppress(ProcessLookupError):
                driver.kill()
            raise
        finally:
            self._driver = None
            children, self._children = self._children, {}
            for child in children.values():
                child.ended(GONE, f"the Ray driver ended{self._tail()}")
            await driver.wait()

    def _hear(self, news: dict[str, Any]) -> None:
        match news:
            case {"placed": int(run), "host": str(host), "port": int(port), "pid": int(pid), "actor": str(actor)}:
                self._children[run].placed(host, port, pid, actor)
            case {"waits": int(run), "why": str(why)}:
                self._children[run].waits_why = why
            case {"ended": int(run), "status": int(status)}:
                self._children.pop(run).ended(status)
            case {"ended": int(run), "problem": str(problem)}:
                self._children.pop(run).ended(GONE, problem)
            case _:
                raise AssertionError(f"the driver says {news!r}")

    def _tail(self) -> str:
        """The end of the driver's log, as far as there is one."""
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES))
                said = log.read().decode(errors="replace").strip()
        except OSError:
            return ""
        return f"; its log {self._log} ends in: {said}" if said else ""
