"""Sample rows for the ledger tests, and functions that read the written rows."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg

from headgate.ledger.database import Database
from headgate.ledger.rows import USAGE_COLUMNS
from headgate.ledger.spool.spool import Spool
from headgate.ledger.writer import LedgerWriter
from headgate.model.money import NanoUsd
from headgate.model.units import SECOND, Instant
from headgate.ports.ledger import EndpointTimeRow, UsageRow

NOON = Instant(int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()) * SECOND)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def a_row(request: str = "req_1", attempt: int = 1, *, at: Instant = NOON, **changes: Any) -> UsageRow:
    row = UsageRow(
        at=at,
        request=request,
        attempt=attempt,
        correction=0,
        tenant="acme/search/ci",
        service_class="interactive",
        model="m",
        served_model="m",
        pool="small",
        endpoint="e1",
        api="chat",
        stream=True,
        tokens_in=100,
        tokens_cached=20,
        tokens_out=30,
        tokens_reasoning=5,
        usage_source="engine",
        queue_us=1_000,
        ttft_us=50_000,
        duration_us=900_000,
        input_us=4_000,
        output_us=60_000,
        overhead_us=9_000,
        outcome="completed",
        ending="completed",
        cause="answer",
        payer="tenant",
        level=0,
        input_nano_usd=NanoUsd(10),
        output_nano_usd=NanoUsd(200),
        overhead_nano_usd=NanoUsd(30),
        reserved_nano_usd=NanoUsd(900),
        metadata=(("conversation", "c1"), ("feature", "søk")),
    )
    return row._replace(**changes)


def a_time(endpoint: str = "e1", *, at: Instant = NOON, source: str = "g1") -> EndpointTimeRow:
    return EndpointTimeRow(at, source, "small", endpoint, 10, 1, 2, 3, 4, 0, NanoUsd(2_500_000_000), "on_demand")


@asynccontextmanager
async def a_spool(folder: Path, name: str = "p1", **options: Any) -> AsyncIterator[Spool]:
    spool = Spool(str(folder), **({"bytes_max": 1 << 30} | options), name=name)
    try:
        yield spool
    finally:
        spool.close()


@asynccontextmanager
async def writing(url: str, spool: Spool, **options: Any) -> AsyncIterator[LedgerWriter]:
    database = Database(url)
    writer = LedgerWriter(database, spool, **({"retention_days": 36_500, "flush_s": 0.02} | options))
    running = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        running.cancel()
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()


async def all_rows(link: "asyncpg.Connection[Any]") -> list[UsageRow]:
    """All usage rows in the database, read by column name."""
    found = await link.fetch(f"select {', '.join(USAGE_COLUMNS)} from headgate.usage order by at, request, attempt")
    return [_row(dict(each)) for each in found]


def _row(values: dict[str, Any]) -> UsageRow:
    metadata = json.loads(values.pop("metadata") or "{}")
    at = values.pop("at")
    whole = (at - _EPOCH).days * 86_400 + (at - _EPOCH).seconds
    moment = Instant(whole * SECOND + at.microsecond * 1_000)
    return UsageRow(at=moment, service_class=values.pop("class"), metadata=tuple(sorted(metadata.items())), **values)


async def all_days(link: "asyncpg.Connection[Any]") -> dict[tuple[Any, ...], tuple[int, ...]]:
    rows = await link.fetch("select * from headgate.usage_daily")
    return {((row[0] - _EPOCH.date()).days, *tuple(row)[1:8]): tuple(row)[8:] for row in rows}
