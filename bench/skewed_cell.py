"""The cell part of `just skew`: gateways of an earlier commit and of this one in one cell, on one database, under load.

The cell starts with two gateways of the earlier commit, on its schema. `replace_everything` then replaces them one by
one, kills the scheduler in both directions, migrates the database, and rolls everything back and forward again. Clients
send each request to a gateway that is ready, as behind a load balancer.

A request counts as lost if it gets no complete response although its gateway was not killed meanwhile, or if a complete
response has no row in the ledger. It counts as doubled if a row exists twice, or if engines completed it twice.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.cli import print_progress
from bench.ledger_faults import (
    CALLERS,
    GATEWAYS,
    PAUSE_S,
    CallerCounts,
    FaultedLedger,
    Figures,
    body_is_whole,
    compare,
    settle,
)
from headgate.control.directory_sync import migrate_database
from headgate.simulation.server.record import read_record
from testing.earlier_version import migrate_with
from testing.processes import ProcessFailedError
from testing.stores import redis

LOOK_INTERVAL_S = 0.1
SETTLE_S_MAX = 120.0
EXIT_S_MAX = 120.0
REQUESTS_MIN = 300
REFUSED = "refused"
TAKEOVERS = {"earlier to this", "this to earlier"}
SEND_S_MAX = 120.0
"""Maximum time for which a client looks for a gateway that accepts its request."""


@dataclass(slots=True)
class CellFigures:
    lost: int = 0
    doubled: int = 0
    unready_s: float = 0.0
    requests: int = 0
    rows: int = 0
    sums_differ: int = 0
    cut: int = 0
    """Responses cut off by the kill of their gateway."""
    takeovers: dict[str, int] = field(default_factory=dict[str, int])
    """Changes of the scheduler, by the version before and after."""
    islands: int = 0
    """How often a gateway became an island."""
    entries_skipped: int = 0

    def problems(self) -> list[str]:
        return [
            problem
            for wrong, problem in (
                (self.lost > 0, f"cell: {self.lost} requests or rows were lost"),
                (self.doubled > 0, f"cell: {self.doubled} requests or rows are duplicated"),
                (self.sums_differ > 0, f"cell: daily totals differ from the sums of their rows by {self.sums_differ}"),
                (self.entries_skipped > 0, f"cell: {self.entries_skipped} entries could not be read"),
                (
                    self.requests < REQUESTS_MIN,
                    f"cell: {self.requests} complete responses; the minimum is {REQUESTS_MIN}",
                ),
                (
                    not {"earlier to this", "this to earlier"} <= {*self.takeovers},
                    f"cell: takeovers were {self.takeovers}",
                ),
            )
            if wrong
        ]


class SkewedCell(FaultedLedger):
    """A cell with one gateway per number, each of either version."""

    def __init__(self, stack: ExitStack, folder: Path, source: Path) -> None:
        self._source = source
        self._store = stack.enter_context(redis())
        self.is_earlier = [True] * GATEWAYS
        self.away = set[int]()
        """Gateways that are being replaced."""
        self.kills = [0] * GATEWAYS
        self.entries_skipped = 0
        self.ready = set[int]()
        super().__init__(stack, folder, seed=1)

    def environment(self, number: int) -> Mapping[str, str]:
        return {"PYTHONPATH": str(self._source)} if self.is_earlier[number] else {}

    async def prepare_database(self) -> None:
        await asyncio.to_thread(migrate_with, self._source, self.database.url)

    def _config(self) -> dict[str, Any]:
        made = super()._config()
        spool = self._folder / f"spool-{made['listen'].rpartition(':')[2]}"
        cell = {"store": self._store.url, "member_count": GATEWAYS}
        return made | {"cell": cell, "ledger": {"spool_directory": str(spool)}}

    def spooled(self) -> bool:
        return any(file.stat().st_size > 100 for file in self._folder.glob("spool-*/*.rows"))

    def version_of(self, number: int) -> str:
        return "earlier" if self.is_earlier[number] else "this"

    async def replace(self, number: int, *, earlier: bool, kill: bool = False) -> None:
        """Replaces a gateway by one of the given version, after a graceful shutdown or a kill."""
        self.check()
        how = "killing" if kill else "draining"
        print_progress(
            f"{how} gateway {number} ({self.version_of(number)}), starting {'earlier' if earlier else 'this'}"
        )
        await self._count_skipped(number)
        process = self._processes[number]
        self.away.add(number)
        self.ready.discard(number)
        if kill:
            self.kills[number] += 1
            process.kill()
        else:
            process.terminate()
        status = await asyncio.to_thread(process.wait_until_ended, EXIT_S_MAX)
        if not kill and status != 0:
            raise ProcessFailedError(f"gateway {number} exited with status {status}:\n{process.log()[-6000:]}")
        self.is_earlier[number] = earlier
        self._processes[number] = await asyncio.to_thread(self._start, number)
        self.away.discard(number)
        await self.wait_until_settled()

    async def _count_skipped(self, number: int) -> None:
        async with aiohttp.ClientSession() as http, http.get(f"{self.admin_urls[number]}/metrics") as page:
            text = await page.text()
        found = [line for line in text.splitlines() if line.startswith("headgate_cell_entries_skipped_total")]
        self.entries_skipped += sum(int(float(line.rpartition(" ")[2])) for line in found)

    async def count_all_skipped(self) -> None:
        for number in range(GATEWAYS):
            await self._count_skipped(number)

    async def cells(self) -> list[dict[str, Any]]:
        """The cell as each gateway sees it."""
        async with aiohttp.ClientSession() as http:
            found: list[dict[str, Any]] = []
            for url in self.admin_urls:
                async with http.get(f"{url}/status") as answer:
                    found.append((await answer.json())["cell"])
        return found

    async def wait_until_settled(self) -> int:
        """Waits until all gateways follow one scheduler, which has all reports. Returns the scheduler's number."""
        async with asyncio.timeout(SETTLE_S_MAX):
            while True:
                cells = await self.cells()
                leading = [number for number, cell in enumerate(cells) if cell["leads"]]
                following = all(cell["mode"] == "following" for cell in cells) and len({c["epoch"] for c in cells}) == 1
                if following and len(leading) == 1:
                    members = cells[leading[0]]["members"].values()
                    if len(members) == GATEWAYS and all(each["standing"] == "present" for each in members):
                        return leading[0]
                await asyncio.sleep(LOOK_INTERVAL_S)


