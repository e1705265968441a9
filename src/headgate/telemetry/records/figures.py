"""What becomes of the records that are kept in files?"""

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.telemetry.page import Family, single


@dataclass(frozen=True, slots=True)
class RecordsFigures:
    written: int
    dropped: int
    waiting: int
    bytes: int
    """What the files of all processes of the folder take."""
    oldest_s: float
    problem: str | None = None
    """Why records cannot be written, and the next step."""
    in_files: bool = True
    """Whether any are: where no folder is configured they are only counted by their stages."""


def records_metrics(records: RecordsFigures) -> Iterator[Family]:
    yield single("headgate_records_dropped_total", records.dropped)
    yield single("headgate_records_waiting", records.waiting)
    if not records.in_files:
        return
    yield single("headgate_records_written_total", records.written)
    yield single("headgate_records_bytes", records.bytes)
    yield single("headgate_records_oldest_seconds", records.oldest_s)
