"""Reports the health of this process about once a second.

The event loop lag is the maximum of ten measurements per second. CPU time and scheduler time are differences since the
last report. All other values come from `HostSources`.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.model.units import SECOND, Duration, PoolName
from headgate.model.verdict import HostReport, Shortage

REPORT_INTERVAL_S: Final = 0.99
"""Seconds between reports: ten measurement intervals minus a margin for rounding. If the event loop is late, it
completes fewer measurements in this time.
"""
_WAKE_INTERVAL_S: Final = 0.1
_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
_NS_PER_S: Final = 1_000_000_000


def processor_wait_s() -> float:
    """Time that this thread spent runnable but waiting for a CPU; 0 if the system does not measure it."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / _NS_PER_S
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """State of the cell's store as of the last probe."""

    round_trip_ns: Duration
    up: bool


def _no_transport() -> tuple[tuple[PoolName, Duration], ...]:
    return ()


def _no_shortages() -> tuple[Shortage, ...]:
    return ()


def _not_measured() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSources:
    """Functions that return the values of a report."""

    process: Callable[[], str]
    cpu_s: Callable[[], float] = time.process_time
    cpu_wait_s: Callable[[], float] = processor_wait_s
    """Time that the event loop has waited for a CPU since the process started."""
    scheduler_busy_s: Callable[[], float]
    """Time spent in the scheduler since the process started."""
    transport: Callable[[], Sequence[tuple[PoolName, Duration]]] = _no_transport
    store: Callable[[], StoreHealth | None] = _not_measured
    database_up: Callable[[], bool | None] = _not_measured
    shortages: Callable[[], Iterable[Shortage]] = _no_shortages


class HostReporter:
    def __init__(self, sources: HostSources, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self._now_s = now_s
        self._at_s, self._cpu_s, self._decide_s = now_s(), sources.cpu_s(), sources.scheduler_busy_s()
        self._wait_s = sources.cpu_wait_s()
        self._shortages = dict[Shortage, None]()
        """Shortages seen since the last report."""

    def sample_shortages(self) -> None:
        """Collects current shortages. File descriptors may run out and become available again many times a second."""
        self._shortages |= dict.fromkeys(self._sources.shortages())

    def report(self, lag_ns: Duration) -> HostReport:
        """Creates a report covering the time since the last one.

        `lag_ns` is the maximum event loop lag in that time.
        """
        sources = self._sources
        at_s, cpu_s, decide_s = self._now_s(), sources.cpu_s(), sources.scheduler_busy_s()
        passed_s = max(1e-9, at_s - self._at_s)
        cpu_percent = round(100 * (cpu_s - self._cpu_s) / passed_s)
        decide_percent = round(100 * (decide_s - self._decide_s) / passed_s)
        wait_s = sources.cpu_wait_s()
        wait_percent = round(100 * (wait_s - self._wait_s) / passed_s)
        self._at_s, self._cpu_s, self._decide_s, self._wait_s = at_s, cpu_s, decide_s, wait_s
        store = sources.store()
        self.sample_shortages()
        report = HostReport(
            sources.process(),
            lag_ns,
            cpu_percent,
            decide_percent,
            tuple(sources.transport()),
            None if store is None else store.round_trip_ns,
            store_up=store is None or store.up,
            database_up=sources.database_up(),
            shortages=tuple(self._shortages),
            cpu_wait_percent=wait_percent,
        )
        self._shortages.clear()
        return report


async def run_reporter(reporter: HostReporter, send: Callable[[HostReport], None]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        lag_ns, until = 0, loop.time() + REPORT_INTERVAL_S
        while loop.time() < until:
            due = loop.time() + _WAKE_INTERVAL_S
            await asyncio.sleep(_WAKE_INTERVAL_S)
            lag_ns = max(lag_ns, round((loop.time() - due) * SECOND))
            reporter.sample_shortages()
        send(reporter.report(Duration(max(0, lag_ns))))
