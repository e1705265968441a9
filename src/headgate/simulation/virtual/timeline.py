"""Schedule of future actions in virtual time."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, TypeVar

from headgate.model.units import Instant

_Subject = TypeVar("_Subject")

DEFAULT_RANK: Final = 1_000_000
"""Rank of client actions, faults and timers.

Engines have lower ranks, by position. If an attempt ends and a request arrives at the same instant, the attempt has
therefore ended by the time the request arrives.
"""
SAMPLE_RANK: Final = DEFAULT_RANK + 1
"""Rank of samples, which are taken after all other actions at an instant."""


class Timeline:
    """Actions by instant, then by rank, then in the order in which they were added."""

    __slots__ = ("_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[tuple[Instant, int, int, Callable[..., object], object]] = []
        self._sequence = 0

    def schedule(
        self, moment: Instant, action: Callable[[_Subject], object], subject: _Subject, *, rank: int = DEFAULT_RANK
    ) -> None:
        self._sequence += 1
        heappush(self._heap, (moment, rank, self._sequence, action, subject))

    def next_instant(self) -> Instant | None:
        return self._heap[0][0] if self._heap else None

    def run_next(self) -> None:
        _, _, _, action, subject = heappop(self._heap)
        action(subject)
