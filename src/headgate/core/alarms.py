"""When must something be looked at again?

A heap of moments with removal by key. Removed entries stay in the heap as husks until they
surface; when husks outnumber the living the heap is rebuilt, so memory follows what is alive
and every operation stays cheap on average.
"""

from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from headgate.model.units import Instant

_Key = TypeVar("_Key", bound=str)
_HUSKS_TOLERATED = 64


class Alarms(Generic[_Key]):
    __slots__ = ("_due", "_heap", "_sequence")

    def __init__(self) -> None:
        self._due: dict[_Key, tuple[Instant, int]] = {}
        self._heap: list[tuple[Instant, int, _Key]] = []
        self._sequence = 0

    def set(self, key: _Key, moment: Instant) -> None:
        """Sets or moves the alarm of `key`."""
        self._sequence += 1
        self._due[key] = (moment, self._sequence)
        heappush(self._heap, (moment, self._sequence, key))
        if len(self._heap) > 2 * len(self._due) + _HUSKS_TOLERATED:
            self._heap = [(due, sequence, name) for name, (due, sequence) in self._due.items()]
            heapify(self._heap)

    def clear(self, key: _Key) -> None:
        self._due.pop(key, None)

    def next(self) -> Instant | None:
        heap = self._heap
        while heap:
            moment, sequence, key = heap[0]
            if self._due.get(key) == (moment, sequence):
                return moment
            heappop(heap)
        return None

    def pop_due(self, now: Instant) -> list[_Key]:
        """Takes out every alarm whose moment has come, earliest first."""
        due: list[_Key] = []
        heap = self._heap
        # This is asked at every event, and nearly always the answer is none.
        while heap and heap[0][0] <= now:
            moment, sequence, key = heappop(heap)
            if self._due.get(key) == (moment, sequence):
                del self._due[key]
                due.append(key)
        return due
