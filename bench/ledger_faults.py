"""Check that no ledger row is lost or duplicated when the database or a gateway is killed under load.

    just ledger-faults [--quick] [--assert] [--seed N]

The setup consists of a real PostgreSQL, two gateways that share a spool directory, two simulated engines that record
every request, and clients that record which responses were complete. Under load, the database is killed (-9) and
restarted several times, then stays down for five minutes (20 seconds with --quick). During that time a gateway with
rows in its spool is killed (-9) and restarted. Another is killed while the database is up. Afterwards every complete
response must have exactly one row per attempt, and the tokens in these rows must match the engines' records.

Responses cut off when their gateway is killed are counted separately, because their result is unknown.

Progress goes to stderr, a table to stdout. The last line is the results as JSON.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import yaml

from bench.cli import print_progress, stop_cleanly_on_sigterm
from headgate.control.directory_sync import migrate_database
from headgate.simulation.server.record import read_record
from testing.ports import free_port
from testing.postgres import Postgres, postgres
from testing.processes import ChildProcess, ProcessFailedError
from testing.simulated_engines import HEADGATE, simulated_engines

GATEWAYS = 2
CALLERS = 12
"""Clients per gateway. Each sends one request at a time."""
PAUSE_S = 0.15
"""A client's mean pause between two requests."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Number of database kills and duration of each phase."""

    kills: int = 5
    away_s: float = 300.0
    between_s: float = 10.0


QUICK = Plan(kills=2, away_s=20.0, between_s=4.0)
SMOKE = Plan(kills=1, away_s=2.0, between_s=1.0)
SETTLE_S_MAX = 150.0
DIFFERENCE_PPM_MAX = 1_000.0
ANSWERS_MIN = 300
"""Minimum number of complete responses: a tenth of the number that two busy cores produce in the short run."""
READY_S_MAX = 120.0


@dataclass(slots=True)
class CallerCounts:
    """Results as seen by the clients."""

    whole: set[str] = field(default_factory=set[str])
    """Request IDs of complete responses."""
    cut: Counter[str] = field(default_factory=Counter[str])
    """Number of truncated responses, by error."""
    others: Counter[int] = field(default_factory=Counter[int])
    """Number of responses with a status other than 200, by status."""


@dataclass(slots=True)
class Figures:
    rows: int = 0
    requests: int = 0
    cut: int = 0
    lost: int = 0
    doubled: int = 0
    sums_differ: int = 0
    difference_ppm: float = 0.0
    engine_tokens: int = 0
    ledger_tokens: int = 0
    engine_counters: int = 0
    """Output tokens according to the engines' /metrics, including those of truncated responses."""
    recorded_tokens: int = 0


class FaultedLedger:
    """All processes, with methods to kill them."""

    def __init__(self, stack: ExitStack, folder: Path, seed: int) -> None:
        self._stack = stack
        self._folder = folder
        self.chance = random.Random(seed)
        self.record = folder / "engines.jsonl"
        self.database: Postgres = stack.enter_context(postgres())
        asyncio.run(self.prepare_database())
        arguments = ("--record", str(self.record), "--profile", "h200-llama-8b", "--speed-up", "4")
        self.engines = stack.enter_context(simulated_engines(2, *arguments, model="m"))
        self._configs = [self._config() for _ in range(GATEWAYS)]
        self._processes = [self._start(number) for number in range(GATEWAYS)]
        self.urls = [f"http://{each['listen']}" for each in self._configs]
        self.admin_urls = [f"http://{each['admin_listen']}" for each in self._configs]

    async def prepare_database(self) -> None:
        await migrate_database(self.database.url, lambda _: None)

    def environment(self, number: int) -> Mapping[str, str]:
        """Environment variables of a gateway, in addition to those of this process."""
        del number
        return {}

    def _config(self) -> dict[str, Any]:
        pool = {"engine": "vllm", "served_model": "m", "in_flight_max": 64, "endpoints": self.engines}
        return {
            "listen": f"127.0.0.1:{free_port()}",
            "admin_listen": f"127.0.0.1:{free_port()}",
            "pools": {"small": pool},
            "models": {"m": "small"},
            "tenants": {"acme": {}},
            "anonymous_tenant": "acme",
            "key_secret": "a secret of a benchmark",
            "database": {"url": self.database.url},
            "ledger": {"spool_directory": str(self._folder / "spool")},
        }

    def _start(self, number: int) -> ChildProcess:
        file = self._folder / f"gateway{number}.yaml"
        file.write_text(yaml.safe_dump(self._configs[number]))
        process = self._stack.enter_context(
            ChildProcess(f"gateway{number}", [*HEADGATE, "serve", "--config", str(file)], self.environment(number))
        )
        process.wait_until_ok(f"http://{self._configs[number]['admin_listen']}/ready", seconds_max=READY_S_MAX)
        return process

    def check(self) -> None:
        """Raise an error if a gateway has exited without being killed."""
        for process in self._processes:
            if process.exit_status is not None:
                raise ProcessFailedError(f"a gateway exited unexpectedly; end of its log:\n{process.log()[-6000:]}")

    def spooled(self) -> bool:
        """Return whether a spool file contains rows. A new file has only its header."""
        return any(file.stat().st_size > 100 for file in (self._folder / "spool").glob("*.rows"))

    async def kill_gateway(self, number: int) -> None:
        process = self._processes[number]
        process.kill()
        await asyncio.to_thread(process.wait_until_ended)
        await asyncio.sleep(0.5)
        self._processes[number] = await asyncio.to_thread(self._start, number)

    async def kill_database(self, away_s: float) -> None:
        await asyncio.to_thread(self.database.kill)
        await asyncio.sleep(away_s)
        await asyncio.to_thread(self.database.restart)