async def replace_everything(stage: SkewedCell, phase_s: float) -> dict[str, int]:
    """Runs all steps under load. Returns the changes of the scheduler, by the version before and after."""
    takeovers: Counter[str] = Counter()

    async def take_over(*, earlier: bool) -> int:
        """Kills the scheduler and replaces it by a gateway of this version. Returns the number of the new scheduler."""
        before = await stage.wait_until_settled()
        was = stage.version_of(before)
        await stage.replace(before, earlier=earlier, kill=True)
        after = await stage.wait_until_settled()
        takeovers[f"{was} to {stage.version_of(after)}"] += after != before
        await asyncio.sleep(phase_s)
        return after

    old = await stage.wait_until_settled()
    await asyncio.sleep(phase_s)
    print_progress("a member of this version joins a scheduler of the earlier one")
    await stage.replace(1 - old, earlier=False)
    await asyncio.sleep(phase_s)
    print_progress("migrating the database")
    steps = await migrate_database(stage.database.url, lambda step: print_progress(f"applying {step.number:04}"))
    if not steps:
        raise ProcessFailedError("there is nothing to migrate; choose an earlier commit")
    await asyncio.sleep(phase_s)
    print_progress("takeover from the earlier version; the killed gateway returns as a member")
    new = await take_over(earlier=True)
    print_progress("the last gateway of the earlier version is replaced")
    await stage.replace(1 - new, earlier=False)
    await asyncio.sleep(phase_s)
    print_progress("rollback: a member of the earlier version joins a scheduler of this one")
    await stage.replace(1 - new, earlier=True)
    await asyncio.sleep(phase_s)
    print_progress("takeover by the earlier version; the killed gateway is rolled back too")
    old = await take_over(earlier=True)
    print_progress("rolling replacement, the scheduler last")
    for number in (1 - old, old):
        await stage.replace(number, earlier=False)
        await asyncio.sleep(phase_s)
    stage.check()
    return dict(takeovers)


# Clients and observers


