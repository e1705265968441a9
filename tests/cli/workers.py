"""Worker processes for tests."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from testing.gateway import CHAT, Config, a_config, chat
from testing.ports import free_port, free_ports
from testing.processes import ChildProcess

START_S_MAX = 90.0


def workers_config(engine_url: str, workers: int = 2, **settings: Any) -> Config:
    """Cell with an unreachable store, so that each worker schedules its own share."""
    cell = {"store": f"redis://127.0.0.1:{free_port()}", "member_count": workers}
    first, *_ = free_ports(workers)
    return a_config(engine_url, cell=cell, admin_listen=f"127.0.0.1:{first}", **settings)


def command(file: Path, workers: int, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "headgate.cli.main",
        "serve",
        "--config",
        str(file),
        f"--workers={workers}",
        *arguments,
    ]


@dataclass
class Workers:
    parent: ChildProcess
    config: Config
    file: Path
    count: int
    http: aiohttp.ClientSession

    def admin_url(self, worker: int) -> str:
        host, _, port = self.config["admin_listen"].rpartition(":")
        return f"http://{host}:{int(port) + worker}"

    async def status(self, worker: int) -> Config:
        async with self.http.get(f"{self.admin_url(worker)}/status") as answer:
            return await answer.json()

    async def statuses(self) -> list[Config]:
        return [await self.status(worker) for worker in range(self.count)]

    def told(self, what: str, worker: int | None = None) -> list[int]:
        """Pids from the parent's log lines that contain this text, in order."""
        who = r"\d+" if worker is None else str(worker)
        return [int(pid) for pid in re.findall(rf"{what} worker={who} pid=(\d+)", self.parent.log())]

    def pid(self, worker: int) -> int:
        """Pid of a worker's most recent ready process."""
        return self.told("worker is ready", worker)[-1]

    async def until(self, holds: Callable[[], object], seconds_max: float = START_S_MAX) -> None:
        async with asyncio.timeout(seconds_max):
            while not holds():
                assert self.parent.exit_status is None, self.parent.log()
                await asyncio.sleep(0.02)

    async def until_ready(self, times: int = 1) -> None:
        """Waits until each worker has been ready this many times."""
        await self.until(lambda: all(len(self.told("worker is ready", each)) >= times for each in range(self.count)))

    async def until_endpoints_ready(self) -> None:
        """Waits until each worker's endpoints are ready."""
        async with asyncio.timeout(START_S_MAX):
            while any(each["state"] != "ready" for status in await self.statuses() for each in status["endpoints"]):
                await asyncio.sleep(0.02)

    async def until_draining(self, count: int = 2) -> None:
        """Waits until this many workers no longer accept new requests, including those that have exited."""
        async with asyncio.timeout(START_S_MAX):
            while await self._draining() + len(self.told("worker exited")) < count:
                await asyncio.sleep(0.02)

    async def _draining(self) -> int:
        draining = 0
        for worker in range(self.count):
            with contextlib.suppress(aiohttp.ClientError):
                draining += (await self.status(worker))["draining"]
        return draining

    def signal(self, number: int) -> None:
        os.kill(self.parent.pid, number)

    def ask(self, **fields: Any) -> Any:
        return self.http.post(f"http://{self.config['listen']}{CHAT}", json=chat(**fields))

    async def until_answered(self) -> None:
        """Waits until any worker has served a request."""
        async with asyncio.timeout(START_S_MAX):
            while True:
                async with self.ask() as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(0.05)


@asynccontextmanager
async def running_workers(config: Config, folder: Path, workers: int = 2, *arguments: str) -> AsyncIterator[Workers]:
    """Starts workers and waits until all are ready."""
    file = folder / "headgate.yaml"
    file.write_text(yaml.safe_dump(config))
    with ChildProcess("workers", command(file, workers, *arguments)) as parent:
        # One connection per request, so that requests reach different workers.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http:
            running = Workers(parent, config, file, workers, http)
            await running.until_ready()
            yield running


def is_alive(pid: int) -> bool:
    """Whether the process is running. A zombie does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


async def until_gone(pids: list[int], seconds_max: float = 60.0) -> None:
    async with asyncio.timeout(seconds_max):
        while any(is_alive(pid) for pid in pids):
            await asyncio.sleep(0.02)


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
