"""What comes next? Moments to come and what is to be done at them."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeVar

from headgate.model.units import Instant

_Subject = TypeVar("_Subject")


class Timeline:
    """Things due at one instant are done in the order in which they were set."""

    __slots__ = ("_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[Instant, int, Callable[..., object], object]] = []
        self._sequence = 0

    def at(self, moment: Instant, action: Callable[[_Subject], object], subject: _Subject) -> None:
        self._sequence += 1
        heappush(self._heap, (moment, self._sequence, action, subject))

    def next(self) -> Instant | None:
        return self._heap[0][0] if self._heap else None

    def do_next(self) -> None:
        _, _, action, subject = heappop(self._heap)
        action(subject)