class Client:
    """Sends one request after another, each to a gateway that is ready."""

    def __init__(self, stage: SkewedCell, seen: CallerCounts, lost: list[str], http: aiohttp.ClientSession) -> None:
        """`lost` collects the problems of requests that got no complete response although their gateway was running."""
        self._stage, self._seen, self._lost, self._http = stage, seen, lost, http
        self._random = random.Random(stage.chance.random())

    async def call_for_ever(self) -> None:
        chance = self._random
        while True:
            await asyncio.sleep(PAUSE_S * 2 * chance.random())
            content = f"{chance.getrandbits(64):x} " * chance.randint(1, 40)
            body = {"model": "m", "messages": [{"role": "user", "content": content}]}
            await self._call(body | {"max_tokens": chance.randint(4, 60), "stream": chance.random() < 0.5})

    async def _call(self, body: Mapping[str, Any]) -> None:
        stage, give_up_at = self._stage, time.monotonic() + SEND_S_MAX
        while time.monotonic() < give_up_at:
            if not stage.ready:
                await asyncio.sleep(LOOK_INTERVAL_S)
                continue
            number = self._random.choice(sorted(stage.ready))
            kills = stage.kills[number]
            problem = await self._send(number, body)
            if problem is REFUSED:
                # The load balancer has not noticed yet.
                stage.ready.discard(number)
                continue
            if problem and stage.kills[number] > kills:
                self._seen.cut[problem[:40]] += 1
            elif problem:
                self._lost.append(f"gateway {number} ({stage.version_of(number)}): {problem}")
            return
        self._lost.append("no gateway was ready")

    async def _send(self, number: int, body: Mapping[str, Any]) -> str:
        """Returns why there is no complete response. Empty if there is one, REFUSED if the request was not accepted."""
        try:
            async with self._http.post(f"{self._stage.urls[number]}/v1/chat/completions", json=body) as answer:
                text = await answer.read()
                if answer.status == 200 and body_is_whole(text):
                    self._seen.whole.add(answer.headers["x-request-id"])
                    return ""
                is_draining = answer.status == 503 and b"(draining)" in text
                return REFUSED if is_draining else f"status {answer.status}: {text[-300:]!r}"
        except aiohttp.ClientConnectorError:
            return REFUSED
        except (aiohttp.ClientError, OSError) as error:
            return repr(error)


async def watch(stage: SkewedCell, number: int, figures: CellFigures, http: aiohttp.ClientSession) -> None:
    """Keeps `stage.ready` up to date. Adds the time for which the gateway runs but is not ready, and its islands."""
    last, was_island = time.monotonic(), False
    while True:
        was_away = number in stage.away
        try:
            async with http.get(f"{stage.admin_urls[number]}/ready") as answer:
                ready = answer.status == 200
            async with http.get(f"{stage.admin_urls[number]}/status") as answer:
                is_island = (await answer.json())["cell"]["mode"] == "island"
        except (aiohttp.ClientError, OSError):
            ready = is_island = False
        now, is_away = time.monotonic(), number in stage.away
        if not (ready or was_away or is_away):
            figures.unready_s += now - last
        if not is_away:
            (stage.ready.add if ready else stage.ready.discard)(number)
        figures.islands += is_island and not was_island
        last, was_island = now, is_island
        await asyncio.sleep(LOOK_INTERVAL_S)


async def _compare_when_billed(stage: SkewedCell, seen: CallerCounts, http: aiohttp.ClientSession) -> Figures:
    """Compares the rows. A gateway holds back a row for up to 10 s if the scheduler that knows its cost has gone."""
    give_up_at = time.monotonic() + SETTLE_S_MAX
    while (rows := await compare(stage, seen, http)).lost and time.monotonic() < give_up_at:  # noqa: ASYNC110
        await asyncio.sleep(1.0)
    return rows


async def run_cell(stage: SkewedCell, phase_s: float) -> CellFigures:
    figures, seen, lost = CellFigures(), CallerCounts(), list[str]()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        callers = [
            asyncio.create_task(Client(stage, seen, lost, http).call_for_ever()) for _ in range(GATEWAYS * CALLERS)
        ]
        tasks = [asyncio.create_task(watch(stage, number, figures, http)) for number in range(GATEWAYS)]
        figures.takeovers = await replace_everything(stage, phase_s)
        for task in (*callers, *tasks):
            task.cancel()
        for result in await asyncio.gather(*callers, *tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        await settle(stage, http)
        await stage.count_all_skipped()
        rows = await _compare_when_billed(stage, seen, http)
    for each in lost[:10]:
        print_progress(f"lost: {each}")
    finished = Counter(str(line["request_id"]) for line in read_record(stage.record) if line["outcome"] == "finished")
    figures.lost = rows.lost + len(lost)
    figures.doubled = rows.doubled + sum(finished[name] > 1 for name in seen.whole)
    figures.requests, figures.rows, figures.sums_differ = rows.requests, rows.rows, int(rows.sums_differ)
    figures.cut, figures.entries_skipped = seen.cut.total(), stage.entries_skipped
    return figures
