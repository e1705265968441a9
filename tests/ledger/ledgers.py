"""Writes rows to the ledger as a gateway would."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headgate.ledger.database import Database
from headgate.ledger.reports.postgres_reports import PostgresReports, ReportPolicy
from headgate.ledger.spool.spool import Spool
from headgate.ledger.writer import LedgerWriter
from headgate.model.money import PAYER_BY_CAUSE, BillCause, NanoUsd
from headgate.model.units import SECOND, Instant
from headgate.ports.ledger import EndpointTimeRow, UsageRow

USD = 1_000_000_000
HOUR_US = 3_600_000_000


def at(text: str) -> Instant:
    """Parse a UTC time such as 2026-11-15 or 2026-11-15T09:30."""
    return Instant(int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND)


def usage(
    when: str,
    request: str,
    *,
    tenant: str = "acme/search/web",
    cause: BillCause | None = BillCause.ANSWER,
    input: int = 100,  # noqa: A002
    output: int = 800,
    overhead: int = 100,
    **fields: Any,
) -> UsageRow:
    """Row for an attempt whose engine time in microseconds equals its cost in nano-dollars.

    Without a cause, the row is for a request that was not sent.
    """
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
        "payer": PAYER_BY_CAUSE[cause] if cause is not None else "",
        "level": 0,
        "input_nano_usd": NanoUsd(input if sent else 0),
        "output_nano_usd": NanoUsd(output if sent else 0),
        "overhead_nano_usd": NanoUsd(overhead if sent else 0),
        "reserved_nano_usd": NanoUsd(5_000 if sent else 0),
        "metadata": (),
    }
    return UsageRow(**{**given, **fields})


def endpoint_time(when: str, *, pool: str = "small", total_us: int = HOUR_US, **fields: Any) -> EndpointTimeRow:
    """Row for the period that ended at `when`."""
    parts: dict[str, Any] = dict.fromkeys(("starting_us", "unready_us", "idle_us", "abort_lag_us"), 0) | fields
    parts.setdefault("billed_us", total_us - sum(parts[name] for name in parts if name.endswith("_us")))
    parts.setdefault("hour_nano_usd", NanoUsd(2 * USD))
    parts.setdefault("endpoint", f"{pool}-0")
    parts.setdefault("price_kind", "on_demand")
    return EndpointTimeRow(at=at(when), source="test", pool=pool, total_us=total_us, **parts)


async def written(url: str, folder: Path, rows: Sequence[UsageRow], times: Sequence[EndpointTimeRow] = ()) -> None:
    spool = Spool(str(folder / "spool"), bytes_max=1 << 26, name="test")
    database = Database(url)
    writer = LedgerWriter(database, spool, retention_days=36_500, flush_s=0.01)
    running = asyncio.create_task(writer.run())
    try:
        spool.add(rows)
        spool.add_endpoint_times(times)
        assert await writer.flush(60.0), writer.problem
    finally:
        running.cancel()
        await asyncio.wait([running])
        await database.stop()
        spool.close()


@asynccontextmanager
async def reading(
    url: str, terms: Callable[[], ReportPolicy] = ReportPolicy, **limits: int
) -> AsyncIterator[PostgresReports]:
    reports = PostgresReports(Database(url), terms, **limits)
    try:
        yield reports
    finally:
        await reports.stop()
