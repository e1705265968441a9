"""Several real cells with a controller, for tests and benchmarks.

Each cell has its own Redis, gateway process and simulated engine. `headgate cells run` divides the limits of the tenant
`acme`, which needs no key.
"""

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from headgate.wire.keys import digest, format_digest
from testing.gateway import a_config, chat, gateway_process, urls_of
from testing.processes import ChildProcess
from testing.simulated_engines import HEADGATE, simulated_engines
from testing.stores import Server, redis

SECRET, OPERATOR_KEY = "the key secret of the fleet", "hg-operator"
LIMIT = 600
"""Requests per minute of the tenant `acme`."""
FLOOR_PERCENT = 25
_RETRIED = 503


@dataclass
class LiveCell:
    name: str
    url: str
    admin_url: str
    store: Server
    gateway: ChildProcess

    def kill(self) -> None:
        """Kills the gateway and the store. The engine stays, because other cells do not use it."""
        self.gateway.kill()
        self.store.kill()


@dataclass
class LiveFleet:
    cells: dict[str, LiveCell]
    file: Path
    http: aiohttp.ClientSession
    outcomes: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """Number of responses by cell and status."""
    answers: list[tuple[float, str, int]] = field(default_factory=list[tuple[float, str, int]])
    """Time, cell and status of each response."""
    admitted: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Start and end of each request that was served."""
    _controller: ChildProcess | None = None

    # Controller

    def start_controller(self) -> None:
        command = [*HEADGATE, "cells", "run", "--file", self.file]
        self._controller = ChildProcess("controller", command, {"HEADGATE_ADMIN_KEY": OPERATOR_KEY})

    def kill_controller(self) -> None:
        if self._controller is not None:
            self._controller.kill()
            self._controller.stop()
            self._controller = None

    def command(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Runs a `headgate cells` command."""
        return subprocess.run(
            [*HEADGATE, "cells", *words, "--file", str(self.file)],
            env={"HEADGATE_ADMIN_KEY": OPERATOR_KEY, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    # Shares

    async def reports(self) -> Mapping[str, Mapping[str, Any] | None]:
        """Returns the report of each cell's gateway. None if it does not respond."""

        async def read(cell: LiveCell) -> Mapping[str, Any] | None:
            headers = {"authorization": f"Bearer {OPERATOR_KEY}"}
            try:
                async with self.http.post(
                    f"{cell.admin_url}/admin/v1/shares/report", json={}, headers=headers
                ) as answer:
                    return await answer.json() if answer.status == 200 else None
            except aiohttp.ClientError:
                return None

        return dict(zip(self.cells, await asyncio.gather(*map(read, self.cells.values())), strict=True))

    async def shares(self, tenant: str = "acme") -> dict[str, int]:
        """Returns the share in force in each cell that responds, in percent."""
        reports = await self.reports()
        return {
            name: each["shares"].get(tenant, {"ppm": each["floor_ppm"]})["ppm"] // 10_000
            for name, each in reports.items()
            if each is not None
        }

    async def wait_for_shares(self, reached: Any, *, used: str = "ab", seconds_max: float = 120.0) -> dict[str, int]:
        """Waits for the first shares for which `reached` returns true, and returns them.

        Until then, the shares of the `used` cells must not exceed the whole.
        """
        async with asyncio.timeout(seconds_max):
            while not reached(shares := await self.shares()):
                total = sum(shares.get(name, 0) for name in used)
                assert total <= 100, f"the shares exceed the whole: {shares}"
                await asyncio.sleep(0.05)
        return shares

    # Requests

    async def ask(self, *cells: str) -> int:
        """Sends a request to the first cell, and to the next one after a failure, as a load balancer does.

        Returns the status, or 0 if no cell responded.
        """
        status = 0
        for name in cells:
            began = time.monotonic()
            try:
                body = chat(model="sim", max_tokens=1)
                async with self.http.post(f"{self.cells[name].url}/v1/chat/completions", json=body) as answer:
                    await answer.read()
                    status = answer.status
            except aiohttp.ClientError:
                status = 0
            self.outcomes[name, status] += 1
            self.answers.append((time.monotonic(), name, status))
            if status == 200:
                self.admitted.append((began, time.monotonic()))
            if status not in (0, _RETRIED):
                break
        return status

    async def send(self, rate: float, seconds: float, *cells: str) -> Counter[int]:
        """Sends `rate` requests per second and returns how often each status was returned."""
        count, began = round(rate * seconds), time.monotonic()
        running: list[asyncio.Task[int]] = []
        for number in range(count):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            running.append(asyncio.create_task(self.ask(*cells)))
        return Counter(await asyncio.gather(*running))


@asynccontextmanager
async def live_fleet(
    folder: Path,
    count: int = 2,
    *,
    cells_per_tenant: int = 2,
    interval: str = "500ms",
    lease: str = "5s",
    pins: Mapping[str, Sequence[str]] | None = None,
    database: str | None = None,
    budget_usd: int = 0,
) -> AsyncIterator[LiveFleet]:
    """Starts cells named `a`, `b` and so on, without a controller. The tenant `acme` is pinned to the first ones.

    With the URL of a migrated `database`, the cells share its ledger, each output token costs one dollar, and the
    tenant has a hard daily budget instead of a limit.
    """
    names = "abcdefgh"[:count]
    with ExitStack() as stack:
        engines = stack.enter_context(simulated_engines(count, "--speed-up", "50"))
        budget = None if database is None else (database, budget_usd)
        cells = {name: _start_cell(stack, folder, name, url, budget) for name, url in zip(names, engines, strict=True)}
        listed = {name: {"url": each.url, "admin_urls": [each.admin_url]} for name, each in cells.items()}
        file = folder / "cells.yaml"
        fleet = {
            "cells": listed,
            "cells_per_tenant": cells_per_tenant,
            "share_floor_percent": FLOOR_PERCENT,
            "interval": interval,
            "lease": lease,
            "pins": {name: list(each) for name, each in (pins or {"acme": names[:cells_per_tenant]}).items()},
        }
        file.write_text(yaml.safe_dump(fleet, default_flow_style=None))
        async with AsyncExitStack() as clients:
            http = await clients.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            found = LiveFleet(cells, file, http)
            try:
                for name in names:
                    async with asyncio.timeout(120):
                        # A new gateway probes its engine first.
                        while await found.ask(name) != 200:
                            await asyncio.sleep(0.05)
                found.outcomes.clear()
                found.admitted.clear()
                yield found
            finally:
                found.kill_controller()


def migrate(url: str, folder: Path) -> None:
    """Creates the schema in an empty database."""
    file = folder / "database.yaml"
    file.write_text(yaml.safe_dump({"database": url}))
    subprocess.run(
        [*HEADGATE, "ledger", "migrate", "--config", str(file)],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=True,
        timeout=120,
    )


def _start_cell(
    stack: ExitStack, folder: Path, name: str, engine: str, budget: tuple[str, int] | None = None
) -> LiveCell:
    store = stack.enter_context(redis())
    own = folder / name
    own.mkdir()
    config = a_config(
        engine,
        served_model="sim",
        model="sim",
        in_flight_max=64,
        key_secret=SECRET,
        admin_keys={
            "controller": {
                "key": format_digest(digest(SECRET.encode(), OPERATOR_KEY)),
                "permissions": ["shares"],
            }
        },
        cell={"store": store.url, "name": name, "member_count": 2, "share_floor_percent": FLOOR_PERCENT},
        tenants={"acme": {"limits": {"requests_per_minute": LIMIT}}},
        anonymous_tenant="acme",
    )
    if budget is not None:
        config["database"] = {"url": budget[0]}
        config["ledger"] = {"spool_directory": str(own / "spool")}
        config["pools"]["small"]["prices"] = [{"input_per_1m_tokens": 0, "output_per_1m_tokens": 1_000_000}]
        config["tenants"] = {"acme": {"budgets": {"day": budget[1]}}}
    gateway = stack.enter_context(gateway_process(config, own))
    url, admin_url = urls_of(config)
    return LiveCell(name, url, admin_url, store, gateway)


def excess_ppm(admitted: Sequence[tuple[float, float]], limit: int = LIMIT) -> int:
    """Returns by how much the admitted requests exceeded the limit plus its burst of one minute, in parts per million.

    All intervals from the start of one request to the end of another are checked. A request was admitted between its
    start and its end, so only a certain excess counts.
    """
    rate = limit / 60
    starts = sorted(start for start, _ in admitted)
    ends = sorted(end for _, end in admitted)
    worst, before, lowest = 0.0, 0, float("inf")
    for number, end in enumerate(ends, 1):
        while before < len(starts) and starts[before] <= end:
            lowest = min(lowest, before - starts[before] * rate)
            before += 1
        worst = max(worst, number - end * rate - lowest - limit)
    return round(worst / limit * 1_000_000)
