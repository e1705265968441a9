"""Measure how much CPU time the ledger costs a gateway, and the write rate and size of its rows.

    just bench-ledger [--quick] [--assert] [--rows N]

Two gateways with the same database and prices, one with and one without a ledger, are loaded in turn on one core, pair
by pair. Upstream, database and load generator run on another core. The result is the median over all pairs of the ratio
of CPU time per request within each pair, because other load on the machine affects both sides. Requests carry metadata.
There are two loads: the cheapest possible non-streaming requests, and streams of 50 chunks, as in most traffic. The
higher ratio counts.

Then a day of a million rows is written through the regular write path to an empty database, to measure rows per second
and bytes per row including indexes.

Progress goes to stderr, a table to stdout. The last line is the results as JSON.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from statistics import median

import asyncpg

from bench.cli import format_figures, print_progress, stop_cleanly_on_sigterm
from bench.cpu_cores import started_on, two_cores
from bench.ledger_fill import fill_day
from bench.mock_upstream import MODEL
from bench.paired_cpu import Load, pairs_of
from bench.targets import IN_FLIGHT_MAX, gateway, upstream
from headgate.control.directory_sync import migrate_database
from testing.postgres import Postgres, postgres

RATIO_MAX = 1.05
RATIO_MAX_IN_CI = 1.4
"""Limit in CI, where the cores are shared and there are few pairs. A higher ratio is not noise."""
METADATA = {"conversation": "c-0123456789abcdef", "feature": "search"}
PAIRS, QUICK_PAIRS = 21, 7
"""Number of pairs. Many short pairs average out changing load on the machine."""
SECONDS, QUICK_SECONDS = 2.0, 1.5
ROWS, QUICK_ROWS = 1_000_000, 50_000
DAY = date(2026, 11, 15)
LOADS: Mapping[str, Load] = {
    "plain": Load(connections=16, warm_up_s=0.5, metadata=METADATA),
    "streamed": Load(connections=64, warm_up_s=0.7, chunks=50, pace_ms=5, metadata=METADATA),
}


def measure_cpu(*, pairs: int, seconds: float) -> dict[str, float]:
    cores, figures = two_cores(), dict[str, float]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-bench-")))
        with started_on(cores.instruments):
            database = stack.enter_context(postgres())
        asyncio.run(migrate_database(database.url, lambda _: None))
        behind = stack.enter_context(upstream(cores.instruments))
        url = f"http://127.0.0.1:{behind.port}"
        pool = {"engine": "vllm", "served_model": MODEL, "in_flight_max": IN_FLIGHT_MAX, "endpoints": [url]}
        common = {"database": {"url": database.url}, "pools": {"bench": pool | {"prices": {"per_hour": 2.5}}}}
        with_ledger = common | {"ledger": {"spool_directory": str(folder / "spool"), "metadata_keys": list(METADATA)}}
        on = stack.enter_context(gateway(cores.target, url, folder / "on", settings=with_ledger))
        off = stack.enter_context(gateway(cores.target, url, folder / "off", settings=common))
        for load in LOADS:
            found = pairs_of(on, off, load, LOADS[load], pairs=pairs, seconds=seconds, cores=cores)
            figures[f"cpu_us_on_{load}"] = round(median(with_ for with_, _ in found), 1)
            figures[f"cpu_us_off_{load}"] = round(median(without for _, without in found), 1)
            figures[f"cpu_ratio_{load}"] = round(median(with_ / without for with_, without in found), 4)
    return figures


async def fill(database: Postgres, rows: int) -> dict[str, float]:
    await migrate_database(database.url, lambda _: None)
    filled = await fill_day(database.url, rows, DAY)
    link = await asyncpg.connect(database.url)
    try:
        name = f"headgate.usage_{DAY:%Y%m%d}"
        heap, whole = await link.fetchrow(
            "select pg_table_size($1::regclass), pg_total_relation_size($1::regclass)", name
        )
    finally:
        await link.close()
    return {
        "rows": filled.rows,
        "rows_per_s": round(filled.rows / filled.seconds),
        "cpu_us_per_row": round(1e6 * filled.cpu_s / filled.rows, 1),
        "bytes_per_row": round(whole / filled.rows),
        "bytes_per_row_without_indexes": round(heap / filled.rows),
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench-ledger", description="Measure the cost of the ledger.")
    parser.add_argument("--quick", action="store_true", help="run fewer pairs and write fewer rows")
    parser.add_argument(
        "--pairs", type=int, metavar="N", help=f"pairs of runs (default {PAIRS}; with --quick {QUICK_PAIRS})"
    )
    parser.add_argument(
        "--assert", dest="check", action="store_true", help=f"exit 1 if the ratio exceeds {RATIO_MAX_IN_CI}"
    )
    parser.add_argument("--rows", type=int, help=f"rows to write (default {ROWS:,}; with --quick {QUICK_ROWS:,})")
    args = parser.parse_args(arguments)
    stop_cleanly_on_sigterm()
    pairs, seconds = (QUICK_PAIRS, QUICK_SECONDS) if args.quick else (PAIRS, SECONDS)
    pairs = args.pairs or pairs
    figures = measure_cpu(pairs=pairs, seconds=seconds)
    with postgres() as database:
        print_progress("writing one day of rows through the regular write path")
        figures |= asyncio.run(fill(database, args.rows or (QUICK_ROWS if args.quick else ROWS)))
    figures = {"cpu_ratio_on_off": max(figures[f"cpu_ratio_{load}"] for load in LOADS)} | figures
    print(format_figures(figures))
    verdict = "met" if figures["cpu_ratio_on_off"] <= RATIO_MAX else "MISSED"
    print(f"cpu_ratio_on_off (limit {RATIO_MAX}): {verdict}")
    print(json.dumps(figures), flush=True)
    return 1 if args.check and figures["cpu_ratio_on_off"] > RATIO_MAX_IN_CI else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
