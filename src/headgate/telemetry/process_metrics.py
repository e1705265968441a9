"""CPU and memory metrics for this process."""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headgate.telemetry.exposition import MetricFamily, unlabelled

_PAGE_BYTES: Final = resource.getpagesize()
_STATM: Final = "/proc/self/statm"


@dataclass(frozen=True, slots=True)
class ProcessStats:
    cpu_s: float
    resident_bytes: int | None
    """Resident memory; None if the system does not report it."""
    scheduler_busy_s: float
    """Time spent in the scheduler since the process started."""


def process_stats(scheduler_busy_s: float, *, statm: str = _STATM) -> ProcessStats:
    return ProcessStats(cpu_seconds(), resident_bytes(statm), scheduler_busy_s)


def cpu_seconds() -> float:
    """User and system CPU time used by this process."""
    used = os.times()
    return used.user + used.system


def resident_bytes(statm: str = _STATM) -> int | None:
    """Resident memory of this process. None if the system does not report it."""
    try:
        with open(statm, "rb") as told:  # noqa: PTH123 (read often)
            return int(told.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


def process_metrics(process: ProcessStats) -> Iterator[MetricFamily]:
    yield unlabelled("headgate_process_cpu_seconds_total", process.cpu_s)
    if process.resident_bytes is not None:
        yield unlabelled("headgate_process_resident_memory_bytes", process.resident_bytes)
    yield unlabelled("headgate_scheduler_busy_seconds_total", process.scheduler_busy_s)
