"""What does this process use of its machine?"""

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from headgate.telemetry.page import Family, single

_PAGE_BYTES: Final = resource.getpagesize()


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    cpu_s: float
    resident_bytes: int | None
    """None where the system does not tell."""
    decide_s: float
    """What the scheduler itself took."""


def process_figures(decide_s: float, *, statm: str = "/proc/self/statm") -> ProcessFigures:
    return ProcessFigures(cpu_seconds(), _resident_bytes(statm), decide_s)


def cpu_seconds() -> float:
    """Processor time of this process, its own and what the system did for it."""
    used = os.times()
    return used.user + used.system


def _resident_bytes(statm: str) -> int | None:
    try:
        with open(statm, "rb") as told:  # noqa: PTH123 (read at every scrape, and it is no file)
            return int(told.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


def process_metrics(process: ProcessFigures) -> Iterator[Family]:
    yield single("headgate_process_cpu_seconds_total", process.cpu_s)
    if process.resident_bytes is not None:
        yield single("headgate_process_resident_bytes", process.resident_bytes)
    yield single("headgate_decide_seconds_total", process.decide_s)