# Clients


async def call_for_ever(stage: FaultedLedger, number: int, seen: CallerCounts, http: aiohttp.ClientSession) -> None:
    chance = random.Random(stage.chance.random())
    while True:
        await asyncio.sleep(PAUSE_S * 2 * chance.random())
        content = f"{chance.getrandbits(64):x} " * chance.randint(1, 40)
        body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": chance.randint(4, 60)}
        try:
            asked = http.post(
                f"{stage.urls[number]}/v1/chat/completions", json=body | {"stream": chance.random() < 0.5}
            )
            async with asked as answer:
                text = await answer.read()
                if answer.status != 200:
                    seen.others[answer.status] += 1
                elif body_is_whole(text):
                    seen.whole.add(answer.headers["x-request-id"])
                else:
                    seen.cut["truncated response"] += 1
        except aiohttp.ClientConnectorError:
            # The gateway is down and the request was not sent.
            await asyncio.sleep(0.1)
        except (aiohttp.ClientError, OSError) as error:
            seen.cut[type(error).__name__] += 1


def body_is_whole(text: bytes) -> bool:
    return text.rstrip().endswith(b"data: [DONE]") if text.startswith(b"data:") else text.rstrip().endswith(b"}")


# Faults


async def inject_faults(stage: FaultedLedger, plan: Plan) -> None:
    kills, between_s, away_s = plan.kills, plan.between_s, plan.away_s
    await asyncio.sleep(between_s)
    for number in range(kills):
        print_progress(f"killing the database (kill -9), {number + 1} of {kills}")
        await stage.kill_database(stage.chance.uniform(0.0, 3.0))
        await asyncio.sleep(between_s * stage.chance.uniform(0.5, 1.5))
    stage.check()
    print_progress(f"stopping the database for {away_s:.0f} s")
    away = asyncio.create_task(stage.kill_database(away_s))
    await asyncio.sleep(away_s / 2)
    print_progress("killing a gateway with rows in its spool (kill -9)")
    await stage.kill_gateway(0)
    await away
    await asyncio.sleep(between_s)
    stage.check()
    print_progress("killing a gateway while the database is up (kill -9)")
    await stage.kill_gateway(1)
    await asyncio.sleep(between_s)
    stage.check()
    print_progress("killing gateway and database together (kill -9)")
    stage.database.kill()
    await stage.kill_gateway(0)
    await asyncio.to_thread(stage.database.restart)
    await asyncio.sleep(between_s)
    stage.check()


async def settle(stage: FaultedLedger, http: aiohttp.ClientSession) -> None:
    """Wait until no requests are open and no rows are pending."""
    stage.check()
    async with asyncio.timeout(SETTLE_S_MAX):
        for url in stage.admin_urls:
            while True:
                async with http.get(f"{url}/status") as answer:
                    status = await answer.json()
                if not status["requests_open"] and not status["ledger"]["rows_waiting"]:
                    break
                await asyncio.sleep(0.2)
        # A running process finds a dead process's spool files within half a minute.
        while stage.spooled():  # noqa: ASYNC110  Another process empties it.
            await asyncio.sleep(0.5)


# Results


async def compare(stage: FaultedLedger, seen: CallerCounts, http: aiohttp.ClientSession) -> Figures:
    figures = Figures(requests=len(seen.whole), cut=seen.cut.total())
    lines = read_record(stage.record)
    link = await asyncpg.connect(stage.database.url)
    rows = await link.fetch(
        "select request, attempt, correction, tokens_in, tokens_out, usage_source from headgate.usage"
    )
    sums = await link.fetchrow(
        "select (select coalesce(sum(tokens_in + tokens_out), 0) from headgate.usage_daily)"
        " - (select coalesce(sum(tokens_in + tokens_out), 0) from headgate.usage) as tokens,"
        " (select coalesce(sum(attempts), 0) from headgate.usage_daily)"
        " - (select count(*) from headgate.usage where attempt > 0) as attempts"
    )
    await link.close()
    assert sums is not None
    figures.rows, figures.sums_differ = len(rows), abs(sums["tokens"]) + abs(sums["attempts"])
    named = Counter((row["request"], row["attempt"], row["correction"]) for row in rows)
    figures.doubled = sum(count - 1 for count in named.values())
    sent = Counter(str(line["request_id"]) for line in lines)
    written = Counter(row["request"] for row in rows if row["attempt"] > 0)
    figures.lost = sum(max(0, max(1, sent[name]) - written[name]) for name in seen.whole)
    finished = [line for line in lines if line["outcome"] == "finished" and line["request_id"] in seen.whole]
    figures.engine_tokens = sum(int(str(line["prompt_tokens"])) + int(str(line["output_tokens"])) for line in finished)
    told = [row for row in rows if row["request"] in seen.whole and row["usage_source"] == "engine"]
    figures.ledger_tokens = sum(row["tokens_in"] + row["tokens_out"] for row in told)
    difference = abs(figures.engine_tokens - figures.ledger_tokens)
    figures.difference_ppm = round(1e6 * difference / max(1, figures.engine_tokens), 3)
    figures.recorded_tokens = sum(int(str(line["output_tokens"])) for line in lines)
    for url in stage.engines:
        async with http.get(f"{url}/metrics") as page:
            figures.engine_counters += _counter(await page.text(), "vllm:generation_tokens_total")
    return figures


