"""Fill a database with three weeks of example usage by three organisations, for the docs and for experiments.

Some endpoints are priced by the hour and partly idle, one pool is priced by the token, and weekends have less traffic.
On the last day one tenant gets longer responses and one pool fails more often.

    python -m bench.ledger_example URL [--until 2026-11-15T18:00]
"""

import argparse
import asyncio
import random
import tempfile
from datetime import UTC, datetime, timedelta

from bench.cli import print_progress
from headgate.control.directory_sync import migrate_database
from headgate.ledger.database import Database
from headgate.ledger.spool.spool import Spool
from headgate.ledger.writer import LedgerWriter
from headgate.model.money import PAYER_BY_CAUSE, BillCause, NanoUsd
from headgate.model.units import SECOND, Instant
from headgate.ports.ledger import EndpointTimeRow, UsageRow

DAYS = 21
HOUR = NanoUsd(2_400_000_000)
TENANTS = (("acme/search/web", 5), ("acme/assistant/app", 3), ("globex/chat/prod", 3), ("initech/batch/nightly", 1))
POOLS = {"small": "chat", "large": "chat-large", "hosted": "chat-xl"}
REQUESTS_PER_HOUR = 150
_US_PER_HOUR = 3_600_000_000


def rows_of(hour: datetime, chance: random.Random, *, last_day: bool) -> tuple[list[UsageRow], list[EndpointTimeRow]]:
    """Return one hour's usage and endpoint time. Engines are busy for the duration of their attempts."""
    usual = 0.45 if hour.weekday() >= 5 else 1.0
    number = max(1, round(REQUESTS_PER_HOUR * usual * chance.gauss(1, 0.08)))
    busy = dict.fromkeys(POOLS, 0)
    rows: list[UsageRow] = []
    for place in range(number):
        at = Instant(int(hour.timestamp() + 3_500 * place / number) * SECOND)
        rows += _request(at, f"req_{chance.getrandbits(96):024x}", chance, last_day=last_day)
    for row in rows:
        busy[row.pool] += row.input_us + row.output_us + row.overhead_us
    ended = Instant(int((hour + timedelta(hours=1)).timestamp()) * SECOND)
    return rows, [_time(ended, pool, busy[pool]) for pool in POOLS]


def _request(at: Instant, request: str, chance: random.Random, *, last_day: bool) -> list[UsageRow]:
    tenant = chance.choices([name for name, _ in TENANTS], [weight for _, weight in TENANTS])[0]
    pool = chance.choices(tuple(POOLS), (6, 3, 1))[0]
    longer = 1.6 if last_day and tenant == "globex/chat/prod" else 1.0
    tokens_in, tokens_out = int(chance.lognormvariate(6.5, 0.6)), int(longer * chance.lognormvariate(5.6, 0.5))
    row = _answer(at, request, tenant, pool, (tokens_in, tokens_out), conversation=f"c{chance.randrange(400)}")
    if chance.random() < (0.10 if last_day and pool == "large" else 0.02):
        cause = BillCause.RETRY
        failed = {"cause": cause, "payer": PAYER_BY_CAUSE[cause], "ending": "failed", "reserved_nano_usd": NanoUsd(0)}
        return [_with(row, failed), _with(row, {"attempt": 2, "endpoint": f"{pool}-1"})]
    return [row]


def _with(row: UsageRow, fields: dict[str, object]) -> UsageRow:
    return row._replace(**fields)  # pyright: ignore[reportArgumentType]


def _answer(
    at: Instant, request: str, tenant: str, pool: str, tokens: tuple[int, int], *, conversation: str
) -> UsageRow:
    tokens_in, tokens_out = tokens
    slow = {"small": 1, "large": 3, "hosted": 1}[pool]
    times = (900 * slow * tokens_in, 85_000 * slow * tokens_out, 18_000 * slow * tokens_out)
    costs = [NanoUsd(round(each * HOUR / _US_PER_HOUR)) for each in times]
    if pool == "hosted":
        costs = [NanoUsd(1_250 * tokens_in), NanoUsd(10_000 * tokens_out), NanoUsd(0)]
    return UsageRow(
        at=at,
        request=request,
        attempt=1,
        correction=0,
        tenant=tenant,
        service_class="batch" if tenant.startswith("initech") else "interactive",
        model=POOLS[pool],
        served_model=POOLS[pool],
        pool=pool,
        endpoint=f"{pool}-0",
        api="chat",
        stream=True,
        tokens_in=tokens_in,
        tokens_cached=tokens_in // 3,
        tokens_out=tokens_out,
        tokens_reasoning=0,
        usage_source="engine",
        queue_us=2_000,
        ttft_us=150_000,
        duration_us=sum(times),
        input_us=times[0],
        output_us=times[1],
        overhead_us=times[2],
        outcome="completed",
        ending="completed",
        cause=BillCause.ANSWER,
        payer=PAYER_BY_CAUSE[BillCause.ANSWER],
        level=0,
        input_nano_usd=costs[0],
        output_nano_usd=costs[1],
        overhead_nano_usd=costs[2],
        reserved_nano_usd=NanoUsd(3 * sum(costs)),
        metadata=(("conversation", conversation),),
    )


def _time(at: Instant, pool: str, busy_us: int) -> EndpointTimeRow:
    """Return a row with as many endpoints as needed, idle for the rest of the hour. A small part is unexplained."""
    whole = _US_PER_HOUR * (1 + busy_us // _US_PER_HOUR)
    starting, unready = whole // 200, whole // 500
    idle = max(0, whole - starting - unready - busy_us - whole // 400)
    return EndpointTimeRow(
        at=at,
        source="example",
        pool=pool,
        endpoint=f"{pool}-0",
        total_us=whole,
        starting_us=starting,
        unready_us=unready,
        idle_us=idle,
        billed_us=whole - starting - unready - idle,
        abort_lag_us=0,
        hour_nano_usd=NanoUsd(0) if pool == "hosted" else HOUR,
        price_kind="on_demand",
    )


async def fill(url: str, until: datetime) -> int:
    await migrate_database(url, lambda _: None)
    hour = until.replace(hour=0, minute=0) - timedelta(days=DAYS)
    chance, added = random.Random(7), 0
    with tempfile.TemporaryDirectory(prefix="headgate-spool-") as folder:
        spool = Spool(folder, bytes_max=1 << 30, name="example")
        database = Database(url)
        writer = LedgerWriter(database, spool, retention_days=36_500, flush_s=0.05)
        running = asyncio.create_task(writer.run())
        while hour < until:
            rows, times = rows_of(hour, chance, last_day=hour.date() == until.date())
            spool.add(rows)
            spool.add_endpoint_times(times)
            added, hour = added + len(rows), hour + timedelta(hours=1)
        assert await writer.flush(60.0), writer.problem
        running.cancel()
        await asyncio.wait([running])
        await database.stop()
        spool.close()
    return added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", help="URL of an empty database")
    parser.add_argument(
        "--until", type=datetime.fromisoformat, default=datetime.now(UTC), help="last hour, exclusive (default now)"
    )
    options = parser.parse_args()
    until = options.until.replace(minute=0, second=0, microsecond=0, tzinfo=UTC)
    print_progress(f"{asyncio.run(fill(options.url, until))} rows up to {until:%Y-%m-%d %H:%M} UTC")


if __name__ == "__main__":
    main()
