"""Timer that calls back with nanosecond resolution.

An event loop's own timers have millisecond resolution: requests due at random times would start in bunches, and chunks
due one by one would arrive five at a time. The kernel's timerfd counts in nanoseconds, and the loop reads it like any
other file.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from heapq import heappop, heappush
from time import CLOCK_MONOTONIC, monotonic_ns

_TFD_TIMER_ABSTIME = 1


class _Itimerspec(ctypes.Structure):
    """The kernel's `itimerspec`: an unused interval and the time of expiry."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns"))


class PreciseTimer:
    """Calls back at given times of the monotonic clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._file: int = libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "could not create a kernel timer; the benchmarks need Linux")
        self._setting = _Itimerspec()
        self._pointer = ctypes.byref(self._setting)
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._loop = loop
        loop.add_reader(self._file, self._fire)

    def schedule(self, moment_ns: int, call: Callable[[], None]) -> None:
        self._count += 1
        due = self._due
        heappush(due, (moment_ns, self._count, call))
        if due[0][1] == self._count:
            self._arm(moment_ns)

    def close(self) -> None:
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _fire(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # The timer was set to a later time after it had expired.
            return
        due = self._due
        # Calls added for the same time while this loop is running wait for the next iteration, so that sockets are not
        # starved.
        now_ns = monotonic_ns()
        while due and due[0][0] <= now_ns:
            heappop(due)[2]()
        if due:
            self._arm(due[0][0])

    def _arm(self, moment_ns: int) -> None:
        # Zero would disarm the timer.
        self._setting.at_s, self._setting.at_ns = divmod(max(moment_ns, 1), 1_000_000_000)
        self._settime(self._file, _TFD_TIMER_ABSTIME, self._pointer, None)
