"""Measures the longest turn of the event loop, and detects a loop that has stopped.

A separate thread schedules a callback in the loop a few times a second, and more often while the loop is busy. Until
the callback runs, the loop is in one turn, which delays every stream by that time. Nothing is measured per callback, so
the only overhead is these probes.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headgate.model.units import SECOND
from headgate.telemetry.page import Family, family

TICK_S: Final = 0.01
"""How often the thread checks whether the loop is busy. A turn may be longer than measured by this much."""
BUSY_NS: Final = 2_000_000
"""Processor time between two ticks above which the loop is probed at once."""
ASK_NS: Final = 50_000_000
"""How often an idle loop is probed."""
RECENT_NS: Final = 60 * SECOND
STALLED_NS_MAX: Final = 5 * SECOND
"""A loop that has not turned for this long is reported as not alive."""


@dataclass(frozen=True, slots=True)
class Turn:
    wall_ns: int
    cpu_ns: int
    """Processor time of the loop's thread."""

    def longer(self, other: "Turn") -> "Turn":
        return Turn(max(self.wall_ns, other.wall_ns), max(self.cpu_ns, other.cpu_ns))


_NONE: Final = Turn(0, 0)


class TurnWatch:
    """Measures the turns of the loop in whose thread it is started."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        stalled_ns_max: int = STALLED_NS_MAX,
    ) -> None:
        """`call_soon` must be callable from a thread other than the loop's."""
        self._call_soon = call_soon
        self._clock = clock
        self._stalled_ns_max = stalled_ns_max
        self._cpu: Callable[[], int] = lambda: 0
        self._asked: tuple[int, int] | None = None
        """Time of the last probe and the loop's processor time then; None once the loop has responded."""
        self._asked_at = 0
        self._cpu_seen = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.longest = _NONE
        """The longest turn since the start of the process."""
        self._window_at, self._window, self._window_before = 0, _NONE, _NONE

    # In the loop's thread

    def start(self) -> None:
        self._cpu = _cpu_of_this_thread()
        self._thread = threading.Thread(target=self._run, name="headgate-turns", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _answer(self) -> None:
        asked = self._asked
        if asked is None:
            return
        now = self._clock()
        turn = Turn(max(0, now - asked[0]), max(0, self._cpu() - asked[1]))
        self._turn_window(now)
        self.longest, self._window = self.longest.longer(turn), self._window.longer(turn)
        self._asked = None

    def recent(self) -> Turn:
        """The longest turn within the last one to two minutes."""
        self._turn_window(self._clock())
        return self._window.longer(self._window_before)

    def _turn_window(self, now: int) -> None:
        passed = now - self._window_at
        if passed >= RECENT_NS:
            self._window_before = self._window if passed < 2 * RECENT_NS else _NONE
            self._window_at, self._window = now, _NONE

    # In any thread

    def health(self) -> tuple[int, str]:
        """HTTP status and text for a liveness probe."""
        asked = self._asked
        stalled_ns = 0 if asked is None else self._clock() - asked[0]
        if stalled_ns >= self._stalled_ns_max:
            return 503, f"the event loop has not turned for {stalled_ns / SECOND:.1f} s"
        return 200, "alive"

    # In its own thread

    def _run(self) -> None:
        # A closed loop responds to no more probes.
        with contextlib.suppress(RuntimeError):
            while not self._stopped.wait(TICK_S):
                self.tick()

    def tick(self) -> None:
        """Probes the loop if it has responded to the last probe and is busy or was not probed for a while."""
        if self._asked is not None:
            return
        now, cpu = self._clock(), self._cpu()
        busy = cpu - self._cpu_seen >= BUSY_NS
        self._cpu_seen = cpu
        if busy or now - self._asked_at >= ASK_NS:
            self._asked_at = now
            self._asked = now, cpu
            self._call_soon(self._answer)


def _cpu_of_this_thread() -> Callable[[], int]:
    """A clock of this thread's processor time, readable from any thread; constant if the system has none."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: 0
    clock_id = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime_ns(clock_id)


def turn_metrics(watch: TurnWatch) -> Family:
    told = family("headgate_loop_turn_longest_seconds")
    for since, turn in (("start", watch.longest), ("recent", watch.recent())):
        told.add(("cpu", since), turn.cpu_ns / SECOND)
        told.add(("wall", since), turn.wall_ns / SECOND)
    return told
