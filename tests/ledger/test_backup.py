"""The commands on the page "Back up and restore" work. They are read from the page, so that the two cannot differ.

Only host names, ports and directories are replaced.
"""

import asyncio
import os
import re
import subprocess
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest

from headgate.ledger.database import Database
from headgate.ledger.directory.postgres_directory import PostgresDirectory
from headgate.ledger.partitions import drop_expired
from headgate.ledger.spool.spool_files import read_batch
from headgate.ledger.unit_sums import move_slice, queue_next_day
from headgate.model.money import NanoUsd, Period
from headgate.model.units import MINUTE, SECOND, Instant
from headgate.ports.ledger import UsageRow
from testing.fake_engine import FakeEngine
from testing.gateway import CHAT, Config, chat, gateway_process, urls_of
from testing.postgres import Postgres, find_program, postgres
from testing.processes import ChildProcess
from tests.house.small_tree import PROJECT
from tests.ledger.databases import ADMIN, migrated, with_key
from tests.ledger.rows import a_row, a_spool, a_time, all_rows, writing
from tests.ledger.test_gateway import config_with

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

PAGE = (PROJECT / "docs/operations/backup.md").read_text()
KEY = "hg-known-before-the-backup"
REQUESTS = 8
SECONDS_MAX = 120.0

Tables = dict[str, list[str]]


def blocks_of(section: str) -> list[str]:
    """The shell blocks of a section of the page."""
    [text] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(each) for each in re.findall(r"^ *```bash\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)]


def commands_of(block: str) -> list[str]:
    return [line for line in re.sub(r" *\\\n\s*", " ", block).splitlines() if line.strip()]


def run_block(commands: str, folder: Path, server: Postgres, **variables: str) -> None:
    """Runs commands of the page in a folder, with PostgreSQL's programs and its superuser's connection settings."""
    programs = Path(find_program("pg_dump")).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(server.port),
        "PGUSER": "postgres",
        **variables,
    }
    # On one machine, the database has another address than on the page.
    script = commands.replace("@db/", f"@127.0.0.1:{server.port}/")
    shell = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"


@pytest.fixture
def server() -> Iterator[Postgres]:
    with postgres(options=("fsync=off",)) as running:
        yield running


async def contents(url: str) -> Tables:
    """All rows of all tables, as text, in one transaction."""
    link = await asyncpg.connect(url)
    async with link.transaction(isolation="repeatable_read"):
        names = await link.fetch(
            "select relname from pg_class where relnamespace = 'headgate'::regnamespace and relkind in ('r', 'p')"
        )
        found: Tables = {}
        for name in sorted(row["relname"] for row in names):
            rows = await link.fetch(f'select t::text as line from only headgate."{name}" t order by 1')
            found[name] = [row["line"] for row in rows]
    await link.close()
    return found


async def objects(url: str) -> list[tuple[Any, ...]]:
    """Functions, triggers, indexes and constraints, which a data-only restore would lose."""
    link = await asyncpg.connect(url)
    rows = await link.fetch(
        "select 'function', proname, pg_get_functiondef(oid) from pg_proc where pronamespace = 'headgate'::regnamespace"
        " union all select 'trigger', tgname, pg_get_triggerdef(t.oid) from pg_trigger t join pg_class c on"
        " c.oid = tgrelid where relnamespace = 'headgate'::regnamespace and not tgisinternal"
        " union all select 'index', indexname, indexdef from pg_indexes where schemaname = 'headgate'"
        " union all select 'constraint', conname, pg_get_constraintdef(oid) from pg_constraint"
        " where connamespace = 'headgate'::regnamespace order by 1, 2, 3"
    )
    await link.close()
    return [tuple(row) for row in rows]


