"""Compare our COPY encoding of usage rows with asyncpg's `copy_records_to_table`.

    python -m bench.ledger_copy [--rows N]

They take turns writing the same rows into a temporary table in a real PostgreSQL. What matters is the ratio of this
process's CPU time per row: the ledger keeps its own encoding (src/headgate/ledger/pg_copy.py) as long as asyncpg's
takes more than 1.2 times as much. The results are medians; the last line of stdout is JSON.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import chain
from operator import attrgetter
from statistics import median
from typing import Any

import asyncpg
import msgspec
import uvloop

from bench.cli import format_figures
from bench.ledger_fill import requests
from headgate.control.directory_sync import migrate_database
from headgate.ledger.pg_copy import COLUMNS, copy_chunks
from headgate.ledger.writer import ROWS_PER_ITERATION
from headgate.ports.ledger import UsageRow
from testing.postgres import postgres

ROWS, ROUNDS = 20_000, 7
DAY = date(2026, 11, 15)
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_JSON = msgspec.json.Encoder()
_BETWEEN = attrgetter(*("service_class" if each == "class" else each for each in COLUMNS[1:-1]))
"""Values of all columns except the first and last, which need conversion."""


def record(row: UsageRow) -> tuple[object, ...]:
    metadata = _JSON.encode(dict(row.metadata)).decode() if row.metadata else None
    return (_1970 + timedelta(microseconds=row.at // 1_000), *_BETWEEN(row), metadata)


async def records(rows: Sequence[UsageRow]) -> AsyncIterator[tuple[object, ...]]:
    """Yield as many records per event loop iteration as `copy_chunks`."""
    for first in range(0, len(rows), ROWS_PER_ITERATION):
        for row in rows[first : first + ROWS_PER_ITERATION]:
            yield record(row)
        await asyncio.sleep(0)


async def measured(url: str, count: int) -> dict[str, float]:
    assert (COLUMNS[0], COLUMNS[-1]) == ("at", "metadata")
    await migrate_database(url, lambda _: None)
    link: Any = await asyncpg.connect(url)
    await link.execute("create temp table copied (like headgate.usage)")
    rows = list(chain.from_iterable(requests(count, DAY)))

    async def ours() -> None:
        await link.copy_to_table(
            "copied", source=copy_chunks(rows, ROWS_PER_ITERATION), columns=COLUMNS, format="binary"
        )

    async def asyncpgs() -> None:
        await link.copy_records_to_table("copied", records=records(rows), columns=COLUMNS)

    both: dict[str, Callable[[], Awaitable[None]]] = {"ours": ours, "asyncpg": asyncpgs}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in both}
    for _ in range(1 + ROUNDS):
        for name, copy in both.items():
            await link.execute("truncate copied")
            began_s, cpu_s = time.perf_counter(), time.process_time()
            await copy()
            taken[name].append((time.process_time() - cpu_s, time.perf_counter() - began_s))
    await link.close()
    figures = dict[str, float]()
    for name, all_ in taken.items():
        # The first round is a warm-up.
        figures[f"{name}_cpu_us_per_row"] = round(1e6 * median(cpu for cpu, _ in all_[1:]) / len(rows), 2)
        figures[f"{name}_us_per_row"] = round(1e6 * median(wall for _, wall in all_[1:]) / len(rows), 2)
    ratio = figures["asyncpg_cpu_us_per_row"] / figures["ours_cpu_us_per_row"]
    return {"cpu_ratio_asyncpg_ours": round(ratio, 2)} | figures


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench.ledger_copy", description="Compare two ways to COPY usage rows.")
    parser.add_argument("--rows", type=int, default=ROWS, help=f"Rows per round (default {ROWS:,}).")
    args = parser.parse_args(arguments)
    with postgres() as database:
        figures = uvloop.run(measured(database.url, args.rows))
    print(format_figures(figures))
    print(json.dumps(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
