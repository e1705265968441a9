"""How is this process, about once a second?

Its event loop asks to be woken ten times a second; the most by which it was late counts. Its processor time and that of
the scheduler are differences since the last report. The rest is told by those who know.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.model.units import SECOND, Duration, PoolName
from headgate.model.verdict import HostReport, Shortage

REPORT_S: Final = 0.99
"""Time between reports, less the rounding of ten waits. A loop that is late wakes less often within it."""
_WAKE_S: Final = 0.1
_SCHEDSTAT: Final = Path("/proc/thread-self/schedstat")
_NS_PER_S: Final = 1_000_000_000


def processor_wait_s() -> float:
    """Time that this thread was ready to run and waited for a processor; 0 where the system does not measure it."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / _NS_PER_S
    except (OSError, ValueError, IndexError):
        return 0.0


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """How the store of the cell was when it was last asked."""

    round_trip_ns: Duration
    up: bool


def _nothing() -> tuple[tuple[PoolName, Duration], ...]:
    return ()


def _no_shortages() -> tuple[Shortage, ...]:
    return ()


def _none() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSources:
    """What a report is made of, asked at its moment."""

    process: Callable[[], str]
    cpu_s: Callable[[], float] = time.process_time
    wait_s: Callable[[], float] = processor_wait_s
    """Time that the event loop has waited for a processor since the process started."""
    decide_s: Callable[[], float]
    """What the scheduler took since the process started."""
    transport: Callable[[], Sequence[tuple[PoolName, Duration]]] = _nothing
    store: Callable[[], StoreSeen | None] = _none
    database_up: Callable[[], bool | None] = _none
    shortages: Callable[[], Iterable[Shortage]] = _no_shortages


class HostReporter:
    def __init__(self, sources: HostSources, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._sources = sources
        self._now_s = now_s
        self._at_s, self._cpu_s, self._decide_s = now_s(), sources.cpu_s(), sources.decide_s()
        self._wait_s = sources.wait_s()
        self._short = dict[Shortage, None]()
        """Shortages seen since the last report."""

    def look(self) -> None:
        """Note shortages of this moment: descriptors may be used up and free again many times a second."""
        self._short |= dict.fromkeys(self._sources.shortages())

    def report(self, lag_ns: Duration) -> HostReport:
        """Since the last one the loop was late by at most so much."""
        sources = self._sources
        at_s, cpu_s, decide_s = self._now_s(), sources.cpu_s(), sources.decide_s()
        passed_s = max(1e-9, at_s - self._at_s)
        cpu_percent = round(100 * (cpu_s - self._cpu_s) / passed_s)
        decide_percent = round(100 * (decide_s - self._decide_s) / passed_s)
        wait_s = sources.wait_s()
        wait_percent = round(100 * (wait_s - self._wait_s) / passed_s)
        self._at_s, self._cpu_s, self._decide_s, self._wait_s = at_s, cpu_s, decide_s, wait_s
        store = sources.store()
        self.look()
        report = HostReport(
            sources.process(),
            lag_ns,
            cpu_percent,
            decide_percent,
            tuple(sources.transport()),
            None if store is None else store.round_trip_ns,
            store_up=store is None or store.up,
            database_up=sources.database_up(),
            shortages=tuple(self._short),
            wait_percent=wait_percent,
        )
        self._short.clear()
        return report


async def report_for_ever(reporter: HostReporter, told: Callable[[HostReport], None]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        lag_ns, until = 0, loop.time() + REPORT_S
        while loop.time() < until:
            due = loop.time() + _WAKE_S
            await asyncio.sleep(_WAKE_S)
            lag_ns = max(lag_ns, round((loop.time() - due) * SECOND))
            reporter.look()
        told(reporter.report(Duration(max(0, lag_ns))))
