"""When must something be looked at again?

Requests expire, endpoints return, prompts should have been computed: each kind has its alarms, by key, and all of them
stand in one agenda, so that whether anything is due at all is seen at a glance. That is asked at every event, and
nearly always the answer is no.

An alarm that was moved or cleared stays in the agenda as a husk until it surfaces; when husks outnumber the living they
are taken out, so memory follows what is alive and every operation stays cheap on average.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

from headgate.model.units import Instant

_Key = TypeVar("_Key", bound=str | tuple[str, str])
_HUSKS_TOLERATED = 64


class Agenda:
    """The alarms of all kinds, earliest first."""

    __slots__ = ("_heap", "_sequence", "living")

    def __init__(self) -> None:
        self._heap: list[tuple[Instant, int, Alarms[Any], Any]] = []
        """Moment, order among equals, kind and key."""
        self._sequence = 0
        self.living = 0
        """How many of them count."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, moment: Instant, kind: "Alarms[Any]", key: str | tuple[str, str]) -> int:
        """The number by which it is told from husks."""
        if len(self._heap) > 2 * self.living + _HUSKS_TOLERATED:
            self._heap = [each for each in self._heap if each[2].counts(each[3], each[1])]
            heapify(self._heap)
        self._sequence = sequence = self._sequence + 1
        heappush(self._heap, (moment, sequence, kind, key))
        return sequence

    def next(self) -> Instant | None:
        heap = self._heap
        while heap:
            moment, sequence, kind, key = heap[0]
            if kind.counts(key, sequence):
                return moment
            heappop(heap)
        return None

    def ring(self, now: Instant) -> bool:
        """Whether the moment of any alarm has come. All of them must then be taken from their kinds."""
        heap = self._heap
        if not heap or heap[0][0] > now:
            return False
        while heap and heap[0][0] <= now:
            _, sequence, kind, key = heappop(heap)
            kind.rang(key, sequence)
        return True


class Alarms(Generic[_Key]):
    """Those of one kind."""

    __slots__ = ("_agenda", "_rung", "_set")

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._set: dict[_Key, int] = {}
        """The number of the alarm that counts, of each key that has one."""
        self._rung: list[tuple[_Key, int]] = []

    def __len__(self) -> int:
        return len(self._set)

    def set(self, key: _Key, moment: Instant) -> None:
        """Sets or moves the alarm of `key`."""
        if key not in self._set:
            self._agenda.living += 1
        self._set[key] = self._agenda.add(moment, self, key)

    def clear(self, key: _Key) -> None:
        if self._set.pop(key, None) is not None:
            self._agenda.living -= 1

    def clear_all(self) -> None:
        self._agenda.living -= len(self._set)
        self._set.clear()

    def counts(self, key: _Key, sequence: int) -> bool:
        return self._set.get(key) == sequence

    def rang(self, key: _Key, sequence: int) -> None:
        self._rung.append((key, sequence))

    def take(self) -> list[_Key]:
        """Takes out those whose moment has come, earliest first."""
        if not self._rung:
            return []
        rung, self._rung = self._rung, []
        due: list[_Key] = []
        for key, sequence in rung:
            if self._set.get(key) == sequence:
                del self._set[key]
                due.append(key)
        self._agenda.living -= len(due)
        return due
