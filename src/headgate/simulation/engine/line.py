"""Who is next among the waiting?"""

from heapq import heappop, heappush

from headgate.simulation.engine.sequence import Place, Sequence


class WaitingLine:
    """By rank. One that was preempted comes before all that never ran, since it arrived before them."""

    __slots__ = ("_heap", "length")

    def __init__(self) -> None:
        self.length = 0
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        """Holds some that have left: they are dropped when they come up."""

    def join(self, sequence: Sequence) -> None:
        sequence.place = Place.WAITING
        self.length += 1
        heappush(self._heap, (sequence.rank, sequence))

    def leave(self, sequence: Sequence) -> None:
        sequence.place = Place.GONE
        self.length -= 1

    def first(self) -> Sequence | None:
        while self._heap and self._heap[0][1].place is not Place.WAITING:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> None:
        """Takes the first out."""
        heappop(self._heap)
        self.length -= 1
