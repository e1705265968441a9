"""Prefix index: predicts which endpoints have a prompt's prefix in their cache.

An engine keeps the KV cache of computed prompts while it has room, so a prefix that a later prompt shares does not need
to be computed again. Engines do not report which prefixes they hold, but the gateway knows the prompts that it sent.
For each endpoint, the index stores the prefix hashes of these prompts and drops the oldest when they exceed the
endpoint's KV cache.

Theory of operation. The prompts form a radix tree. A sequence of hashes without a branch is one `_Run`. Each run knows
which endpoints hold it, and an endpoint that holds a run also holds all runs before it. A lookup follows the runs of a
prompt and uses binary search in the last run to find the point of divergence. The runs from there back to the root show
how much each endpoint holds. Recording a prompt takes time proportional to its new hashes plus the number of runs on
its path. A run is split where prompts diverge.

A hash belongs to one run. If two different prefixes have the same hash, the later one is found. The other one is found
only up to that hash, until it is dropped and recorded again. Such a collision leaves no stale entries behind.

Known limitations: an engine may have evicted more than the index assumes, because responses need KV cache too. When
room is needed, the whole oldest prompt is dropped, not only its end. A wrong guess costs only the time to compute the
part that was assumed to be cached.

Endpoints are identified by their slot number in the pool, and a set of endpoints is a bit mask. All holders of a prefix
are therefore found in one step.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from headgate.model.prefix import prefix_tokens

KV_TOKENS_GUESS: Final = 500_000
"""KV cache capacity, in tokens, that is assumed for an engine if it is unknown."""
PER_ENDPOINT_MAX: Final = 8_192
PER_POOL_MAX: Final = 262_144
"""Maximum total number of hashes for all endpoints in a pool. Each hash takes at most a third of a kilobyte."""
_STALE_ENTRIES_MAX: Final = 256


class _Run:
    """Consecutive hashes without a branch: every prompt that has one of them and continues also has the next."""

    __slots__ = ("end", "hashes", "parent", "slots", "start", "tokens")

    def __init__(self, start: int, hashes: Sequence[int], parent: "_Run | None") -> None:
        self.start = start
        """Number of hashes before this run."""
        self.end = start + len(hashes)
        self.hashes = hashes
        self.tokens = prefix_tokens(self.end) - prefix_tokens(start)
        self.parent = parent
        """Preceding run. None at the start of a prompt."""
        self.slots = 0
        """Bit mask of the endpoints that hold this run."""


class _EndpointPrompts:
    """Prompts sent to one endpoint that are assumed to be cached."""

    __slots__ = ("last", "number", "prompts", "size", "tokens")

    def __init__(self) -> None:
        self.last: dict[_Run, int] = {}
        """Runs that the endpoint holds, with the number of the last prompt that used each. A run's parent never has a
        lower number."""
        self.prompts: deque[tuple[int, _Run]] = deque()
        """Number and last run of each prompt, oldest first. Entries of prompts that were sent again later are stale."""
        self.number = 0
        self.size = self.tokens = 0
        """Number of hashes that the endpoint holds, and the KV cache tokens that they take."""

    def compact(self) -> None:
        """Removes stale entries of `prompts` once there are many."""
        if len(self.prompts) > 2 * len(self.last) + _STALE_ENTRIES_MAX:
            self.prompts = deque(each for each in self.prompts if self.last.get(each[1]) == each[0])


class PrefixIndex:
    """Prefix index of one pool."""

    __slots__ = ("_last_depth", "_last_hashes", "_last_run", "_per_pool_max", "_runs", "_sent", "size")

    def __init__(self, per_pool_max: int = PER_POOL_MAX) -> None:
        self._per_pool_max = per_pool_max
        self._runs: dict[int, _Run] = {}
        """Run of each hash that any endpoint holds."""
        self._sent: dict[int, _EndpointPrompts] = {}
        self.size = 0
        """Total number of hashes over all endpoints."""
        self._last_hashes: Sequence[int] | None = None
        """Hashes of the last lookup, cached with its result, because the same prompt is looked up several times."""
        self._last_depth = 0
        self._last_run: _Run | None = None

    def record(self, slot: int, hashes: Sequence[int], kv_tokens: int | None) -> None:
        """Records a prompt sent to the endpoint with this slot number; `kv_tokens` is its KV cache capacity."""
        if not hashes:
            return
        if (sent := self._sent.get(slot)) is None:
            sent = self._sent[slot] = _EndpointPrompts()
        end = self._run_of(hashes)
        run: _Run | None = end
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
        sent.compact()
        tokens_max = KV_TOKENS_GUESS if kv_tokens is None else kv_tokens
        while sent.tokens > tokens_max or sent.size > PER_ENDPOINT_MAX or self.size > self._per_pool_max:
            self._drop_oldest(sent, bit)

    def forget(self, slot: int) -> None:
        """Drops all prefixes of the endpoint with this slot number."""
        sent = self._sent.pop(slot, None)
        while sent is not None and sent.prompts:
            self._drop_oldest(sent, 1 << slot)

    def depth(self, slot: int, hashes: Sequence[int]) -> int:
        """Returns the number of leading hashes of the prompt that the endpoint with this slot number holds."""
        depth, run, bit = self._look_up(hashes), self._last_run, 1 << slot
        while run is not None:
            if run.slots & bit:
                return min(depth, run.end)
            run = run.parent
        return 0

    def depth_anywhere(self, hashes: Sequence[int]) -> int:
        """Returns the largest `depth` of any endpoint."""
        return self._look_up(hashes)

    def holders(self, hashes: Sequence[int], *, beyond: int) -> Iterator[tuple[int, int]]:
        """Yields (depth, bit mask) of endpoints that hold more than `beyond` of the hashes, deepest first."""
        depth, run, told = self._look_up(hashes), self._last_run, 0
        while depth > beyond and run is not None:
            if found := run.slots & ~told:
                yield depth, found
                told |= found
            depth, run = run.start, run.parent

    # Radix tree

    def _look_up(self, hashes: Sequence[int]) -> int:
        """Returns how many of the hashes any endpoint holds, and sets `_last_run` to the run in which they end."""
        if hashes is self._last_hashes:
            return self._last_depth
        depth, length, found = 0, len(hashes), None
        # A run found through a hash collision starts at another depth and does not match.
        while depth < length and (run := self._runs.get(hashes[depth])) is not None and run.start == depth:
            found, end = run, min(run.end, length)
            if run.hashes[end - depth - 1] != hashes[end - 1]:
                depth += _common_length(run.hashes, hashes[depth:end])
                break
            depth = end
        self._last_hashes, self._last_depth, self._last_run = hashes, depth, found
        return depth

    def _run_of(self, hashes: Sequence[int]) -> _Run:
        """Returns the run that ends with this prompt, adding or splitting runs as needed."""
        depth, run = self._look_up(hashes), self._last_run
        self._last_hashes = None
        if run is not None and depth < run.end:
            run = self._split(run, depth)
        if depth < len(hashes):
            run = _Run(depth, hashes[depth:], run)
            self._runs.update(dict.fromkeys(run.hashes, run))
        assert run is not None, "a prompt has at least one hash"
        return run

    def _split(self, run: _Run, depth: int) -> _Run:
        """Splits a run at this depth and returns the first part as a new run. All holders hold both parts."""
        count = depth - run.start
        first = _Run(run.start, run.hashes[:count], run.parent)
        run.start, run.hashes, run.parent = depth, run.hashes[count:], first
        first.slots = run.slots
        run.tokens -= first.tokens
        self._runs.update(dict.fromkeys(first.hashes, first))
        for slot in iter_slots(run.slots, 0):
            last = self._sent[slot].last
            last[first] = last[run]
        return first

    def _drop_oldest(self, sent: _EndpointPrompts, bit: int) -> None:
        """Drops the oldest prompt of an endpoint, except runs that later prompts share."""
        self._last_hashes = None
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


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the length of the common prefix by binary search. The first elements are equal; the last are not."""
    low, high = 1, len(other) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if one[middle - 1] == other[middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def iter_slots(bits: int, start: int) -> Iterator[int]:
    """Yields the slot numbers in a bit mask, from `start` on and then from 0.

    Callers that use only the first few slots can pass different starts to spread their choices.
    """
    high = bits >> start << start
    for part in (high, bits ^ high):
        left = part
        while left:
            lowest = left & -left
            yield lowest.bit_length() - 1
            left ^= lowest
