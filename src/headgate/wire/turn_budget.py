"""Bounds the time spent on parsing in one turn of the event loop.

Bytes that a peer may have split into tiny pieces are parsed in slices. When the slices of one turn have used up their
time, the remaining bytes wait for the next turn, and their connection is not read until then. The time and the number
of waiting bytes are bounded for all connections together, so that many peers cannot do more than one.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

SLICE_BYTES: Final = 16 * 1024
"""Maximum bytes that are parsed without checking the clock: less than 3 ms of work for any input."""
UNTIMED_BYTES: Final = 1024
"""Reads up to this size are parsed at once, because checking the clock would cost more than parsing them."""
UNTIMED_BYTES_IN_ALL: Final = 16 * 1024
"""Once all connections together have had this many bytes parsed untimed, each further read of the turn is timed."""
READ_BYTES: Final = 256
"""Bytes added to the size of each read, because even the shortest request takes work."""
REQUEST_NS: Final = 100_000
"""Time charged for each request that starts in a read: its key is checked in the next turn."""
TURN_NS_MAX: Final = 10_000_000
"""Time for slices in one turn of the loop."""
WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum waiting bytes of all connections: a slice for each connection that has not sent a valid key yet."""


class TurnBudget:
    """Time left in this turn, and the connections whose bytes wait for the next one."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        clock: Callable[[], int],
        *,
        ns_max: int = TURN_NS_MAX,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
    ) -> None:
        """`clock` returns nanoseconds; `call_soon` schedules a function for the next turn of the loop."""
        self._call_soon = call_soon
        self._clock = clock
        self._ns_max = ns_max
        self._waiting_bytes_max = waiting_bytes_max
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._began_ns: int | None = None
        """Time of the first slice of this turn; None if there was none."""
        self.waiting_bytes = 0
        self.untimed_bytes = 0
        """Bytes parsed without checking the clock. Connections add to it directly, and call `allows` once it exceeds
        the bound. Only then does the budget track the turn, and it resets this to 0 at the end of the turn."""

    def allows(self) -> bool:
        """Whether another slice may be parsed in this turn."""
        now = self._clock()
        if self._began_ns is None:
            self._began_ns = now
            self._call_soon(self._next_turn)
        return now - self._began_ns < self._ns_max

    def charge(self, ns: int) -> None:
        """Deducts time from the rest of this turn, if the turn is timed."""
        if self._began_ns is not None:
            self._began_ns -= ns

    def wait(self, resume: Callable[[], None], size: int) -> bool:
        """Schedules `resume` for one of the next turns. False if too many bytes wait already."""
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
    """A connection whose reads may be parsed in slices."""

    def parse(self, data: bytes) -> bool:
        """Returns whether more bytes should be passed to it."""
        ...

    def stop_reading(self) -> None: ...

    def go_on_reading(self) -> None: ...

    def give_up_reading(self) -> None:
        """Called when too many bytes wait already, so the bytes of this connection were dropped."""
        ...


class SlicedReads:
    """Passes the reads of one connection to its parser, in slices and within the budget of the turn."""

    __slots__ = ("_at", "_budget", "_connection", "unparsed")

    def __init__(self, budget: TurnBudget, connection: SlicedConnection) -> None:
        self._budget = budget
        self._connection = connection
        self.unparsed = b""
        """A read that is being parsed or waits for the next turn. Until then the connection must not be read."""
        self._at = 0

    @property
    def unparsed_bytes(self) -> int:
        """Waiting bytes, without the slice that is being parsed."""
        return max(0, len(self.unparsed) - self._at)

    def take(self, data: bytes) -> None:
        if self.unparsed:
            # A transport may deliver one more read after it was paused.
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
            self._connection.stop_reading()
        else:
            self.unparsed = b""
            self._connection.give_up_reading()

    def _resume(self) -> None:
        if self.unparsed:
            self._run()
            if not self.unparsed:
                self._connection.go_on_reading()