def _counter(page: str, name: str) -> int:
    return sum(int(float(line.rpartition(" ")[2])) for line in page.splitlines() if line.startswith(name))


async def run(stage: FaultedLedger, plan: Plan) -> tuple[Figures, CallerCounts]:
    seen = CallerCounts()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        callers = [
            asyncio.create_task(call_for_ever(stage, number, seen, http))
            for number in range(GATEWAYS)
            for _ in range(CALLERS)
        ]
        telling = asyncio.create_task(_print_progress_forever(seen))
        await inject_faults(stage, plan)
        for task in (*callers, telling):
            task.cancel()
        for result in await asyncio.gather(*callers, telling, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        await settle(stage, http)
        return await compare(stage, seen, http), seen


async def _print_progress_forever(seen: CallerCounts) -> None:
    while True:
        await asyncio.sleep(10.0)
        print_progress(f"{len(seen.whole):,} complete responses, {seen.cut.total()} cut off")


def table_of(figures: Figures, seen: CallerCounts) -> str:
    lines = (
        ("complete responses", f"{figures.requests:,}"),
        ("cut off by the kill of their gateway", f"{figures.cut:,}"),
        ("errors of those cut off", ", ".join(f"{count} x {what}" for what, count in seen.cut.items()) or "none"),
        ("other responses", ", ".join(f"{count} x {status}" for status, count in seen.others.items()) or "none"),
        ("rows", f"{figures.rows:,}"),
        ("lost", f"{figures.lost:,}"),
        ("duplicated", f"{figures.doubled:,}"),
        ("tokens in the engines' records", f"{figures.engine_tokens:,}"),
        ("tokens in the ledger", f"{figures.ledger_tokens:,}"),
        ("output tokens in the engines' counters", f"{figures.engine_counters:,}"),
        ("output tokens in the engines' records", f"{figures.recorded_tokens:,}"),
    )
    return "\n".join(f"{name:<40} {value:>14}" for name, value in lines)


def problems_of(figures: Figures) -> list[str]:
    """Return one message per failed check. A run with hardly any complete responses is meaningless and fails too."""
    return [
        problem
        for wrong, problem in (
            (figures.requests < ANSWERS_MIN, f"{figures.requests} complete responses; the minimum is {ANSWERS_MIN}"),
            (figures.rows < figures.requests, f"only {figures.rows} rows for {figures.requests} responses"),
            (figures.engine_tokens == 0, "the engines recorded no tokens"),
            (figures.lost > 0, f"{figures.lost} rows were lost"),
            (figures.doubled > 0, f"{figures.doubled} rows are duplicated"),
            (figures.sums_differ > 0, f"daily totals differ from the sums of their rows by {figures.sums_differ}"),
            (figures.difference_ppm > DIFFERENCE_PPM_MAX, f"token counts differ by {figures.difference_ppm} ppm"),
        )
        if wrong
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="run for about two minutes")
    parser.add_argument("--smoke", action="store_true", help="run for a few seconds, as a smoke test")
    parser.add_argument(
        "--assert",
        dest="check",
        action="store_true",
        help="exit 1 if a row is lost or duplicated, or hardly any rows were written",
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    stop_cleanly_on_sigterm()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-ledger-")))
        stage = FaultedLedger(stack, folder, options.seed)
        figures, seen = asyncio.run(run(stage, SMOKE if options.smoke else QUICK if options.quick else Plan()))
    print(table_of(figures, seen))
    problems = problems_of(figures)
    for problem in problems:
        print_progress(problem)
    result = {
        "rows": figures.rows,
        "requests": figures.requests,
        "cut": figures.cut,
        "lost": figures.lost,
        "doubled": figures.doubled,
        "sums_differ": int(figures.sums_differ),
        "difference_ppm": figures.difference_ppm,
    }
    print(json.dumps(result))
    sys.exit(1 if options.check and problems else 0)


if __name__ == "__main__":
    main()
