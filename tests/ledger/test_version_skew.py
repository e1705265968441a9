"""Gateways of an earlier commit and of this one share a database, in both directions.

The earlier gateway runs from the source of a pinned commit, so these tests need that commit in the clone
(testing/earlier_version.py).
"""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
import pytest_asyncio

from headgate.ledger.database import Database, close
from headgate.ledger.schema_migration import migrate, migrations
from testing.earlier_version import earlier_source
from testing.fake_engine import FakeEngine
from testing.gateway import CHAT, Config, a_config, chat, gateway_process, urls_of
from testing.postgres import Postgres
from testing.processes import ChildProcess, MissingProgram
from testing.simulated_engines import HEADGATE
from tests.hosts.cell.store_places import absent
from tests.ledger.databases import migrated

pytestmark = pytest.mark.process

REQUESTS = 20
"""Requests per gateway and phase."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        found = earlier_source(tmp_path_factory.mktemp("earlier"))
    except MissingProgram as missing:
        absent(missing)
    assert len(list((found / "headgate/ledger/migrations").glob("*.sql"))) == 2
    return found


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[str]:
    async with FakeEngine() as running:
        yield running.url


class Versions:
    """The earlier gateway and this one, with their own spools."""

    def __init__(
        self, stack: ExitStack, folder: Path, source: Path, *, engine: str, url: str, cell: Config | None = None
    ) -> None:
        self._stack, self._folder = stack, folder
        self._engine, self._url, self._cell = engine, url, cell
        self._environments = {"earlier": {"PYTHONPATH": str(source)}, "this": {}}
        self.configs: dict[str, Config] = {}
        self.sent: list[str] = []
        """Request IDs of complete responses."""

    async def start(self, name: str) -> ChildProcess:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        database = {"database": {"url": self._url, "poll_interval": "5s"}, "key_secret": "a secret of sixteen letters"}
        cell = {} if self._cell is None else {"cell": self._cell | {"member_name": name}}
        spool = {"spool_directory": str(folder / "spool"), "metadata_keys": ["conversation"]}
        self.configs[name] = a_config(self._engine, ledger=spool, **database, **cell)
        process = gateway_process(self.configs[name], folder, environment=self._environments[name])
        return await asyncio.to_thread(self._stack.enter_context, process)

    async def send(self, **fields: Any) -> None:
        async with aiohttp.ClientSession() as http:
            for number in range(REQUESTS):
                for config in self.configs.values():
                    async with http.post(urls_of(config)[0] + CHAT, json=chat(f"hi {number}", **fields)) as answer:
                        assert answer.status == 200, await answer.text()
                        self.sent.append(answer.headers["x-request-id"])

    def kill(self, name: str, process: ChildProcess) -> None:
        process.kill()
        process.wait_until_ended()
        del self.configs[name]

    async def cells(self) -> dict[str, Config]:
        """The cell as each gateway sees it."""
        found: dict[str, Config] = {}
        async with aiohttp.ClientSession() as http:
            for name, config in self.configs.items():
                async with http.get(urls_of(config)[1] + "/status") as answer:
                    found[name] = (await answer.json())["cell"]
        return found

    async def skipped_entries(self) -> list[str]:
        """The number of cell entries that each gateway could not read, as a metric."""
        found: list[str] = []
        async with aiohttp.ClientSession() as http:
            for config in self.configs.values():
                async with http.get(urls_of(config)[1] + "/metrics") as page:
                    lines = (await page.text()).splitlines()
                found += [line for line in lines if line.startswith("headgate_cell_entries_skipped_total")]
        return found

    async def cell_led_by(self, leader: str) -> Config:
        """Waits until all gateways follow this one, which has their reports. Returns the cell as it sees it."""
        async with asyncio.timeout(60.0):
            while True:
                cells = await self.cells()
                following = all(each["mode"] == "following" for each in cells.values())
                present = {name for name, each in cells[leader]["members"].items() if each["standing"] == "present"}
                epochs = {each["epoch"] for each in cells.values()}
                if following and cells[leader]["leads"] and present >= set(cells) and len(epochs) == 1:
                    return cells[leader]
                await asyncio.sleep(0.05)

    async def all_ready_with_rows_written(self) -> None:
        """Waits until each gateway is connected to the database and its spool is empty."""
        async with aiohttp.ClientSession() as http, asyncio.timeout(60.0):
            for config in self.configs.values():
                while True:
                    async with http.get(urls_of(config)[1] + "/status") as answer:
                        ledger = (await answer.json())["ledger"]
                    if not ledger["rows_waiting"] and not ledger["problem"]:
                        break
                    await asyncio.sleep(0.05)
                async with http.get(urls_of(config)[1] + "/ready") as answer:
                    assert answer.status == 200, await answer.text()


async def rows_are_written(url: str, count: int) -> None:
    """Waits for the rows. In a cell, a gateway may hold back a row until it knows the cost."""
    link = await asyncpg.connect(url)
    async with asyncio.timeout(60.0):
        while await link.fetchval("select count(*) from headgate.usage") < count:
            await asyncio.sleep(0.05)
    await link.close()


async def assert_every_request_is_recorded_once(url: str, sent: list[str]) -> None:
    link = await asyncpg.connect(url)
    rows: list[Any] = await link.fetch("select request from headgate.usage")
    assert sorted(row["request"] for row in rows) == sorted(sent)
    assert await link.fetchval("select sum(requests) from headgate.usage_daily") == len(sent)
    times = await link.fetchrow(
        "select (select sum(total_us) from headgate.endpoint_time) as rows,"
        " (select sum(total_us) from headgate.endpoint_hours) as sums"
    )
    assert times is not None
    assert times["rows"] == times["sums"]
    await link.close()


async def use_schema_2(url: str) -> None:
    link = await Database(url).connect()
    await migrate(link, migrations()[:2], lambda _: None)
    await close(link)


async def test_both_versions_use_one_database_before_and_after_the_migration(
    empty_url: str, mortal_postgres: Postgres, source: Path, engine: str, tmp_path: Path
) -> None:
    await use_schema_2(empty_url)
    with ExitStack() as stack:
        versions = Versions(stack, tmp_path, source, engine=engine, url=empty_url)
        for name in ("earlier", "this"):
            await versions.start(name)
        await versions.send()
        await versions.all_ready_with_rows_written()
        await migrated(empty_url)
        await versions.send()
        # Both gateways reconnect and check the schema again.
        await asyncio.to_thread(mortal_postgres.restart)
        await versions.send()
        await versions.all_ready_with_rows_written()

        await assert_every_request_is_recorded_once(empty_url, versions.sent)
    assert len(versions.sent) == 3 * 2 * REQUESTS


async def test_earlier_gateway_starts_on_the_new_schema(url: str, source: Path, engine: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        versions = Versions(stack, tmp_path, source, engine=engine, url=url)
        await versions.start("earlier")
        await versions.send()
        await versions.all_ready_with_rows_written()

        await assert_every_request_is_recorded_once(url, versions.sent)


async def test_rows_of_an_earlier_gateway_are_in_the_sums_by_unit(
    url: str, source: Path, engine: str, tmp_path: Path
) -> None:
    link = await asyncpg.connect(url)
    assert await link.fetchval("select headgate.register_unit_key('conversation')")
    with ExitStack() as stack:
        versions = Versions(stack, tmp_path, source, engine=engine, url=url)
        await versions.start("earlier")
        await versions.send(metadata={"conversation": "c1"})
        await rows_are_written(url, REQUESTS)
        queued = await link.fetch("select unit, sum(requests) from headgate.usage_unit_queue group by unit")
        assert [tuple(row) for row in queued] == [("c1", REQUESTS)]
        await versions.start("this")
        async with asyncio.timeout(60.0):
            while await link.fetchval("select count(*) from headgate.usage_unit_queue"):
                await asyncio.sleep(0.05)
    # The requests may be in two months.
    months = "select unit, sum(requests) from headgate.usage_unit_months where scope = '' group by unit"
    assert [tuple(row) for row in await link.fetch(months)] == [("c1", REQUESTS)]
    await link.close()


def test_earlier_version_reports_the_new_schema_as_up_to_date(url: str, source: Path, tmp_path: Path) -> None:
    file = tmp_path / "headgate.yaml"
    file.write_text(f"database: {url}\n")
    command = [*HEADGATE, "ledger", "migrate", "--config", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "the database schema is up to date\n")
