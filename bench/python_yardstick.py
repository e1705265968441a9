"""Fixed pure-Python work, as a unit for the speed of other Python code.

A round does what most Python code does: method calls, attribute access, small objects, dictionaries and lists. It does
the same in every run and never changes, so the ratio of another speed to it hardly depends on the machine. A change to
this file invalidates every threshold that refers to it.
"""

from dataclasses import dataclass
from time import process_time
from typing import Final

ROUND_ITEMS: Final = 200
"""Items handled in one round. One round takes about as long as the scheduler needs for one request."""
KEYS: Final = 1 << 13
"""Size of the table. Like the state of a scheduler, it does not fit in a first-level cache."""
QUEUE_LENGTH: Final = 64


@dataclass(slots=True)
class Item:
    key: int
    weight: int
    next_key: int = 0

    def moved(self, step: int) -> int:
        self.next_key = (self.key * 5 + step) % KEYS
        return self.next_key


class Yardstick:
    """A table of items, and a queue of fixed length that they pass through."""

    def __init__(self) -> None:
        self._items = {key: Item(key, key % 7) for key in range(KEYS)}
        self._queue: list[Item] = []
        self._key = 0
        self.total = 0

    def run_rounds(self, rounds: int) -> float:
        """Return the CPU time for this number of rounds, in seconds."""
        start = process_time()
        for number in range(rounds):
            self._round(number)
        return process_time() - start

    def us_per_round(self, rounds: int) -> float:
        """Return the CPU time per round, in microseconds."""
        return self.run_rounds(rounds) * 1e6 / rounds

    def _round(self, number: int) -> None:
        for step in range(ROUND_ITEMS):
            item = self._take(step)
            self._queue.append(item)
            if len(self._queue) > QUEUE_LENGTH:
                self._release(self._queue.pop(0))
        self.total += number

    def _take(self, step: int) -> Item:
        item = self._items.get(self._key)
        if item is None:
            item = Item(self._key, step % 7)
        else:
            del self._items[self._key]
        self._key = item.moved(step)
        return item

    def _release(self, item: Item) -> None:
        self.total += item.weight
        self._items[item.key] = Item(item.key, (item.weight + item.next_key) % 7)
