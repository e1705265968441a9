"""Which blocks of the KV cache are in use, and what do the free ones still hold?

As in vLLM: a block that is given back keeps its contents until it is needed for something else, and the one given back
longest ago is taken first. A block may have a name, the chained hash of all tokens up to its end; whoever starts with
the same tokens finds it by that name and shares it. Blocks without a name are counted, not listed: nobody will look for
them, except the sequence that was preempted and comes back, which finds what is left of its own run.

A block whose name is already held under another block stays unnamed, where vLLM would keep both under the one name.
"""

from collections import OrderedDict
from collections.abc import Iterable

Run = int
"""A stretch of unnamed blocks that were given back together. Negative, so that it is no name."""


class BlockPool:
    """`free` counts all blocks that nobody holds, whatever they contain."""

    __slots__ = ("_blank", "_idle", "_names", "_runs", "capacity", "free")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.free = capacity
        self._names: dict[int, int] = {}
        """Name -> how many sequences hold the block."""
        self._runs = -1
        self._blank: Run = -1
        """The last run that nobody will come back for."""
        # Names and runs that nobody holds, with their number of blocks; the first is taken first.
        self._idle: OrderedDict[int, int] = OrderedDict({self._blank: capacity})

    @property
    def used(self) -> int:
        return self.capacity - self.free

    def take(self, count: int) -> None:
        """Takes free blocks, and with them what they held."""
        assert count <= self.free, "blocks are counted before they are taken"
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
                del self._names[key]

    def cached(self, names: Iterable[int], count_max: int) -> tuple[int, int]:
        """How many blocks from the start are there under their names, and how many of those are free."""
        found = free = 0
        known = self._names
        for name in names:
            holders = known.get(name)
            if holders is None or found == count_max:
                break
            found += 1
            free += holders == 0
        return found, free

    def share(self, names: Iterable[int]) -> None:
        """Holds blocks that `cached` has found."""
        for name in names:
            if self._names[name] == 0:
                del self._idle[name]
                self.free -= 1
            self._names[name] += 1

    def name(self, name: int) -> bool:
        """Gives a block that was just taken its name. False if another block has it already."""
        if name in self._names:
            return False
        self._names[name] = 1
        return True

    def give_back(self, names: list[int], unnamed: int) -> None:
        """Ends a sequence's hold of blocks that nobody will come back for by anything but their names."""
        if unnamed:
            self.free += unnamed
            self._add_blank(unnamed)
        self._give_back_names(names)

    def set_aside(self, names: list[int], unnamed: int, partial: int) -> Run:
        """Gives back the blocks of a sequence that will return. `partial` blocks are not full and hold nothing."""
        if partial:
            self.free += partial
            self._add_blank(partial)
        self._runs -= 1
        run = self._runs
        if unnamed:
            self.free += unnamed
            self._idle[run] = unnamed
        self._give_back_names(names)
        return run

    def left_of(self, run: Run) -> int:
        return self._idle.get(run, 0)

    def resume(self, run: Run, *, skip: int) -> int:
        """Takes back what is left of a run, but for its first `skip` blocks, which stay free; how many it were."""
        left = self.left_of(run)
        taken = max(0, left - skip)
        self.free -= taken
        if taken and left == taken:
            del self._idle[run]
        elif taken:
            self._idle[run] = left - taken
        return taken

    def _give_back_names(self, names: list[int]) -> None:
        # The end of a prompt is less likely to be wanted again than its beginning, so it is to be taken first.
        for name in reversed(names):
            self._names[name] -= 1
            if self._names[name] == 0:
                self._idle[name] = 1
                self.free += 1

    def _add_blank(self, count: int) -> None:
        # Neighbours that hold nothing of worth are one run; otherwise a day without a shared prompt makes a long list.
        if next(reversed(self._idle), None) == self._blank:
            self._idle[self._blank] += count
            return
        self._runs -= 1
        self._blank = self._runs
        self._idle[self._blank] = count
