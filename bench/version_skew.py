"""Check that gateways of an earlier commit and of this one can share a database and a cell, under load.

    just skew [--part database|cell] [--smoke] [--assert] [--commit REV]

`database`: Gateway 0 runs from the source of an earlier commit (testing/earlier_version.py), gateway 1 from this
checkout. Both start on the earlier commit's schema, so the new gateway runs on the old schema. Then `headgate ledger
migrate` upgrades the database under load. Finally the database is killed, so that both gateways check the schema again,
and the earlier gateway is killed and started on the new schema. As in `just ledger-faults`, every complete response
must have exactly one row per attempt, and the totals must match the rows.

`cell`: The same gateways form one cell on Redis and share a database (bench/skewed_cell.py).

`unready_s` is the total time for which either gateway ran but returned an error for /ready. A gateway that is being
restarted does not count. `lost` and `doubled` are the sums of both parts.

Progress goes to stderr, tables to stdout. The last line is the results as JSON.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import aiohttp

from bench.cli import print_progress, report_problem, stop_cleanly_on_sigterm
from bench.ledger_faults import (
    CALLERS,
    GATEWAYS,
    CallerCounts,
    FaultedLedger,
    Figures,
    call_for_ever,
    compare,
    problems_of,
    settle,
    table_of,
)
from bench.skewed_cell import SkewedCell, run_cell
from headgate.control.directory_sync import migrate_database
from testing.earlier_version import SCHEMA_2, earlier_source, migrate_with
from testing.processes import MissingProgram, ProcessFailedError

PHASE_S, SMOKE_PHASE_S = 15.0, 3.0
LOOK_INTERVAL_S = 0.1
EARLIER, THIS = 0, 1


class SkewedLedger(FaultedLedger):
    """A database on the earlier schema, with one gateway of each version."""

    def __init__(self, stack: ExitStack, folder: Path, source: Path) -> None:
        self._source = source
        self.restarting: set[int] = set()
        super().__init__(stack, folder, seed=1)

    def environment(self, number: int) -> Mapping[str, str]:
        return {"PYTHONPATH": str(self._source)} if number == EARLIER else {}

    async def prepare_database(self) -> None:
        await asyncio.to_thread(migrate_with, self._source, self.database.url)

    async def restart_earlier_gateway(self) -> None:
        self.restarting.add(EARLIER)
        await self.kill_gateway(EARLIER)
        self.restarting.discard(EARLIER)


async def upgrade_under_load(stage: SkewedLedger, phase_s: float) -> None:
    print_progress("both versions on the earlier schema")
    await asyncio.sleep(phase_s)
    print_progress("migrating the database")
    steps = await migrate_database(stage.database.url, lambda step: print_progress(f"applying {step.number:04}"))
    if not steps:
        raise ProcessFailedError("there is nothing to migrate; choose an earlier commit")
    await asyncio.sleep(phase_s)
    print_progress("killing the database, so that both gateways check the schema again")
    await stage.kill_database(0.5)
    await asyncio.sleep(phase_s)
    print_progress("restarting the earlier gateway on the new schema")
    await stage.restart_earlier_gateway()
    await asyncio.sleep(phase_s)
    stage.check()


async def count_unready(stage: SkewedLedger, number: int, http: aiohttp.ClientSession, seconds: list[float]) -> None:
    """Adds the time for which the gateway is running but not ready."""
    last = time.monotonic()
    while True:
        was_restarting = number in stage.restarting
        try:
            async with http.get(f"{stage.admin_urls[number]}/ready") as answer:
                ready = answer.status == 200
        except (aiohttp.ClientError, OSError):
            ready = False
        now = time.monotonic()
        if not ready and not was_restarting and number not in stage.restarting:
            seconds[number] += now - last
        last = now
        await asyncio.sleep(LOOK_INTERVAL_S)


async def run(stage: SkewedLedger, phase_s: float) -> tuple[Figures, CallerCounts, float]:
    seen, unready = CallerCounts(), [0.0] * GATEWAYS
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        tasks = [asyncio.create_task(count_unready(stage, number, http, unready)) for number in range(GATEWAYS)]
        tasks += [
            asyncio.create_task(call_for_ever(stage, number, seen, http))
            for number in range(GATEWAYS)
            for _ in range(CALLERS)
        ]
        await upgrade_under_load(stage, phase_s)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        await settle(stage, http)
        return await compare(stage, seen, http), seen, sum(unready)


def database_part(source: Path, folder: Path, phase_s: float) -> dict[str, Any]:
    with ExitStack() as stack:
        stage = SkewedLedger(stack, folder, source)
        figures, seen, unready_s = asyncio.run(run(stage, phase_s))
    print(table_of(figures, seen))
    for problem in problems_of(figures):
        print_progress(problem)
    return {
        "lost": figures.lost,
        "doubled": figures.doubled,
        "unready_s": round(unready_s, 2),
        "requests": figures.requests,
        "rows": figures.rows,
        "sums_differ": int(figures.sums_differ),
        "problems": len(problems_of(figures)),
    }


def cell_part(source: Path, folder: Path, phase_s: float) -> dict[str, Any]:
    with ExitStack() as stack:
        figures = asyncio.run(run_cell(SkewedCell(stack, folder, source), phase_s))
    result = asdict(figures) | {"unready_s": round(figures.unready_s, 2), "problems": len(figures.problems())}
    for problem in figures.problems():
        print_progress(problem)
    print("\n".join(f"cell: {name:<34} {value!s:>14}" for name, value in result.items()))
    return result


PARTS = {"database": database_part, "cell": cell_part}
SUMS = ("lost", "doubled", "unready_s", "requests", "rows", "sums_differ", "problems")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--commit", default=SCHEMA_2, metavar="REV", help="earlier commit (default: last with schema 2)"
    )
    parser.add_argument("--part", choices=tuple(PARTS), help="run only this part")
    parser.add_argument("--smoke", action="store_true", help="run for a few seconds, as a smoke test")
    parser.add_argument(
        "--assert",
        dest="check",
        action="store_true",
        help="exit 1 if a request or row is lost or duplicated, or a gateway unready",
    )
    options = parser.parse_args()
    stop_cleanly_on_sigterm()
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="headgate-skew-") as name:
        folder = Path(name)
        try:
            source = earlier_source(folder / "earlier", options.commit)
            for part in (options.part,) if options.part else tuple(PARTS):
                (folder / part).mkdir()
                results[part] = PARTS[part](source, folder / part, SMOKE_PHASE_S if options.smoke else PHASE_S)
        except MissingProgram as missing:
            sys.exit(report_problem("version_skew", str(missing)))
    sums = {key: round(sum(each[key] for each in results.values()), 2) for key in SUMS}
    print(json.dumps(sums | results))
    sys.exit(1 if options.check and (sums["problems"] or sums["unready_s"]) else 0)


if __name__ == "__main__":
    main()
