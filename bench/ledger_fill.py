"""Fill a database with one day of realistic usage rows.

Rows take the regular write path: they are added to a spool, and the writer writes them to the database. There are two
hundred tenants in ten organisations, three classes, and three models in four pools. Some requests are retried, some are
rejected, and some clients disconnect.

    python -m bench.ledger_fill URL [--rows 1000000] [--day 2026-11-15]
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime

from bench.cli import print_progress
from headgate.ledger.database import Database
from headgate.ledger.rows import DAY_NS
from headgate.ledger.spool.spool import SEGMENT_ROWS_MAX, Spool
from headgate.ledger.writer import LedgerWriter
from headgate.model.money import PAYER_BY_CAUSE, BillCause, NanoUsd
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Instant
from headgate.ports.ledger import EndpointTimeRow, UsageRow

_HOUR_NANO_USD = NanoUsd(2_500_000_000)
_NANO_USD_PER_US = _HOUR_NANO_USD / 3.6e9
_POOLS = (("small", "chat-small"), ("large", "chat-large"), ("large-spot", "chat-large"), ("long", "chat-long"))
_CLASSES = ("interactive", "interactive", "interactive", "batch", "long")
_FEATURES = ("search", "summary", "assistant", "translate")
_TIMES_S = 60
"""Seconds covered by each endpoint time row."""


@dataclass(frozen=True, slots=True)
class Filled:
    rows: int
    seconds: float
    cpu_s: float
    """CPU time of this process, which creates and writes the rows."""


async def fill_day(url: str, rows: int, day: date) -> Filled:
    """Add this number of usage rows for the day, and its endpoint times. The day determines the random seed."""
    began_at, cpu_at, told_at = time.monotonic(), time.process_time(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headgate-spool-") as folder:
        spool = Spool(folder, bytes_max=1 << 30, name="fill")
        writer = LedgerWriter(Database(url, query_s_max=60.0), spool, retention_days=36_500, flush_s=0.05)
        running = asyncio.create_task(writer.run())
        added = 0
        for request in requests(rows, day):
            spool.add(request)
            added += len(request)
            if spool.rows_waiting >= 2 * SEGMENT_ROWS_MAX:
                await writer.flush(120.0)
            if time.monotonic() - told_at > 5.0:
                told_at = time.monotonic()
                print_progress(f"{added:,} of {rows:,} rows")
        spool.add_endpoint_times(endpoint_times(day))
        assert await writer.flush(120.0), writer.problem
        running.cancel()
        await asyncio.wait([running])
        spool.close()
    return Filled(added, time.monotonic() - began_at, time.process_time() - cpu_at)


def requests(rows: int, day: date) -> Iterator[list[UsageRow]]:
    chance = random.Random(day.toordinal())
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * SECOND
    made = 0
    while made < rows:
        # Traffic is higher in the afternoon than at night.
        at = Instant(midnight + int(chance.triangular(0, DAY_NS - 1, 0.6 * DAY_NS)))
        request = _request(chance, at)[: rows - made]
        made += len(request)
        yield request


def _request(chance: random.Random, at: Instant) -> list[UsageRow]:
    tenant = int(200 * chance.random() ** 2)
    pool, model = chance.choice(_POOLS)
    served = chance.random()
    answered = _attempt(
        at,
        f"req_{chance.getrandbits(96):024x}",
        tenant=f"org{tenant % 10}/project{tenant % 50}/key{tenant}",
        service_class=chance.choice(_CLASSES),
        model=model,
        pool=pool,
        endpoint=f"{pool}-{chance.randrange(8)}",
        stream=chance.random() < 0.7,
        tokens=(int(chance.lognormvariate(6, 1)), int(chance.lognormvariate(5, 1))),
        metadata=(("conversation", f"c{chance.randrange(50_000)}"), ("feature", chance.choice(_FEATURES))),
    )
    if served < 0.03:
        return [rejected(answered, Outcome.RATE_LIMITED)]
    if served < 0.05:
        return [answered._replace(outcome=Outcome.CANCELLED, ending="aborted", cause=BillCause.CLIENT_DISCONNECTED)]
    if served < 0.08:
        failed = answered._replace(
            ending="failed",
            cause=BillCause.RETRY,
            payer=PAYER_BY_CAUSE[BillCause.RETRY],
            usage_source="estimated",
        )
        return [failed, answered._replace(attempt=2, endpoint=f"{pool}-{chance.randrange(8)}")]
    return [answered]


def rejected(row: UsageRow, outcome: Outcome) -> UsageRow:
    nothing = NanoUsd(0)
    return row._replace(
        **dict.fromkeys(("tokens_in", "tokens_cached", "tokens_out", "input_us", "output_us", "overhead_us"), 0),
        **dict.fromkeys(("pool", "endpoint", "usage_source", "ending", "cause", "payer", "served_model"), ""),
        **dict.fromkeys(("input_nano_usd", "output_nano_usd", "overhead_nano_usd", "reserved_nano_usd"), nothing),
        attempt=0,
        ttft_us=None,
        outcome=outcome,
    )


def _attempt(
    at: Instant,
    request: str,
    *,
    tenant: str,
    service_class: str,
    model: str,
    pool: str,
    endpoint: str,
    stream: bool,
    tokens: tuple[int, int],
    metadata: tuple[tuple[str, str], ...],
) -> UsageRow:
    tokens_in, tokens_out = tokens
    times = 40 * tokens_in, 2_000 * tokens_out, 900 * tokens_out
    input_usd, output_usd, overhead_usd = (NanoUsd(int(each * _NANO_USD_PER_US)) for each in times)
    return UsageRow(
        at=at,
        request=request,
        attempt=1,
        correction=0,
        tenant=tenant,
        service_class=service_class,
        model=model,
        served_model=model,
        pool=pool,
        endpoint=endpoint,
        api="chat",
        stream=stream,
        tokens_in=tokens_in,
        tokens_cached=tokens_in // 3,
        tokens_out=tokens_out,
        tokens_reasoning=0,
        usage_source="engine",
        queue_us=tokens_in,
        ttft_us=50_000 + 40 * tokens_in if stream else None,
        duration_us=20_000 * tokens_out,
        input_us=times[0],
        output_us=times[1],
        overhead_us=times[2],
        outcome=Outcome.COMPLETED.value,
        ending="completed",
        cause=BillCause.ANSWER.value,
        payer=PAYER_BY_CAUSE[BillCause.ANSWER].value,
        level=0,
        input_nano_usd=input_usd,
        output_nano_usd=output_usd,
        overhead_nano_usd=overhead_usd,
        reserved_nano_usd=NanoUsd(3 * (input_usd + output_usd)),
        metadata=metadata,
    )


def endpoint_times(day: date) -> list[EndpointTimeRow]:
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * SECOND
    whole, idle = _TIMES_S * 1_000_000, _TIMES_S * 300_000
    return [
        EndpointTimeRow(
            at=Instant(midnight + (step + 1) * _TIMES_S * SECOND - 1),
            source="fill",
            pool=pool,
            endpoint=f"{pool}-{number}",
            total_us=whole,
            starting_us=0,
            unready_us=0,
            idle_us=idle,
            billed_us=whole - idle,
            abort_lag_us=0,
            hour_nano_usd=_HOUR_NANO_USD,
            price_kind="spot" if pool.endswith("spot") else "on_demand",
        )
        for step in range(86_400 // _TIMES_S)
        for pool, _ in _POOLS
        for number in range(8)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="URL of a migrated database")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--day", type=date.fromisoformat, default=datetime.now(UTC).date())
    options = parser.parse_args()
    filled = asyncio.run(fill_day(options.url, options.rows, options.day))
    print(json.dumps({"rows": filled.rows, "rows_per_s": round(filled.rows / filled.seconds)}))


if __name__ == "__main__":
    main()
