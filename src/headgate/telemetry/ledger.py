"""What becomes of the rows of the ledger?"""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


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


def ledger_metrics(ledger: LedgerFigures) -> Iterator[Metric]:
    up = "headgate_ledger_database_up", "Whether the database of the ledger answers."
    yield GaugeMetricFamily(*up, value=float(ledger.database_up))
    yield CounterMetricFamily("headgate_ledger_rows_written", "Rows that the database has.", value=ledger.written)
    waiting = "headgate_ledger_rows_waiting", "Rows that wait for the database, in memory and in the spool."
    yield GaugeMetricFamily(*waiting, value=ledger.waiting)
    yield GaugeMetricFamily("headgate_ledger_spool_bytes", "What they take on disk.", value=ledger.spooled_bytes)
    yield GaugeMetricFamily("headgate_ledger_oldest_seconds", "Age of the oldest of them.", value=ledger.oldest_s)
    lost = CounterMetricFamily("headgate_ledger_rows_lost", "Rows that never reach the database.", labels=["why"])
    lost.add_metric(["spool"], ledger.lost)
    lost.add_metric(["refused"], ledger.refused)
    yield lost
    yield GaugeMetricFamily(
        "headgate_ledger_open_requests", "Requests whose rows are yet to be made.", value=ledger.open_requests
    )
