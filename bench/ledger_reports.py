"""Measure how long each report takes for a day with a million rows, and for a month of such days.

A new PostgreSQL is filled with one day through the regular write path (bench/ledger_fill.py). The daily totals are then
copied to the thirty days before, which is all that monthly reports read. Each report runs several times. The output
shows the median and, for a PostgreSQL started here, its CPU time. The last line is one JSON object.

    python -m bench.ledger_reports [--rows 1000000] [--url URL] [--unit-key KEY]

With --unit-key, the database sums by this key while the rows are written, and reports by unit use the sums.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import asyncpg

from bench.cli import print_progress
from bench.ledger_fill import fill_day
from headgate.control.directory_sync import migrate_database
from headgate.ledger.connection import DatabaseConnection
from headgate.ledger.database import Database
from headgate.ledger.reports.postgres_reports import PostgresReports, ReportPolicy
from headgate.ledger.reports.queries import to_instant
from headgate.ledger.unit_sums import move_slice
from headgate.model.money import NanoUsd, Price
from headgate.model.units import SECOND, Instant
from headgate.ports.cost_reports import ReportFilter
from testing.postgres import postgres

TIMES = 5
DAYS = 31
DAY = date(2026, 11, 15)

_REPEAT_DAYS = (
    "insert into headgate.usage_daily select day - {back}, tenant, class, model, pool, payer, cause, outcome, requests,"
    " attempts, tokens_in, tokens_cached, tokens_out, tokens_reasoning, engine_us, input_nano_usd, output_nano_usd,"
    " overhead_nano_usd from headgate.usage_daily where day = $1"
)
_REPEAT_HOURS = (
    "insert into headgate.endpoint_hours select hour - interval '{back} days', pool, hour_nano_usd, price_kind,"
    " total_us, starting_us, unready_us, idle_us, billed_us, abort_lag_us from headgate.endpoint_hours"
    " where hour >= $1::date and hour < $1::date + 1"
)


@dataclass(frozen=True, slots=True)
class Prepared:
    request: str
    """ID of one request."""
    seconds: float
    """Time to write the rows and to sum them."""
    cpu_s: float
    """CPU time of PostgreSQL in this time."""


async def prepare(url: str, rows: int, unit_keys: Sequence[str], postmaster: int | None) -> Prepared:
    """Create one day of rows and thirty more days of totals."""
    await migrate_database(url, lambda _: None)
    print_progress(f"writing {rows:,} rows for {DAY}")
    link = await asyncpg.connect(url)
    try:
        for key in unit_keys:
            assert await link.fetchval("select headgate.register_unit_key($1)", key)
        began_at, cpu_at = time.perf_counter(), cpu_s(postmaster)
        await fill_day(url, rows, DAY)
        while await move_slice(cast("DatabaseConnection", link)):
            pass
        seconds, cpu = time.perf_counter() - began_at, cpu_s(postmaster) - cpu_at
        print_progress(f"wrote the rows in {seconds:.1f} s, with {cpu:.1f} s of CPU in PostgreSQL")
        print_progress(f"copying the daily totals to the {DAYS - 1} days before")
        for back in range(1, DAYS):
            for statement in (_REPEAT_DAYS, _REPEAT_HOURS):
                await link.execute(statement.format(back=back), DAY)
        await link.execute("analyze")
        return Prepared(await _one_request(link), round(seconds, 1), round(cpu, 1))
    finally:
        await link.close()


async def _one_request(link: Any) -> str:
    return str(await link.fetchval("select request from headgate.usage where at > $1 limit 1", _noon()))


def _noon() -> datetime:
    return datetime(DAY.year, DAY.month, DAY.day, 12, tzinfo=UTC)


def reports_of(url: str) -> PostgresReports:
    pools = ("small", "large", "large-spot", "long")
    weights = {pool: {f"org{number}": 100 for number in range(10)} for pool in pools}
    prices = dict.fromkeys(pools, (Price(per_hour=NanoUsd(2_500_000_000)),))
    terms = ReportPolicy(prices, weights, {"org1": (NanoUsd(10**12), True)}, retention_days=60)
    return PostgresReports(Database(url, connect_s_max=60.0, query_s_max=60.0), lambda: terms)


def queries(
    reports: PostgresReports, request: str, unit_keys: Sequence[str]
) -> dict[str, Callable[[], Awaitable[Any]]]:
    day = ReportFilter(to_instant(DAY), to_instant(DAY + timedelta(days=1)))
    month = ReportFilter(to_instant(DAY - timedelta(days=DAYS - 1)), to_instant(DAY + timedelta(days=1)))
    hour = ReportFilter(Instant(day.since + 9 * 3_600 * SECOND), Instant(day.since + 10 * 3_600 * SECOND))
    late, later = Instant(day.until - 3_600 * SECOND), Instant(day.until + 3_600 * SECOND)
    asked: dict[str, Callable[[], Awaitable[Any]]] = {}
    for span, rows in (("day", day), ("31 days", month)):
        for by in ("tenant", "model", "class", "pool", "day"):
            asked[f"by {by}, {span}"] = lambda rows=rows, by=by: reports.report(rows, by=by, key="", depth=1, limit=50)
    asked["by tenant, one hour"] = lambda: reports.report(hour, by="tenant", key="", depth=1, limit=50)
    for key in ("feature", "conversation"):
        asked[f"by unit {key}, day"] = lambda key=key: reports.report(day, by="unit", key=key, depth=1, limit=50)
    whole_month = ReportFilter(to_instant(DAY.replace(day=1)), to_instant(DAY + timedelta(days=1)))
    for key in unit_keys:
        asked[f"by unit {key}, month"] = lambda key=key: reports.report(
            whole_month, by="unit", key=key, depth=1, limit=50
        )
    asked["one request"] = lambda: reports.request(request, "", now=late)
    asked["statement of a month"] = lambda: reports.statements("2026-11", "", now=later)
    asked["statement of one tenant"] = lambda: reports.statements("2026-11", "org1", now=later)
    asked["forecast"] = lambda: reports.forecast("", now=late)
    asked["drift so far"] = lambda: reports.drift("", "", now=late)
    asked["drift of a day"] = lambda: reports.drift(DAY.isoformat(), "", now=later)
    return asked


def cpu_s(postmaster: int | None) -> float:
    """Return the CPU time used by PostgreSQL and all its processes, including those that have exited."""
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


async def measure(
    url: str, rows: int, *, fill: bool, unit_keys: Sequence[str], postmaster: int | None
) -> tuple[Prepared, dict[str, tuple[float, float]]]:
    if fill:
        prepared = await prepare(url, rows, unit_keys, postmaster)
    else:
        link = await asyncpg.connect(url)
        prepared = Prepared(await _one_request(link), 0.0, 0.0)
        await link.close()
    reports = reports_of(url)
    taken: dict[str, tuple[float, float]] = {}
    try:
        for name, ask in queries(reports, prepared.request, unit_keys).items():
            seconds, cpu_at = [], cpu_s(postmaster)
            for _ in range(TIMES):
                began_at = time.perf_counter()
                await ask()
                seconds.append(time.perf_counter() - began_at)
            cpu = (cpu_s(postmaster) - cpu_at) / TIMES
            taken[name] = (round(statistics.median(seconds), 3), round(cpu, 3))
            print_progress(f"{name:28} {taken[name][0] * 1e3:8.1f} ms {1e3 * cpu:8.1f} ms of CPU")
    finally:
        await reports.stop()
    return prepared, taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--url", help="URL of an empty database (default: start a new PostgreSQL)")
    parser.add_argument("--unit-key", action="append", default=[], help="sum by this metadata key; can be repeated")
    parser.add_argument("--filled", action="store_true", help="use the database of --url as filled by an earlier run")
    parser.add_argument("--pid", type=int, help="process id of the PostgreSQL of --url, to measure its CPU time")
    options = parser.parse_args()
    with ExitStack() as stack:
        url, postmaster = options.url, options.pid
        if url is None:
            server = stack.enter_context(postgres())
            url, postmaster = server.url, server.pid
        prepared, taken = asyncio.run(
            measure(url, options.rows, fill=not options.filled, unit_keys=options.unit_key, postmaster=postmaster)
        )
    slowest = max(taken, key=lambda name: taken[name])
    told = {name: {"seconds": seconds, "cpu_s": cpu} for name, (seconds, cpu) in taken.items()}
    written = {"seconds": prepared.seconds, "cpu_s": prepared.cpu_s}
    print(
        json.dumps(
            {
                "rows": options.rows,
                "unit_keys": options.unit_key,
                "written": written,
                "slowest": slowest,
                "slowest_s": taken[slowest][0],
                "reports": told,
            }
        )
    )


if __name__ == "__main__":
    main()
