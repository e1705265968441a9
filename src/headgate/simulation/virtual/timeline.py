"""What comes next? Moments to come and what is to be done at them."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, TypeVar

from headgate.model.units import Instant

_Subject = TypeVar("_Subject")

USUAL: Final = 1_000_000
"""The rank of what callers, faults and clocks do. Engines come before, by their numbers: what ends at an instant has
ended for whoever comes at it."""
LOOKS: Final = USUAL + 1
"""The rank of what only looks at how things stand when all the rest of an instant is done."""


class Timeline:
    """Things due at one instant are done in the order of their ranks, those of one rank as they were set."""

    __slots__ = ("_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[Instant, int, int, Callable[..., object], object]] = []
        self._sequence = 0

    def at(
        self, moment: Instant, action: Callable[[_Subject], object], subject: _Subject, *, rank: int = USUAL
    ) -> None:
        self._sequence += 1
        heappush(self._heap, (moment, rank, self._sequence, action, subject))

    def next(self) -> Instant | None:
        return self._heap[0][0] if self._heap else None

    def do_next(self) -> None:
        _, _, _, action, subject = heappop(self._heap)
        action(subject)
