"""Limits the time spent on parsing in one event loop iteration, here called a turn.

Bytes that a peer may have split into tiny pieces are parsed in slices. Once a turn's time is used up, the remaining
bytes are buffered until the next turn, and their connection is not read until then. Time and buffered bytes are limited
across all connections, so that many peers cannot cause more delay than one.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

SLICE_BYTES: Final = 16 * 1024
"""Maximum bytes parsed without checking the clock. Parsing them takes less than 3 ms for any input."""
UNTIMED_BYTES: Final = 1024
"""Maximum size of a read that is parsed untimed, because checking the clock would take longer than the parsing."""
UNTIMED_BYTES_TOTAL: Final = 16 * 1024
"""Maximum bytes parsed untimed in one turn, across all connections. Beyond this, all reads are timed."""
READ_BYTES: Final = 256
"""Bytes added to the size of each read, because even the shortest request takes time to parse."""
REQUEST_NS: Final = 100_000
"""Time charged for each request that starts in a read, because its key is checked in the next turn."""
TURN_NS_MAX: Final = 10_000_000
"""Maximum time for slices in one turn."""
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum bytes buffered across all connections: one slice for each allowed unauthenticated connection."""


class TurnBudget:
    """Time left in this turn, and the callbacks waiting for the next one."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], int],
        *,
        ns_max: int = TURN_NS_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
    ) -> None:
        """`clock` returns nanoseconds. `call_soon` schedules a function for the next turn."""
        self._call_soon = call_soon
        self._clock = clock
        self._ns_max = ns_max
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._began_ns: int | None = None
        """Start time of the first slice in this turn. None if there has been none."""
        self.waiting_bytes = 0
        self.untimed_bytes = 0
        """Bytes parsed without checking the clock.

        Connections increase it directly and call `allows` when it exceeds its limit. From then on, the turn is timed,
        and the value is reset when it ends.
        """

    def allows(self) -> bool:
        """Returns whether another slice may be parsed in this turn."""
        now = self._clock()
        if self._began_ns is None:
            self._began_ns = now
            self._call_soon(self._next_turn)
        return now - self._began_ns < self._ns_max

    def charge(self, ns: int) -> None:
        """Deducts time from this turn, if it is timed."""
        if self._began_ns is not None:
            self._began_ns -= ns

    def wait(self, resume: Callable[[], None], size: int) -> bool:
        """Schedules `resume` for one of the next turns. Returns False if too many bytes are buffered."""
        if self.waiting_bytes + size > self._waiting_bytes_max:
            return False
        self.waiting_bytes += size
        self._waiting.append((resume, size))
        return True

    def _next_turn(self) -> None:
        self._began_ns = self._clock()
        for _ in range(len(self._waiting)):
            resume, size = self._waiting.popleft()
            self.waiting_bytes -= size
            resume()
            if not self.allows():
                break
        if self._waiting:
            self._call_soon(self._next_turn)
        else:
            self._began_ns = None
            self.untimed_bytes = 0


class SlicedConnection(Protocol):
    """Connection whose reads may be parsed in slices."""

    def parse(self, data: bytes) -> bool:
        """Parses a slice. Returns whether to continue with the next one."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def reject_overflow(self) -> None:
        """Called when this connection's bytes were dropped because too many are buffered."""
        ...


class SlicedReads:
    """Passes one connection's reads to its parser, in slices and within the turn's budget."""

    __slots__ = ("_at", "_budget", "_connection", "unparsed")

    def __init__(self, budget: TurnBudget, connection: SlicedConnection) -> None:
        self._budget = budget
        self._connection = connection
        self.unparsed = b""
        """Read that is being parsed or waiting for the next turn. Until it is done, the connection must not be read."""
        self._at = 0

    @property
    def unparsed_bytes(self) -> int:
        """Number of buffered bytes, excluding the slice that is being parsed."""
        return max(0, len(self.unparsed) - self._at)

    def feed(self, data: bytes) -> None:
        if self.unparsed:
            # A transport may deliver one more read after it has been paused.
            self.unparsed, self._at = self.unparsed[self._at :] + data, 0
            return
        self.unparsed, self._at = data, 0
        if self._budget.allows():
            self._run()
        else:
            self._wait()

    def drop(self) -> None:
        self.unparsed = b""

    def _run(self) -> None:
        """Parses at least one slice, and more while the turn has time left."""
        while self.unparsed:
            data, at = self.unparsed, self._at
            self._at = at + SLICE_BYTES
            wanted = self._connection.parse(data[at : self._at])
            if not wanted or self._at >= len(data):
                self.unparsed = b""
            elif not self._budget.allows():
                self._wait()
                return

    def _wait(self) -> None:
        if self._budget.wait(self._resume, len(self.unparsed) - self._at):
            self._connection.pause_reading()
        else:
            self.unparsed = b""
            self._connection.reject_overflow()

    def _resume(self) -> None:
        if self.unparsed:
            self._run()
            if not self.unparsed:
                self._connection.resume_reading()
