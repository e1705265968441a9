"""What becomes of the rows of the ledger?"""

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.telemetry.page import Family, family, single


@dataclass(frozen=True, slots=True)
class LedgerFigures:
    database_up: bool
    written: int
    waiting: int
    """Rows that the database does not have."""
    spooled_bytes: int
    oldest_s: float
    """Since the oldest of them was added."""
    lost: int
    """Rows that will never be in the database: the spool was full, or could not be written."""
    refused: int
    """Rows that the database would not take for what is in them."""
    open_requests: int
    unrecorded: int
    """Attempts that were sent without a note on disk."""
    disk_problem: str | None = None
    """Why notes and rows cannot be written to the disk of the spool, and the remedy after a semicolon."""


def ledger_metrics(ledger: LedgerFigures) -> Iterator[Family]:
    yield single("headgate_ledger_database_up", ledger.database_up)
    yield single("headgate_ledger_rows_written_total", ledger.written)
    yield single("headgate_ledger_rows_waiting", ledger.waiting)
    yield single("headgate_ledger_spool_bytes", ledger.spooled_bytes)
    yield single("headgate_ledger_oldest_seconds", ledger.oldest_s)
    lost = family("headgate_ledger_rows_lost_total")
    lost.add(("spool",), ledger.lost)
    lost.add(("refused",), ledger.refused)
    yield lost
    yield single("headgate_ledger_open_requests", ledger.open_requests)
    yield single("headgate_ledger_unrecorded_total", ledger.unrecorded)
    yield single("headgate_ledger_disk_up", ledger.disk_problem is None)
