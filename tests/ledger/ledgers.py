"""How does a test get rows into the ledger, as a gateway would write them?"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headgate.ledger.database import Database
from headgate.ledger.reports.reports import PostgresReports, Terms
from headgate.ledger.spool.spool import Spool
from headgate.ledger.writer import Writer
from headgate.model.money import PAYERS, Cause, NanoUsd
from headgate.model.units import SECOND, Instant
from headgate.ports.ledger import EndpointTimeRow, UsageRow

USD = 1_000_000_000
HOUR_US = 3_600_000_000


def at(text: str) -> Instant:
    """A moment such as 2026-11-15 or 2026-11-15T09:30, UTC."""
    return Instant(int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND)


def usage(
    when: str,
    request: str,
    *,
    tenant: str = "acme/search/web",
    cause: Cause | None = Cause.ANSWER,
    input: int = 100,  # noqa: A002
    output: int = 800,
    overhead: int = 100,
    **fields: Any,
) -> UsageRow:
    """An attempt that took as many microseconds of its engine as it cost billionths; without a cause, one not sent."""
    sent = cause is not None
    given: dict[str, Any] = {
        "at": at(when),
        "request": request,
        "attempt": 1 if sent else 0,
        "correction": 0,
        "tenant": tenant,
        "service_class": "interactive",
        "model": "chat",
        "served_model": "chat" if sent else "",
        "pool": "small" if sent else "",
        "endpoint": "small-0" if sent else "",
        "api": "chat",
        "stream": True,
        "tokens_in": 50 if sent else 0,
        "tokens_cached": 0,
        "tokens_out": 40 if sent else 0,
        "tokens_reasoning": 0,
        "usage_source": "engine" if sent else "",
        "queue_us": 5,
        "ttft_us": 9 if sent else None,
        "duration_us": 2_000,
        "input_us": input if sent else 0,
        "output_us": output if sent else 0,
        "overhead_us": overhead if sent else 0,
        "outcome": "succeeded" if sent else "rate_limited",
        "ending": "completed" if sent else "",
        "cause": cause or "",
        "payer": PAYERS[cause] if cause is not None else "",
        "level": 0,
        "input_nano_usd": NanoUsd(input if sent else 0),
        "output_nano_usd": NanoUsd(output if sent else 0),
        "overhead_nano_usd": NanoUsd(overhead if sent else 0),
        "reserved_nano_usd": NanoUsd(5_000 if sent else 0),
        "metadata": (),
    }
    return UsageRow(**{**given, **fields})


def endpoint_time(when: str, *, pool: str = "small", whole_us: int = HOUR_US, **fields: Any) -> EndpointTimeRow:
    """Of what ended at this moment."""
    parts: dict[str, Any] = dict.fromkeys(("starting_us", "unready_us", "idle_us", "late_us"), 0) | fields
    parts.setdefault("billed_us", whole_us - sum(parts[name] for name in parts if name.endswith("_us")))
    parts.setdefault("hour_nano_usd", NanoUsd(2 * USD))
    parts.setdefault("endpoint", f"{pool}-0")
    parts.setdefault("price_kind", "on_demand")
    return EndpointTimeRow(at=at(when), source="test", pool=pool, whole_us=whole_us, **parts)


async def written(url: str, folder: Path, rows: Sequence[UsageRow], times: Sequence[EndpointTimeRow] = ()) -> None:
    spool = Spool(str(folder / "spool"), bytes_max=1 << 26, name="test")
    database = Database(url)
    writer = Writer(database, spool, retention_days=36_500, flush_s=0.01)
    running = asyncio.create_task(writer.run())
    try:
        spool.add(rows)
        spool.add_time(times)
        assert await writer.flush(60.0), writer.problem
    finally:
        running.cancel()
        await asyncio.wait([running])
        await database.stop()
        spool.close()


@asynccontextmanager
async def reading(url: str, terms: Callable[[], Terms] = Terms, **limits: int) -> AsyncIterator[PostgresReports]:
    reports = PostgresReports(Database(url), terms, **limits)
    try:
        yield reports
    finally:
        await reports.stop()
