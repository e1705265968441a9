"""Pool of KV cache blocks: which blocks are in use and what the free blocks still contain.

As in vLLM, a released block keeps its contents until it is reused, and the least recently released block is reused
first. A block can have a name: the chained hash of all tokens up to its end. A sequence whose prompt starts with the
same tokens finds the block by that name and shares it. Blocks without a name are only counted. Only the preempted
sequence that released them can find them again: it finds what is left of its own run.

Difference from vLLM: if two blocks have the same contents, only the first one gets the name.
"""

from collections import OrderedDict
from collections.abc import Iterable

BlockRun = int
"""ID of a group of unnamed blocks that were released together. Negative, so that it cannot be a name."""


class BlockPool:
    """An engine's KV cache blocks. `free` counts all blocks that no sequence holds, regardless of their contents."""

    __slots__ = ("_blank", "_holders", "_idle", "_runs", "capacity", "free")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self._holders: dict[int, int] = {}
        """Number of holders by block name."""
        self._runs = -1
        self._blank: BlockRun = -1
        """ID of the newest run that no sequence will resume."""
        # Number of blocks that no sequence holds, by name or run, in the order in which they are reused.
        self._idle: OrderedDict[int, int] = OrderedDict({self._blank: capacity})

    @property
    def used(self) -> int:
        return self.capacity - self.free

    def allocate(self, count: int) -> None:
        """Allocates free blocks and discards their contents."""
        assert count <= self.free, "not enough free blocks"
        self.free -= count
        idle = self._idle
        while count:
            key, held = next(iter(idle.items()))
            if held > count:
                idle[key] = held - count
                return
            del idle[key]
            count -= held
            if key >= 0:
                del self._holders[key]

    def find_cached(self, names: Iterable[int], count_max: int) -> tuple[int, int]:
        """Returns the number of leading names found in the pool, and how many of their blocks are free."""
        found = free = 0
        known = self._holders
        for name in names:
            holders = known.get(name)
            if holders is None or found == count_max:
                break
            found += 1
            free += holders == 0
        return found, free

    def acquire(self, names: Iterable[int]) -> None:
        """Adds a holder to blocks found by `find_cached`."""
        for name in names:
            if self._holders[name] == 0:
                del self._idle[name]
                self.free -= 1
            self._holders[name] += 1

    def register(self, name: int) -> bool:
        """Names a newly allocated block. Returns False if another block already has the name."""
        if name in self._holders:
            return False
        self._holders[name] = 1
        return True

    def release(self, names: list[int], unnamed: int) -> None:
        """Releases the blocks of a sequence that has ended. Only named blocks can be found again."""
        if unnamed:
            self.free += unnamed
            self._add_blank(unnamed)
        self._release_hashes(names)

    def release_preempted(self, names: list[int], unnamed: int, partial: int) -> BlockRun:
        """Releases the blocks of a preempted sequence. The contents of `partial` incomplete blocks are lost."""
        if partial:
            self.free += partial
            self._add_blank(partial)
        self._runs -= 1
        run = self._runs
        if unnamed:
            self.free += unnamed
            self._idle[run] = unnamed
        self._release_hashes(names)
        return run

    def remaining(self, run: BlockRun) -> int:
        return self._idle.get(run, 0)

    def resume(self, run: BlockRun, *, skip: int) -> int:
        """Reallocates the remaining blocks of a run, except for the first `skip`, and returns their number."""
        left = self.remaining(run)
        taken = max(0, left - skip)
        self.free -= taken
        if taken and left == taken:
            del self._idle[run]
        elif taken:
            self._idle[run] = left - taken
        return taken

    def _release_hashes(self, names: list[int]) -> None:
        # The end of a prompt is less likely to be reused than its start, so it is released first.
        for name in reversed(names):
            self._holders[name] -= 1
            if self._holders[name] == 0:
                self._idle[name] = 1
                self.free += 1

    def _add_blank(self, count: int) -> None:
        # Adjacent blank blocks are merged into one run. Otherwise the list would grow without bound.
        if next(reversed(self._idle), None) == self._blank:
            self._idle[self._blank] += count
            return
        self._runs -= 1
        self._blank = self._runs
        self._idle[self._blank] = count