async def fill(url: str, folder: Path) -> None:
    """Writes rows to every table, on several days and for two tenants. The rows of the first days are rolled up."""
    now = datetime.now(UTC)
    database = Database(url)
    directory = PostgresDirectory(database)
    await with_key(directory, "acme/search/ci", KEY)
    await with_key(directory, "beta/app/web", "hg-other")
    await directory.revoke_key("beta/app/web", ADMIN)
    await directory.set_budget("acme", Period.MONTH, NanoUsd(10**15), ADMIN, hard=True)
    await directory.create_override("hold", "batch", {}, ADMIN, reason="maintenance", duration_s=86_400)
    async with a_spool(folder) as spool:
        for number in range(200):
            at = Instant(int(now.timestamp()) * SECOND - number * 20 * MINUTE)
            tenant = ("acme/search/ci", "beta/app/web")[number % 2]
            spool.add([a_row(f"req_{number}", at=at, tenant=tenant)])
            spool.add_endpoint_times([a_time(f"e{number % 3}", at=at)])
        async with writing(url, spool):
            link = await asyncpg.connect(url)
            async with asyncio.timeout(SECONDS_MAX):
                while await link.fetchval("select count(*) from headgate.usage") < 200:
                    await asyncio.sleep(0.02)
                while await link.fetchval("select count(*) from headgate.endpoint_time") < 200:
                    await asyncio.sleep(0.02)
    async with database.acquire() as writer:
        await drop_expired(writer, retention_days=1, roll_up=True, now=now)
        assert await writer.fetchval("select headgate.register_unit_key('conversation')")
        # A day stays in the backlog, and rows stay in the queue.
        while not await move_slice(writer, rows_max=1):
            assert await queue_next_day(writer)
    await database.stop()
    await link.execute(
        "insert into headgate.budget_notifications (scope, period, period_start, percent, limit_nano_usd,"
        " spent_nano_usd) values ('tenant:acme', 'month', '2026-11-01', 80, 1000, 900)"
    )
    await link.close()


