"""Which core does a process run on, and how much of it has it used?

What is measured has one core to itself and the instruments share another, so that neither takes from the other. Time on
a core is read from the scheduler in nanoseconds for every thread: user and kernel time together, waiting not.
"""

import contextlib
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CpuTimes = dict[int, int]
"""Nanoseconds on a core, by thread."""


class TooFewCores(Exception):
    """The machine, or what this process may use of it, is too small to tell target and instruments apart."""


@dataclass(frozen=True, slots=True)
class Cores:
    target: int
    instruments: int


def two_cores() -> Cores:
    """The first two that this process may use."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise TooFewCores(f"two cores are needed and this process may use {len(usable)}; widen its CPU set (taskset)")
    return Cores(usable[0], usable[1])


@contextmanager
def started_on(core: int) -> Generator[None]:
    """Processes that are started inside run on this core only, and so do their children."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def family_of(pid: int) -> list[int]:
    """A process and all that it started, as far as they live."""
    found = [pid]
    for each in found:
        for file in Path(f"/proc/{each}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found.extend(int(child) for child in file.read_text().split())
    return found


def cpu_times(pids: Iterable[int]) -> CpuTimes:
    times: CpuTimes = {}
    for pid in pids:
        for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # A thread may end at any moment.
                times[int(file.parent.name)] = int(file.read_text().split()[0])
    return times


def cpu_ns_between(earlier: CpuTimes, later: CpuTimes) -> int:
    """What the threads that live at the end have used meanwhile."""
    return sum(used - earlier.get(thread, 0) for thread, used in later.items())


def core_busy_ns(core: int) -> int:
    """How long a core has been busy with anything, in steps of the kernel's tick."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            # User, nice, system, then idle and waiting for I/O, which are not busy; what a guest uses is in user.
            busy = [int(each) for number, each in enumerate(ticks[:8]) if number not in (3, 4)]
            return sum(busy) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    raise TooFewCores(f"there is no core {core}")
