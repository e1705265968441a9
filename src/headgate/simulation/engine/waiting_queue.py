"""Queue of waiting sequences, ordered by rank."""

from heapq import heappop, heappush

from headgate.simulation.engine.sequence import Sequence, SequenceState


class WaitingQueue:
    """Waiting sequences by rank. A preempted sequence precedes later arrivals, because it keeps its rank."""

    __slots__ = ("_heap", "length")

    def __init__(self) -> None:
        self.length = 0
        self._heap: list[tuple[tuple[int, int], Sequence]] = []
        """Heap ordered by rank. Entries for sequences that have left are dropped when they reach the top."""

    def push(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.WAITING
        self.length += 1
        heappush(self._heap, (sequence.rank, sequence))

    def remove(self, sequence: Sequence) -> None:
        sequence.state = SequenceState.REMOVED
        self.length -= 1

    def peek(self) -> Sequence | None:
        while self._heap and self._heap[0][1].state is not SequenceState.WAITING:
            heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> None:
        """Removes the first sequence."""
        heappop(self._heap)
        self.length -= 1
