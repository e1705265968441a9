"""Which endpoint probably holds the beginning of this prompt?

An engine keeps what it has computed of prompts for as long as it has room, and a prompt that begins in the same way
need not be computed again that far. Nobody tells us what an engine keeps, but we know what we have sent it. So the
index remembers, per endpoint, the hashes of the beginnings that went there, and forgets the ones sent longest ago when
they come to more than its KV cache holds.

Theory of operation. Prompts that begin alike make a tree, and a stretch of it in which they do not part is one `_Run`
of hashes. A run knows which endpoints hold it; whoever holds it holds all that comes before it. A prompt is looked up
run by run, and by halving in the one where it leaves the way; from there back to the root the runs tell who holds how
much. Noting a prompt costs what is new in it, and a step for each run on its way; a run is parted where prompts part.

A hash stands in one run. Where two different beginnings have the same hash, the one that came later is found and the
other only up to there, until it is forgotten and comes again; nothing is left behind.

What is not ideal: the engine may have forgotten more than we think, for answers need room too; and where room is needed
the whole of the oldest prompt is forgotten, not only its end. A wrong guess costs the time of computing what was
thought to be there, nothing else.

Endpoints are numbers here, their slots in the pool, and sets of them are bits of an integer: who holds a beginning is
found in one step, however many do.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from headgate.model.prefix import reach

KV_TOKENS_GUESS: Final = 500_000
"""What a KV cache is taken to hold where nobody said."""
PER_ENDPOINT_MAX: Final = 8_192
IN_ALL_MAX: Final = 262_144
"""Hashes of all endpoints of a pool together, a third of a kilobyte each at worst."""
_HUSKS_TOLERATED: Final = 256


class _Run:
    """Hashes that follow one another in every prompt that goes so far."""

    __slots__ = ("end", "hashes", "parent", "slots", "start", "tokens")

    def __init__(self, start: int, hashes: Sequence[int], parent: "_Run | None") -> None:
        self.start = start
        """How many hashes are before it."""
        self.end = start + len(hashes)
        self.hashes = hashes
        self.tokens = reach(self.end) - reach(start)
        self.parent = parent
        """What is before it; None at the beginning of a prompt."""
        self.slots = 0
        """Who holds it, as bits."""


class _Sent:
    """What one endpoint was sent, as far as it still counts."""

    __slots__ = ("last", "number", "prompts", "size", "tokens")

    def __init__(self) -> None:
        self.last: dict[_Run, int] = {}
        """What it holds, each with the number of the last prompt that had it: none of a run before it is lower."""
        self.prompts: deque[tuple[int, _Run]] = deque()
        """Number and end of each, the longest ago first; some may have come again later."""
        self.number = 0
        self.size = self.tokens = 0
        """How many hashes it holds, and what they take of the KV cache."""

    def tidy(self) -> None:
        """Strikes out the prompts that came again later, once they are many."""
        if len(self.prompts) > 2 * len(self.last) + _HUSKS_TOLERATED:
            self.prompts = deque(each for each in self.prompts if self.last.get(each[1]) == each[0])


class PrefixIndex:
    """Of one pool."""

    __slots__ = ("_asked", "_depth", "_found", "_in_all_max", "_runs", "_sent", "size")

    def __init__(self, in_all_max: int = IN_ALL_MAX) -> None:
        self._in_all_max = in_all_max
        self._runs: dict[int, _Run] = {}
        """Where each hash is that anybody holds."""
        self._sent: dict[int, _Sent] = {}
        self.size = 0
        """How many hashes are noted, over all endpoints."""
        self._asked: Sequence[int] | None = None
        """What was looked up last, how far it is known, and the run in which that ends: one is asked about often."""
        self._depth = 0
        self._found: _Run | None = None

    def note(self, slot: int, hashes: Sequence[int], kv_tokens: int | None) -> None:
        """A prompt with these beginnings goes to the endpoint in this slot, whose KV cache holds so much."""
        if not hashes:
            return
        if (sent := self._sent.get(slot)) is None:
            sent = self._sent[slot] = _Sent()
        end = run = self._run_of(hashes)
        sent.number = number = sent.number + 1
        last, bit = sent.last, 1 << slot
        while run is not None:
            last[run] = number
            if not run.slots & bit:
                run.slots |= bit
                sent.tokens += run.tokens
                sent.size += len(run.hashes)
                self.size += len(run.hashes)
            run = run.parent
        sent.prompts.append((number, end))
        sent.tidy()
        tokens_max = KV_TOKENS_GUESS if kv_tokens is None else kv_tokens
        while sent.tokens > tokens_max or sent.size > PER_ENDPOINT_MAX or self.size > self._in_all_max:
            self._drop_oldest(sent, bit)

    def forget(self, slot: int) -> None:
        """Whatever the endpoint in this slot held is gone, or is not to be counted on."""
        sent = self._sent.pop(slot, None)
        while sent is not None and sent.prompts:
            self._drop_oldest(sent, 1 << slot)

    def depth(self, slot: int, hashes: Sequence[int]) -> int:
        """How many of these beginnings, each longer than the one before, the endpoint in this slot holds."""
        depth, run, bit = self._look_up(hashes), self._found, 1 << slot
        while run is not None:
            if run.slots & bit:
                return min(depth, run.end)
            run = run.parent
        return 0

    def depth_anywhere(self, hashes: Sequence[int]) -> int:
        """As `depth`, of whichever endpoint holds the most."""
        return self._look_up(hashes)

    def holders(self, hashes: Sequence[int], *, beyond: int) -> Iterator[tuple[int, int]]:
        """Those who hold more than `beyond` of the beginnings: how many, and who, the most first."""
        depth, run, told = self._look_up(hashes), self._found, 0
        while depth > beyond and run is not None:
            if found := run.slots & ~told:
                yield depth, found
                told |= found
            depth, run = run.start, run.parent

    # The tree

    def _look_up(self, hashes: Sequence[int]) -> int:
        """How many of these beginnings anybody holds; `_found` is the run in which they end."""
        if hashes is self._asked:
            return self._depth
        depth, length, found = 0, len(hashes), None
        # A hash that also stands elsewhere is not taken for the beginning of a run here.
        while depth < length and (run := self._runs.get(hashes[depth])) is not None and run.start == depth:
            found, end = run, min(run.end, length)
            if run.hashes[end - depth - 1] != hashes[end - 1]:
                depth += _alike(run.hashes, hashes[depth:end])
                break
            depth = end
        self._asked, self._depth, self._found = hashes, depth, found
        return depth

    def _run_of(self, hashes: Sequence[int]) -> _Run:
        """The run at whose end this prompt ends; what is not known of it is known from here on."""
        depth, run = self._look_up(hashes), self._found
        self._asked = None
        if run is not None and depth < run.end:
            run = self._part(run, depth)
        if depth < len(hashes):
            run = _Run(depth, hashes[depth:], run)
            self._runs.update(dict.fromkeys(run.hashes, run))
        assert run is not None, "there is at least one hash, and it is known or new"
        return run

    def _part(self, run: _Run, depth: int) -> _Run:
        """Parts a run so that its first piece, which is new, ends at this depth; all who hold it hold both."""
        count = depth - run.start
        first = _Run(run.start, run.hashes[:count], run.parent)
        run.start, run.hashes, run.parent = depth, run.hashes[count:], first
        first.slots = run.slots
        run.tokens -= first.tokens
        self._runs.update(dict.fromkeys(first.hashes, first))
        for slot in slots(run.slots, 0):
            last = self._sent[slot].last
            last[first] = last[run]
        return first

    def _drop_oldest(self, sent: _Sent, bit: int) -> None:
        """Forgets what only the oldest prompt had."""
        self._asked = None
        number, end = sent.prompts.popleft()
        run: _Run | None = end
        while run is not None and sent.last.get(run) == number:
            del sent.last[run]
            sent.tokens -= run.tokens
            sent.size -= len(run.hashes)
            self.size -= len(run.hashes)
            run.slots ^= bit
            if not run.slots:
                for each in run.hashes:
                    if self._runs.get(each) is run:
                        del self._runs[each]
            run = run.parent


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """How far they are the same, which they are at the beginning and not at the end."""
    low, high = 1, len(other) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def slots(bits: int, start: int) -> Iterator[int]:
    """The slots of a set, beginning from one of them: whoever looks only at a few should not always see the same."""
    high = bits >> start << start
    for part in (high, bits ^ high):
        left = part
        while left:
            lowest = left & -left
            yield lowest.bit_length() - 1
            left ^= lowest
