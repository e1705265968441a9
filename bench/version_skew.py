"""Check that gateways of an earlier commit and of this one can share a database, under load.

    just skew [--smoke] [--assert] [--commit REV]

Gateway 0 runs from the source of an earlier commit (testing/earlier_version.py), gateway 1 from this checkout. Both
start on the earlier commit's schema, so the new gateway runs on the old schema. Then `headgate ledger migrate` upgrades
the database under load. Finally the database is killed, so that both gateways check the schema again, and the earlier
gateway is killed and started on the new schema. As in `just ledger-faults`, every complete response must have exactly
one row per attempt, and the totals must match the rows.

`unready_s` is the total time for which either gateway ran but returned an error for /ready. A gateway that is being
restarted does not count.

Progress goes to stderr, a table to stdout. The last line is the results as JSON.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

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
from headgate.control.directory_sync import migrate_database
from testing.earlier_version import SCHEMA_2, earlier_source
from testing.processes import MissingProgram, ProcessFailedError
from testing.simulated_engines import HEADGATE

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
        """Creates the earlier schema, with the earlier commit's own command."""
        file = self._source.parent / "database.yaml"
        file.write_text(json.dumps({"database": self.database.url}))
        command = [*HEADGATE, "ledger", "migrate", "--config", str(file)]
        environment = {**os.environ, "PYTHONPATH": str(self._source)}
        done = await asyncio.to_thread(
            subprocess.run, command, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ProcessFailedError(f"the earlier commit could not create its schema:\n{done.stderr}")

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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--commit", default=SCHEMA_2, metavar="REV", help="earlier commit (default: the last one with schema 2)"
    )
    parser.add_argument("--smoke", action="store_true", help="run for a few seconds, as a smoke test")
    parser.add_argument(
        "--assert",
        dest="check",
        action="store_true",
        help="exit 1 if a row was lost or duplicated, or a gateway was not ready",
    )
    options = parser.parse_args()
    stop_cleanly_on_sigterm()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-skew-")))
        try:
            source = earlier_source(folder / "earlier", options.commit)
        except MissingProgram as missing:
            sys.exit(report_problem("version_skew", str(missing)))
        stage = SkewedLedger(stack, folder, source)
        figures, seen, unready_s = asyncio.run(run(stage, SMOKE_PHASE_S if options.smoke else PHASE_S))
    print(table_of(figures, seen))
    problems = problems_of(figures)
    if unready_s:
        problems.append(f"gateways were not ready for {unready_s:.1f} s")
    for problem in problems:
        print_progress(problem)
    result = {
        "lost": figures.lost,
        "doubled": figures.doubled,
        "unready_s": round(unready_s, 2),
        "requests": figures.requests,
        "rows": figures.rows,
        "sums_differ": int(figures.sums_differ),
    }
    print(json.dumps(result))
    sys.exit(1 if options.check and problems else 0)


if __name__ == "__main__":
    main()