async def ask(config: Config, key: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http:
        headers = {"authorization": f"Bearer {key}"}
        async with http.post(urls_of(config)[0] + CHAT, json=chat(), headers=headers) as answer:
            await answer.read()
            return answer.status, answer.headers["x-request-id"]


async def sent(config: Config) -> list[str]:
    answers = [await ask(config, KEY) for _ in range(REQUESTS)]
    assert {status for status, _ in answers} == {200}
    return [request for _, request in answers]


async def wait_for_status(config: Config, reached: Callable[[Config], bool]) -> None:
    async with aiohttp.ClientSession() as http, asyncio.timeout(SECONDS_MAX):
        while True:
            async with http.get(urls_of(config)[1] + "/status") as answer:
                if reached(await answer.json()):
                    return
            await asyncio.sleep(0.05)


def in_order(rows: Iterable[UsageRow]) -> list[UsageRow]:
    """The rows by request. PostgreSQL stores times in microseconds."""
    return sorted((row._replace(at=Instant(row.at // 1_000 * 1_000)) for row in rows), key=lambda row: row.request)


def spooled_rows(spool: Path) -> list[UsageRow]:
    return in_order(row for file in spool.glob("*.rows") for row in read_batch(file).usage)


async def rows_of(url: str, requests: Sequence[str]) -> list[UsageRow]:
    """Rows of these requests that are in the database."""
    link = await asyncpg.connect(url)
    rows = await all_rows(link)
    await link.close()
    return in_order(row for row in rows if row.request in requests)


async def wait_for_rows(url: str, requests: Sequence[str]) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while len(await rows_of(url, requests)) < len(requests):
            await asyncio.sleep(0.1)


class Site:
    """A database server with the database `headgate`, and machines with a gateway each."""

    def __init__(self, stack: ExitStack, folder: Path, server: Postgres, engine: str) -> None:
        self._stack, self._folder, self._engine = stack, folder, engine
        self.url = f"postgresql://headgate@127.0.0.1:{server.port}/headgate"

    def machine(self, name: str) -> Path:
        """The directory that is /var/lib/headgate on this machine."""
        return self._folder / name

    async def start(self, name: str) -> tuple[Config, ChildProcess]:
        self.machine(name).mkdir()
        spool = {"spool_directory": str(self.machine(name) / "spool")}
        config = config_with(self._engine, self.url, ledger=spool)
        process = gateway_process(config, self.machine(name))
        return config, await asyncio.to_thread(self._stack.enter_context, process)

    def run_on(self, name: str, block: str, server: Postgres) -> None:
        """Runs a block on a machine. The test stops its gateway and copies the archive to /tmp."""
        script = block.replace("/var/lib/headgate", str(self.machine(name)))
        script = script.replace("/tmp/spool.tar", str(self._folder / "spool.tar"))
        script = "\n".join(line for line in script.splitlines() if not line.startswith("systemctl "))
        run_block(script, self._folder, server)


async def test_documented_commands_restore_every_row_and_move_a_spool(server: Postgres, tmp_path: Path) -> None:
    [_, dump] = blocks_of("Back up")
    [restore] = blocks_of("Restore PostgreSQL")
    [archive, move] = blocks_of("Move a spool")
    run_block("createuser headgate\ncreatedb --owner headgate headgate", tmp_path, server)
    async with FakeEngine() as engine:
        with ExitStack() as stack:
            site = Site(stack, tmp_path, server, engine.url)
            await migrated(site.url)
            await fill(site.url, tmp_path / "filled")
            first, process = await site.start("first")
            await wait_for_rows(site.url, await sent(first))

            backed_up, before = await dumped(site, dump, server, tmp_path), await differences(site.url)
            after_dump = await sent(first)
            await wait_for_rows(site.url, after_dump)

            # Restore into a second database. The gateway keeps running.
            *into_second, swap = commands_of(restore)
            assert "rename" in swap
            run_block("\n".join(into_second[:-1]), tmp_path, server)
            restored = site.url + "_restored"
            assert await contents(restored) == backed_up
            assert await objects(restored) == await objects(site.url)
            run_block(into_second[-1], tmp_path, server)
            assert (await contents(restored))["directory_state"] != backed_up["directory_state"]
            run_block(swap, tmp_path, server)

            await wait_for_status(first, lambda status: status["database"]["fresh"] and not status["ledger"]["problem"])
            assert await rows_of(site.url, after_dump) == []
            await wait_for_rows(site.url, await sent(first))
            second, _ = await site.start("second")
            await wait_for_status(second, lambda status: status["database"]["fresh"])
            assert [(await ask(second, key))[0] for key in (KEY, "hg-other", "hg-unknown")] == [200, 401, 401]

            # Retire the first machine while the database is down.
            await asyncio.to_thread(server.kill)
            cut_off = await sent(first)
            process.terminate()
            assert await asyncio.to_thread(process.wait_until_ended, SECONDS_MAX) == 0
            spooled = spooled_rows(site.machine("first") / "spool")
            assert {row.request for row in spooled} == set(cut_off)
            site.run_on("first", archive, server)
            site.run_on("second", move, server)
            await asyncio.to_thread(server.restart)
            await wait_for_rows(site.url, cut_off)

            assert await rows_of(site.url, cut_off) == spooled
            assert await differences(site.url) == before


async def dumped(site: Site, dump: str, server: Postgres, folder: Path) -> Tables:
    """Dumps the database while the gateway is running. Returns the rows in the dump."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            before = await contents(site.url)
            run_block(dump, folder, server, DATABASE_URL=site.url)
            if before == await contents(site.url):
                break
    empty = {name for name, rows in before.items() if not rows}
    # Partitioned tables have no rows of their own. The gateway may have summed the backlog and the queue already.
    assert empty <= {
        *("usage", "endpoint_time", "endpoint_time_default", "endpoint_time_before"),
        *("usage_unit_backlog", "usage_unit_queue", "usage_unit_removed_keys"),
    } | {name for name in empty if re.fullmatch(r"(usage|endpoint_time)_\d{8}", name)}
    assert sum(map(len, before.values())) > 300
    return before


async def differences(url: str) -> tuple[int, int]:
    """Differences between sums, which triggers keep up to date, and their rows.

    Usage has none. The sums of the endpoint time also contain the days that have been dropped.
    """
    link = await asyncpg.connect(url)
    found = await link.fetchrow(
        "select (select sum(tokens_in) from headgate.usage) + (select sum(tokens_in) from headgate.usage_hourly)"
        " - (select sum(tokens_in) from headgate.usage_daily) as tokens, (select sum(total_us) from"
        " headgate.endpoint_hours) - (select sum(total_us) from headgate.endpoint_time) as dropped_us"
    )
    await link.close()
    assert found is not None
    assert found["tokens"] == 0
    return found["tokens"], found["dropped_us"]
