"""Statistics about request records, as metrics."""

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.telemetry.exposition import MetricFamily, unlabelled


@dataclass(frozen=True, slots=True)
class RecordsStats:
    written: int
    dropped: int
    waiting: int
    bytes: int
    """Total size of all processes' files in the directory."""
    oldest_age_s: float
    problem: str | None = None
    """Why records cannot be written, with the next step."""
    in_files: bool = True
    """Whether records are written to files. If no directory is configured, they only update the stage metrics."""


def records_metrics(records: RecordsStats) -> Iterator[MetricFamily]:
    yield unlabelled("headgate_records_dropped_total", records.dropped)
    yield unlabelled("headgate_records_waiting", records.waiting)
    if not records.in_files:
        return
    yield unlabelled("headgate_records_written_total", records.written)
    yield unlabelled("headgate_records_bytes", records.bytes)
    yield unlabelled("headgate_records_oldest_age_seconds", records.oldest_age_s)
