"""How long does each report take on a day of a million rows, and on a month of such days?

A PostgreSQL of its own is filled through the real path (bench/ledger_fill.py) with one day. The sums of that day are
then repeated for the thirty before it, which is all that reports of a month read. Each report is asked a few times; the
median is told, with the CPU time of PostgreSQL where it is its own, and the whole is one JSON object in the last line.

    python -m bench.ledger_reports [--rows 1000000] [--url URL]
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from bench.command import tell
from bench.ledger_fill import fill_day
from headgate.control.directory_sync import migrate_database
from headgate.ledger.database import Database
from headgate.ledger.reports.queries import instant
from headgate.ledger.reports.reports import PostgresReports, Terms
from headgate.model.money import NanoUsd, Price
from headgate.model.units import SECOND, Instant
from headgate.ports.reports import Rows
from testing.postgres import postgres

TIMES = 5
DAYS = 31
DAY = date(2026, 11, 15)

_REPEAT_DAYS = (
    "insert into headgate.usage_days select day - {back}, tenant, class, model, pool, payer, cause, outcome, requests,"
    " attempts, tokens_in, tokens_cached, tokens_out, tokens_reasoning, engine_us, input_nano_usd, output_nano_usd,"
    " overhead_nano_usd from headgate.usage_days where day = $1"
)
_REPEAT_HOURS = (
    "insert into headgate.endpoint_hours select hour - interval '{back} days', pool, hour_nano_usd, price_kind,"
    " whole_us, starting_us, unready_us, idle_us, billed_us, late_us from headgate.endpoint_hours"
    " where hour >= $1::date and hour < $1::date + 1"
)


async def prepare(url: str, rows: int) -> str:
    """One day of rows, thirty more of sums; the id of one request."""
    await migrate_database(url, lambda _: None)
    tell(f"{rows:,} rows of {DAY}")
    await fill_day(url, rows, DAY)
    link = await asyncpg.connect(url)
    try:
        tell(f"the sums of {DAYS - 1} days before it")
        for back in range(1, DAYS):
            for statement in (_REPEAT_DAYS, _REPEAT_HOURS):
                await link.execute(statement.format(back=back), DAY)
        await link.execute("analyze")
        return str(await link.fetchval("select request from headgate.usage where at > $1 limit 1", _noon()))
    finally:
        await link.close()


def _noon() -> datetime:
    return datetime(DAY.year, DAY.month, DAY.day, 12, tzinfo=UTC)


def reports_of(url: str) -> PostgresReports:
    pools = ("small", "large", "large-spot", "long")
    weights = {pool: {f"org{number}": 100 for number in range(10)} for pool in pools}
    prices = dict.fromkeys(pools, (Price(hour=NanoUsd(2_500_000_000)),))
    terms = Terms(prices, weights, {"org1": (NanoUsd(10**12), True)}, retention_days=60)
    return PostgresReports(Database(url, connect_s_max=60.0, query_s_max=60.0), lambda: terms)


def questions(reports: PostgresReports, request: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    day = Rows(instant(DAY), instant(DAY + timedelta(days=1)))
    month = Rows(instant(DAY - timedelta(days=DAYS - 1)), instant(DAY + timedelta(days=1)))
    hour = Rows(Instant(day.since + 9 * 3_600 * SECOND), Instant(day.since + 10 * 3_600 * SECOND))
    late, later = Instant(day.until - 3_600 * SECOND), Instant(day.until + 3_600 * SECOND)
    asked: dict[str, Callable[[], Awaitable[Any]]] = {}
    for span, rows in (("day", day), ("31 days", month)):
        for by in ("tenant", "model", "class", "pool", "day"):
            asked[f"by {by}, {span}"] = lambda rows=rows, by=by: reports.report(rows, by=by, key="", depth=1, limit=50)
    asked["by tenant, one hour"] = lambda: reports.report(hour, by="tenant", key="", depth=1, limit=50)
    for key in ("feature", "conversation"):
        asked[f"by unit {key}, day"] = lambda key=key: reports.report(day, by="unit", key=key, depth=1, limit=50)
    asked["one request"] = lambda: reports.request(request, "", now=late)
    asked["statement of a month"] = lambda: reports.statements("2026-11", "", now=later)
    asked["statement of one tenant"] = lambda: reports.statements("2026-11", "org1", now=later)
    asked["forecast"] = lambda: reports.forecast("", now=late)
    asked["drift so far"] = lambda: reports.drift("", "", now=late)
    asked["drift of a day"] = lambda: reports.drift(DAY.isoformat(), "", now=later)
    return asked


def cpu_s(postmaster: int | None) -> float:
    """Of PostgreSQL with all its processes, those that have ended included."""
    if postmaster is None:
        return 0.0
    ticks = 0
    for pid in (postmaster, *_children(postmaster)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(each) for each in fields[11 : 15 if pid == postmaster else 13])
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def measure(url: str, rows: int, *, fill: bool, postmaster: int | None) -> dict[str, tuple[float, float]]:
    if fill:
        request = await prepare(url, rows)
    else:
        link = await asyncpg.connect(url)
        request = str(await link.fetchval("select request from headgate.usage where at > $1 limit 1", _noon()))
        await link.close()
    reports = reports_of(url)
    taken: dict[str, tuple[float, float]] = {}
    try:
        for name, ask in questions(reports, request).items():
            seconds, cpu_at = [], cpu_s(postmaster)
            for _ in range(TIMES):
                began_at = time.perf_counter()
                await ask()
                seconds.append(time.perf_counter() - began_at)
            cpu = (cpu_s(postmaster) - cpu_at) / TIMES
            taken[name] = (round(statistics.median(seconds), 3), round(cpu, 3))
            tell(f"{name:28} {taken[name][0] * 1e3:8.1f} ms {1e3 * cpu:8.1f} ms of CPU")
    finally:
        await reports.stop()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--url", help="of an empty database, instead of one of its own")
    parser.add_argument("--filled", action="store_true", help="the database of --url was filled by this before")
    parser.add_argument("--pid", type=int, help="of the PostgreSQL of --url, to tell its CPU time")
    options = parser.parse_args()
    with ExitStack() as stack:
        url, postmaster = options.url, options.pid
        if url is None:
            server = stack.enter_context(postgres())
            url, postmaster = server.url, server.pid
        taken = asyncio.run(measure(url, options.rows, fill=not options.filled, postmaster=postmaster))
    slowest = max(taken, key=lambda name: taken[name])
    told = {name: {"seconds": seconds, "cpu_s": cpu} for name, (seconds, cpu) in taken.items()}
    print(json.dumps({"rows": options.rows, "slowest": slowest, "slowest_s": taken[slowest][0], "reports": told}))


if __name__ == "__main__":
    main()
