"""CPU affinity and CPU time of processes.

The measured process has one core to itself and the benchmark's processes share another, so that they do not compete.
CPU time is read from the kernel's scheduler per thread, in nanoseconds. It includes user and system time, but not
waiting time.
"""

import contextlib
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CpuTimes = dict[int, int]
"""CPU time in nanoseconds, by thread ID."""


class TooFewCores(Exception):
    """This process may use fewer cores than the benchmark needs."""


@dataclass(frozen=True, slots=True)
class Cores:
    target: int
    instruments: int


def two_cores() -> Cores:
    """Return the first two cores that this process may use."""
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < 2:
        raise TooFewCores(f"two cores are needed; this process may use {len(usable)}. Widen its CPU set (taskset).")
    return Cores(usable[0], usable[1])


@contextmanager
def started_on(core: int) -> Generator[None]:
    """Pin the processes started inside, and their children, to this core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def family_of(pid: int) -> list[int]:
    """Return a process and all its running descendants."""
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
            with contextlib.suppress(OSError):  # A thread can exit at any time.
                times[int(file.parent.name)] = int(file.read_text().split()[0])
    return times


def cpu_ns_between(earlier: CpuTimes, later: CpuTimes) -> int:
    """Return the CPU time used between two measurements by threads that were still running at the second."""
    return sum(used - earlier.get(thread, 0) for thread, used in later.items())


def core_busy_ns(core: int) -> int:
    """Return the time a core has been busy since boot, at the resolution of the kernel's tick."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            # The fields are user, nice, system, idle, iowait and so on. Idle and iowait are not busy; guest is in user.
            busy = [int(each) for number, each in enumerate(ticks[:8]) if number not in (3, 4)]
            return sum(busy) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    raise TooFewCores(f"core {core} does not exist")
