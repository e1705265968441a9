"""How does an instrument act at an exact moment?

An event loop's own timers count in milliseconds: requests that are due at random moments would start in bunches, and
chunks that are due one by one would arrive five at a time. The kernel's timer counts in nanoseconds and is one more
file for the loop to read.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from heapq import heappop, heappush
from time import CLOCK_MONOTONIC, monotonic_ns

_TFD_TIMER_ABSTIME = 1


class _Itimerspec(ctypes.Structure):
    """An interval that is never used, and the moment, as the kernel wants them."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("every_s", "every_ns", "at_s", "at_ns"))


class Alarm:
    """Calls back at moments of the monotonic clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._settime = libc.timerfd_settime
        self._file: int = libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "the kernel gives no timer; the instruments need Linux")
        self._setting = _Itimerspec()
        self._pointer = ctypes.byref(self._setting)
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._loop = loop
        loop.add_reader(self._file, self._ring)

    def at(self, moment_ns: int, call: Callable[[], None]) -> None:
        self._count += 1
        due = self._due
        heappush(due, (moment_ns, self._count, call))
        if due[0][1] == self._count:
            self._arm(moment_ns)

    def close(self) -> None:
        self._loop.remove_reader(self._file)
        os.close(self._file)

    def _ring(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # It was set to a later moment after it had rung.
            return
        due = self._due
        # Only what is due already: a call that asks for the same moment again does not keep the loop from its sockets.
        now_ns = monotonic_ns()
        while due and due[0][0] <= now_ns:
            heappop(due)[2]()
        if due:
            self._arm(due[0][0])

    def _arm(self, moment_ns: int) -> None:
        # Zero would switch the timer off.
        self._setting.at_s, self._setting.at_ns = divmod(max(moment_ns, 1), 1_000_000_000)
        self._settime(self._file, _TFD_TIMER_ABSTIME, self._pointer, None)
