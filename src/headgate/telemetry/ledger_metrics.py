"""Ledger metrics."""

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.telemetry.exposition import MetricFamily, family, unlabelled


@dataclass(frozen=True, slots=True)
class LedgerStats:
    database_up: bool
    rows_written: int
    rows_waiting: int
    """Number of rows waiting to be written to the database."""
    spool_bytes: int
    oldest_row_age_s: float
    """Age of the oldest row that is waiting."""
    rows_lost: int
    """Number of rows lost because the spool was full or could not be written or read."""
    rows_rejected: int
    """Number of rows rejected by the database because of their content."""
    open_requests: int
    unjournaled_attempts: int
    """Number of attempts sent without a journal entry on disk."""
    disk_problem: str | None = None
    """Why journal entries and rows cannot be written to disk, followed by a semicolon and the remedy. None if they can
    be written.
    """
    unit_sums_age_s: float = 0.0
    """Age of the oldest row that is not in the sums by business unit."""
    unit_sums_days: int = 0
    """Number of days whose existing rows have not been added to the sums by business unit yet."""


def ledger_metrics(ledger: LedgerStats) -> Iterator[MetricFamily]:
    yield unlabelled("headgate_ledger_database_up", ledger.database_up)
    yield unlabelled("headgate_ledger_rows_written_total", ledger.rows_written)
    yield unlabelled("headgate_ledger_rows_waiting", ledger.rows_waiting)
    yield unlabelled("headgate_ledger_spool_bytes", ledger.spool_bytes)
    yield unlabelled("headgate_ledger_oldest_row_age_seconds", ledger.oldest_row_age_s)
    lost = family("headgate_ledger_rows_lost_total")
    lost.add(("spool",), ledger.rows_lost)
    lost.add(("rejected",), ledger.rows_rejected)
    yield lost
    yield unlabelled("headgate_ledger_open_requests", ledger.open_requests)
    yield unlabelled("headgate_ledger_attempts_unjournaled_total", ledger.unjournaled_attempts)
    yield unlabelled("headgate_ledger_disk_up", ledger.disk_problem is None)
    yield unlabelled("headgate_ledger_unit_sums_age_seconds", ledger.unit_sums_age_s)
    yield unlabelled("headgate_ledger_unit_sums_days", ledger.unit_sums_days)
