"""Is a row lost or doubled when database or gateway are killed under load, and do tokens agree with the engines'?

    just ledger-faults [--quick] [--assert] [--seed N]

A real PostgreSQL, two gateways with one spool folder, two simulated engines that record every request they are sent,
and callers who note which answers they got whole. Under load the database is killed (-9) and restarted several times,
and away for five minutes (with --quick for 20 seconds); meanwhile, with rows in its spool, a gateway is killed (-9) and
restarted, and once more while the database is there. Then every answer that a caller got whole must have exactly the
rows of its attempts, and the tokens of these rows must be those that the engines say they produced.

What a caller was cut off from by the kill of its gateway is counted apart: nobody can say how it would have ended.

Progress goes to stderr; to stdout a table for people and, as the last line, the figures as JSON.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import yaml

from bench.command import stop_cleanly_on_sigterm, tell
from headgate.control.directory_sync import migrate_database
from headgate.simulation.server.record import read_record
from testing.ports import free_port
from testing.postgres import Postgres, postgres
from testing.processes import ChildProcess, ProcessFailedError
from testing.simulated import HEADGATE, simulated_engines

GATEWAYS = 2
CALLERS = 12
"""Of each gateway, one request at a time each."""
PAUSE_S = 0.15
"""Of a caller between two requests."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How often the database is killed, and how long everything takes."""

    kills: int = 5
    away_s: float = 300.0
    between_s: float = 10.0


QUICK = Plan(kills=2, away_s=20.0, between_s=4.0)
SMOKE = Plan(kills=1, away_s=2.0, between_s=1.0)
SETTLE_S_MAX = 150.0
DIFFERENCE_PPM_MAX = 1_000.0
ANSWERS_MIN = 300
"""A tenth of what two busy cores answer in the short run."""
READY_S_MAX = 120.0


@dataclass(slots=True)
class Seen:
    """What the callers know."""

    whole: set[str] = field(default_factory=set[str])
    """The ids of answers that came whole."""
    cut: Counter[str] = field(default_factory=Counter[str])
    """How many were cut off, by what they saw of it."""
    others: Counter[int] = field(default_factory=Counter[int])
    """Answers of another status, by it."""


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
    """What the engines' /metrics say they produced, of which those who were cut off are a part."""
    recorded_tokens: int = 0


class Stage:
    """All processes, and what is done to them."""

    def __init__(self, stack: ExitStack, folder: Path, seed: int) -> None:
        self._stack = stack
        self._folder = folder
        self.chance = random.Random(seed)
        self.record = folder / "engines.jsonl"
        self.database: Postgres = stack.enter_context(postgres())
        asyncio.run(migrate_database(self.database.url, lambda _: None))
        arguments = ("--record", str(self.record), "--profile", "h200-llama-8b", "--speed-up", "4")
        self.engines = stack.enter_context(simulated_engines(2, *arguments, model="m"))
        self._configs = [self._config() for _ in range(GATEWAYS)]
        self._processes = [self._start(number) for number in range(GATEWAYS)]
        self.urls = [f"http://{each['listen']}" for each in self._configs]
        self.admin_urls = [f"http://{each['admin_listen']}" for each in self._configs]

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
            "ledger": {"spool": str(self._folder / "spool")},
        }

    def _start(self, number: int) -> ChildProcess:
        file = self._folder / f"gateway{number}.yaml"
        file.write_text(yaml.safe_dump(self._configs[number]))
        process = self._stack.enter_context(ChildProcess(f"gateway{number}", [*HEADGATE, "serve", str(file)]))
        process.wait_until_ok(f"http://{self._configs[number]['admin_listen']}/ready", seconds_max=READY_S_MAX)
        return process

    def check(self) -> None:
        """Raises where a gateway has ended that nobody killed."""
        for process in self._processes:
            if process.exit_status is not None:
                raise ProcessFailedError(f"a gateway ended by itself; its log ends in:\n{process.log()[-6000:]}")

    def spooled(self) -> bool:
        """Whether a file holds rows: one that was just begun has only its heading."""
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


# Callers


async def call_for_ever(stage: Stage, number: int, seen: Seen, http: aiohttp.ClientSession) -> None:
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
                    seen.cut["a part of the answer"] += 1
        except aiohttp.ClientConnectorError:
            # The gateway is down: this one was never sent.
            await asyncio.sleep(0.1)
        except (aiohttp.ClientError, OSError) as error:
            seen.cut[type(error).__name__] += 1


def body_is_whole(text: bytes) -> bool:
    return text.rstrip().endswith(b"data: [DONE]") if text.startswith(b"data:") else text.rstrip().endswith(b"}")


# What befalls them


