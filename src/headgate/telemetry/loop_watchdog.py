"""Measures the longest iteration of the event loop, and detects a blocked loop.

A separate thread schedules a callback in the loop several times a second, and more often while the loop is busy. The
time until the callback runs is the length of the current iteration, which delays every stream. Nothing is measured per
callback, so these probes are the only overhead.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headgate.model.units import SECOND
from headgate.telemetry.exposition import MetricFamily, family

TICK_S: Final = 0.01
"""Interval in seconds at which the thread checks whether the loop is busy. Iteration times are underestimated by up to
this amount.
"""
BUSY_CPU_NS: Final = 2_000_000
"""Minimum CPU time between two ticks that triggers an immediate probe."""
PROBE_INTERVAL_NS: Final = 50_000_000
"""Interval between probes while the loop is idle."""
RECENT_WINDOW_NS: Final = 60 * SECOND
STALLED_NS_MAX: Final = 5 * SECOND
"""Maximum duration of an iteration. If one takes longer, the loop is reported as not alive."""


@dataclass(frozen=True, slots=True)
class LoopIteration:
    wall_ns: int
    cpu_ns: int
    """CPU time used by the loop's thread."""

    def max_with(self, other: "LoopIteration") -> "LoopIteration":
        return LoopIteration(max(self.wall_ns, other.wall_ns), max(self.cpu_ns, other.cpu_ns))


_NO_ITERATION: Final = LoopIteration(0, 0)


class LoopWatchdog:
    """Measures the iterations of an event loop. It must be started in the loop's thread."""

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
        self._probe: tuple[int, int] | None = None
        """Time of the pending probe, and the loop's CPU time at that moment; None once the loop has responded."""
        self._probed_at = 0
        self._cpu_seen = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.longest = _NO_ITERATION
        """The longest iteration since the process started."""
        self._window_at, self._window, self._window_before = 0, _NO_ITERATION, _NO_ITERATION

    # Runs in the loop's thread

    def start(self) -> None:
        self._cpu = _thread_cpu_clock()
        self._thread = threading.Thread(target=self._run, name="headgate-turns", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _probe_done(self) -> None:
        asked = self._probe
        if asked is None:
            return
        now = self._clock()
        turn = LoopIteration(max(0, now - asked[0]), max(0, self._cpu() - asked[1]))
        self._rotate_window(now)
        self.longest, self._window = self.longest.max_with(turn), self._window.max_with(turn)
        self._probe = None

    def longest_recent(self) -> LoopIteration:
        """The longest iteration in the last one to two minutes."""
        self._rotate_window(self._clock())
        return self._window.max_with(self._window_before)

    def _rotate_window(self, now: int) -> None:
        passed = now - self._window_at
        if passed >= RECENT_WINDOW_NS:
            self._window_before = self._window if passed < 2 * RECENT_WINDOW_NS else _NO_ITERATION
            self._window_at, self._window = now, _NO_ITERATION

    # Runs in any thread

    def health(self) -> tuple[int, str]:
        """HTTP status and text for a liveness probe."""
        asked = self._probe
        stalled_ns = 0 if asked is None else self._clock() - asked[0]
        if stalled_ns >= self._stalled_ns_max:
            return 503, f"the event loop has been blocked for {stalled_ns / SECOND:.1f} s"
        return 200, "alive"

    # Runs in the measuring thread

    def _run(self) -> None:
        # `call_soon` raises RuntimeError after the loop has been closed.
        with contextlib.suppress(RuntimeError):
            while not self._stopped.wait(TICK_S):
                self.tick()

    def tick(self) -> None:
        """Probes the loop if no probe is pending and either the loop is busy or the last probe was a while ago."""
        if self._probe is not None:
            return
        now, cpu = self._clock(), self._cpu()
        busy = cpu - self._cpu_seen >= BUSY_CPU_NS
        self._cpu_seen = cpu
        if busy or now - self._probed_at >= PROBE_INTERVAL_NS:
            self._probed_at = now
            self._probe = now, cpu
            self._call_soon(self._probe_done)


def _thread_cpu_clock() -> Callable[[], int]:
    """CPU clock of this thread, readable from any thread. Always 0 if the system does not support it."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return lambda: 0
    clock_id = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime_ns(clock_id)


def loop_iteration_metrics(watch: LoopWatchdog) -> MetricFamily:
    told = family("headgate_event_loop_iteration_max_seconds")
    for window, turn in (("lifetime", watch.longest), ("recent", watch.longest_recent())):
        told.add(("cpu", window), turn.cpu_ns / SECOND)
        told.add(("wall", window), turn.wall_ns / SECOND)
    return told
