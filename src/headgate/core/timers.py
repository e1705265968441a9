"""Timers for queue timeouts, deadlines, ejections and expected prefills.

Each kind of timer is keyed by request or endpoint. All kinds share one heap, so a single comparison shows whether any
timer is due. The scheduler checks this on every event, and usually no timer is due.

A moved or cleared timer leaves a stale entry in the heap until that entry reaches the top. When stale entries outnumber
live ones, the heap is rebuilt. Memory use is therefore proportional to the number of live timers, and each operation is
cheap on average.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from headgate.model.units import Instant

_Key = TypeVar("_Key", bound=str | tuple[str, str])
_STALE_ENTRIES_MAX = 64
NEVER = Instant(2**63)
"""Time after all others."""


class TimerHeap:
    """Heap of all timers, earliest first."""

    __slots__ = ("_heap", "_sequence", "due_at", "live_count")

    def __init__(self) -> None:
        self._heap: list[tuple[Instant, int, Timers[Any], Any]] = []
        """Entries of (due time, sequence number, timer kind, key)."""
        self._sequence = 0
        self.live_count = 0
        """Number of live timers."""
        self.due_at = NEVER
        """Due time of the first entry, which may be stale. `pop_due` does nothing before this time."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, moment: Instant, kind: "Timers[Any]", key: str | tuple[str, str]) -> int:
        """Adds an entry and returns its sequence number, which distinguishes it from stale entries."""
        if len(self._heap) > 2 * self.live_count + _STALE_ENTRIES_MAX:
            self._heap = [each for each in self._heap if each[2].is_current(each[3], each[1])]
            heapify(self._heap)
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (moment, sequence, kind, key))
        self.due_at = self._heap[0][0]
        return sequence

    def next(self) -> Instant | None:
        heap = self._heap
        while heap:
            moment, sequence, kind, key = heap[0]
            if kind.live.get(key) == sequence:
                return moment
            heappop(heap)
            self.due_at = heap[0][0] if heap else NEVER
        return None

    def pop_due(self, now: Instant) -> bool:
        """Moves due entries to their kinds and returns whether there were any.

        The caller must then call `pop_fired` on every kind.
        """
        if self.due_at > now:
            return False
        heap = self._heap
        while heap and heap[0][0] <= now:
            _, sequence, kind, key = heappop(heap)
            kind.fire(key, sequence)
        self.due_at = heap[0][0] if heap else NEVER
        return True


class Timers(Generic[_Key]):
    """Timers of one kind."""

    __slots__ = ("_fired", "_timer_heap", "live")

    def __init__(self, timer_heap: TimerHeap) -> None:
        self._timer_heap = timer_heap
        self.live: dict[_Key, int] = {}
        """Sequence number of the live heap entry for each key."""
        self._fired: list[tuple[_Key, int]] = []

    def __len__(self) -> int:
        return len(self.live)

    def set(self, key: _Key, moment: Instant) -> None:
        """Sets or moves the timer of `key`."""
        if key not in self.live:
            self._timer_heap.live_count += 1
        self.live[key] = self._timer_heap.add(moment, self, key)

    def clear(self, key: _Key) -> None:
        if self.live.pop(key, None) is not None:
            self._timer_heap.live_count -= 1

    def clear_all(self) -> None:
        self._timer_heap.live_count -= len(self.live)
        self.live.clear()

    def is_current(self, key: _Key, sequence: int) -> bool:
        return self.live.get(key) == sequence

    def fire(self, key: _Key, sequence: int) -> None:
        self._fired.append((key, sequence))

    def pop_fired(self) -> list[_Key]:
        """Removes and returns the keys of due timers, earliest first."""
        if not self._fired:
            return []
        rung, self._fired = self._fired, []
        due: list[_Key] = []
        for key, sequence in rung:
            if self.live.get(key) == sequence:
                del self.live[key]
                due.append(key)
        self._timer_heap.live_count -= len(due)
        return due