async def hurt(stage: Stage, plan: Plan) -> None:
    kills, between_s, away_s = plan.kills, plan.between_s, plan.away_s
    await asyncio.sleep(between_s)
    for number in range(kills):
        tell(f"kill -9 of the database, {number + 1} of {kills}")
        await stage.kill_database(stage.chance.uniform(0.0, 3.0))
        await asyncio.sleep(between_s * stage.chance.uniform(0.5, 1.5))
    stage.check()
    tell(f"the database is away for {away_s:.0f} s")
    away = asyncio.create_task(stage.kill_database(away_s))
    await asyncio.sleep(away_s / 2)
    tell("kill -9 of a gateway with rows in its spool")
    await stage.kill_gateway(0)
    await away
    await asyncio.sleep(between_s)
    stage.check()
    tell("kill -9 of a gateway while the database is there")
    await stage.kill_gateway(1)
    await asyncio.sleep(between_s)
    stage.check()
    tell("kill -9 of both at once")
    stage.database.kill()
    await stage.kill_gateway(0)
    await asyncio.to_thread(stage.database.restart)
    await asyncio.sleep(between_s)
    stage.check()


async def settle(stage: Stage, http: aiohttp.ClientSession) -> None:
    """Until nothing is open and nothing waits."""
    stage.check()
    async with asyncio.timeout(SETTLE_S_MAX):
        for url in stage.admin_urls:
            while True:
                async with http.get(f"{url}/status") as answer:
                    status = await answer.json()
                if not status["requests_open"] and not status["ledger"]["rows_waiting"]:
                    break
                await asyncio.sleep(0.2)
        # What a dead process left to one that lives is found within half a minute.
        while stage.spooled():  # noqa: ASYNC110  Another process empties it.
            await asyncio.sleep(0.5)


# What it comes to


async def judge(stage: Stage, seen: Seen, http: aiohttp.ClientSession) -> Figures:
    figures = Figures(requests=len(seen.whole), cut=seen.cut.total())
    lines = read_record(stage.record)
    link = await asyncpg.connect(stage.database.url)
    rows = await link.fetch(
        "select request, attempt, correction, tokens_in, tokens_out, usage_source from headgate.usage"
    )
    sums = await link.fetchrow(
        "select (select coalesce(sum(tokens_in + tokens_out), 0) from headgate.usage_days)"
        " - (select coalesce(sum(tokens_in + tokens_out), 0) from headgate.usage) as tokens,"
        " (select coalesce(sum(attempts), 0) from headgate.usage_days)"
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


async def run(stage: Stage, plan: Plan) -> tuple[Figures, Seen]:
    seen = Seen()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        callers = [
            asyncio.create_task(call_for_ever(stage, number, seen, http))
            for number in range(GATEWAYS)
            for _ in range(CALLERS)
        ]
        telling = asyncio.create_task(_tell_for_ever(seen))
        await hurt(stage, plan)
        for task in (*callers, telling):
            task.cancel()
        for result in await asyncio.gather(*callers, telling, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        await settle(stage, http)
        return await judge(stage, seen, http), seen


async def _tell_for_ever(seen: Seen) -> None:
    while True:
        await asyncio.sleep(10.0)
        tell(f"{len(seen.whole):,} answers, {seen.cut.total()} cut off")


def table_of(figures: Figures, seen: Seen) -> str:
    lines = (
        ("answers that came whole", f"{figures.requests:,}"),
        ("cut off by the kill of their gateway", f"{figures.cut:,}"),
        ("as they saw it", ", ".join(f"{count} x {what}" for what, count in seen.cut.items()) or "none"),
        ("other answers", ", ".join(f"{count} x {status}" for status, count in seen.others.items()) or "none"),
        ("rows", f"{figures.rows:,}"),
        ("lost", f"{figures.lost:,}"),
        ("doubled", f"{figures.doubled:,}"),
        ("tokens, as the engines recorded them", f"{figures.engine_tokens:,}"),
        ("tokens, as the ledger has them", f"{figures.ledger_tokens:,}"),
        ("output tokens by the engines' counters", f"{figures.engine_counters:,}"),
        ("of which in their records", f"{figures.recorded_tokens:,}"),
    )
    return "\n".join(f"{name:<40} {value:>14}" for name, value in lines)


def problems_of(figures: Figures) -> list[str]:
    """What must not be. Figures of a run in which hardly anybody was answered say nothing."""
    return [
        problem
        for wrong, problem in (
            (figures.requests < ANSWERS_MIN, f"{figures.requests} answers came whole; {ANSWERS_MIN} are needed"),
            (figures.rows < figures.requests, f"{figures.rows} rows for {figures.requests} answers"),
            (figures.engine_tokens == 0, "the engines recorded no token"),
            (figures.lost > 0, f"{figures.lost} rows are lost"),
            (figures.doubled > 0, f"{figures.doubled} rows are doubled"),
            (figures.sums_differ > 0, f"sums of days and their rows differ by {figures.sums_differ}"),
            (figures.difference_ppm > DIFFERENCE_PPM_MAX, f"tokens differ by {figures.difference_ppm} in a million"),
        )
        if wrong
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="about two minutes")
    parser.add_argument("--smoke", action="store_true", help="a few seconds, only to see that all of it works")
    parser.add_argument(
        "--assert",
        dest="check",
        action="store_true",
        help="exit 1 when a row is lost or doubled, or hardly any were written",
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    stop_cleanly_on_sigterm()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-ledger-")))
        stage = Stage(stack, folder, options.seed)
        figures, seen = asyncio.run(run(stage, SMOKE if options.smoke else QUICK if options.quick else Plan()))
    print(table_of(figures, seen))
    problems = problems_of(figures)
    for problem in problems:
        tell(problem)
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
