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

Theory of the bounds. An endpoint keeps as many prompts as its KV cache, and at most `PER_ENDPOINT_MAX` hashes. The
memory of the whole index is bounded in bytes, estimated from the number of its parts. If it is exceeded, the index
drops the oldest prompts of endpoints that take more than an equal share, so that an endpoint that joins late gets its
share too. An endpoint's own size counts its runs as if no other endpoint had them. The sizes therefore add up to at
least the memory of the index, and while the index is too large, one endpoint always takes more than its share.

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
BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum memory of the index of one pool, in bytes as estimated below."""
HASH_BYTES: Final = 96
"""Memory of a distinct hash: its number, and its entries in a run and in the table of hashes."""
RUN_BYTES: Final = 128
"""Memory of a run, without its hashes and the bits of its mask."""
HOLDING_BYTES: Final = 72
"""Memory of the fact that an endpoint holds a run."""
PROMPT_BYTES: Final = 72
"""Memory of an endpoint's entry for one prompt."""
ENDPOINT_BYTES: Final = 1_024
"""Memory of an endpoint without prompts."""
_STALE_ENTRIES_MAX: Final = 256
_CHECKED_MAX: Final = 4
"""Number of endpoints that are checked for more than their share before a prompt is dropped."""


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

    def bytes_alone(self, run_bytes: int) -> int:
        """Returns the estimated memory for these prompts if no other endpoint had any."""
        runs = len(self.last) * (run_bytes + HOLDING_BYTES) + ENDPOINT_BYTES
        return self.size * HASH_BYTES + runs + len(self.prompts) * PROMPT_BYTES

    def compact(self) -> None:
        """Removes stale entries of `prompts` once there are many."""
        if len(self.prompts) > 2 * len(self.last) + _STALE_ENTRIES_MAX:
            self.prompts = deque(each for each in self.prompts if self.last.get(each[1]) == each[0])


class PrefixIndex:
    """Prefix index of one pool."""

    __slots__ = (
        "_bytes_max",
        "_holding_count",
        "_last_depth",
        "_last_hashes",
        "_last_run",
        "_prompt_count",
        "_run_bytes",
        "_run_count",
        "_runs",
        "_sent",
        "_unchecked",
        "size",
    )

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._run_count = self._holding_count = self._prompt_count = 0
        """Number of runs, of pairs of a run and an endpoint that holds it, and of the endpoints' prompts."""
        self._run_bytes = RUN_BYTES
        """Memory of a run with its bit mask, without its hashes."""
        self._unchecked: list[int] = []
        """Slots not yet checked for more than their share, in the current pass over all endpoints."""
        self._runs: dict[int, _Run] = {}
        """Run of each hash that any endpoint holds."""
        self._sent: dict[int, _EndpointPrompts] = {}
        self.size = 0
        """Total number of hashes over all endpoints."""
        self._last_hashes: Sequence[int] | None = None
        """Hashes of the last lookup, cached with its result, because the same prompt is looked up several times."""
        self._last_depth = 0
        self._last_run: _Run | None = None

    @property
    def memory_bytes(self) -> int:
        """Estimated memory of the index."""
        parts = self._holding_count * HOLDING_BYTES + self._prompt_count * PROMPT_BYTES
        parts += len(self._sent) * ENDPOINT_BYTES
        return len(self._runs) * HASH_BYTES + self._run_count * self._run_bytes + parts

    def record(self, slot: int, hashes: Sequence[int], kv_tokens: int | None) -> None:
        """Records a prompt sent to the endpoint with this slot number; `kv_tokens` is its KV cache capacity."""
        if not hashes:
            return
        if (sent := self._sent.get(slot)) is None:
            sent = self._sent[slot] = _EndpointPrompts()
            self._run_bytes = RUN_BYTES + max(self._sent) // 7
        end = self._run_of(hashes)
        run: _Run | None = end
        sent.number = number = sent.number + 1
        last, bit = sent.last, 1 << slot
        while run is not None:
            last[run] = number
            if not run.slots & bit:
                self._holding_count += 1
                run.slots |= bit
                sent.tokens += run.tokens
                sent.size += len(run.hashes)
                self.size += len(run.hashes)
            run = run.parent
        sent.prompts.append((number, end))
        before = len(sent.prompts) - 1
        sent.compact()
        self._prompt_count += len(sent.prompts) - before
        tokens_max = KV_TOKENS_GUESS if kv_tokens is None else kv_tokens
        while sent.tokens > tokens_max or sent.size > PER_ENDPOINT_MAX:
            self._drop_oldest(sent, bit)
        while self.memory_bytes > self._bytes_max and self._holding_count:
            self._drop_oldest_of_largest(slot)

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
            self._run_count += 1
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
        self._run_count += 1
        for slot in iter_slots(run.slots, 0):
            last = self._sent[slot].last
            last[first] = last[run]
            self._holding_count += 1
        return first

    def _drop_oldest_of_largest(self, slot: int) -> None:
        """Drops the oldest prompt of an endpoint that takes more than an equal share.

        It takes turns among those that do, so that no search is needed. If the next few endpoints do not, it drops the
        prompt from this endpoint if it does, or else from the largest one.
        """
        share = self._bytes_max // len(self._sent)
        for _ in range(_CHECKED_MAX):
            if not self._unchecked:
                self._unchecked = list(self._sent)
            if self._bytes_of(self._unchecked[-1]) > share:
                slot = self._unchecked[-1]
                break
            self._unchecked.pop()
        if self._bytes_of(slot) <= share:
            slot = max(self._sent, key=self._bytes_of)
        self._drop_oldest(self._sent[slot], 1 << slot)

    def _bytes_of(self, slot: int) -> int:
        """Returns the memory of an endpoint's prompts if no other endpoint had any; 0 if it has none."""
        sent = self._sent.get(slot)
        return 0 if sent is None or not sent.prompts else sent.bytes_alone(self._run_bytes)

    def _drop_oldest(self, sent: _EndpointPrompts, bit: int) -> None:
        """Drops the oldest prompt of an endpoint, except runs that later prompts share."""
        self._last_hashes = None
        number, end = sent.prompts.popleft()
        self._prompt_count -= 1
        run: _Run | None = end
        while run is not None and sent.last.get(run) == number:
            del sent.last[run]
            self._holding_count -= 1
            sent.tokens -= run.tokens
            sent.size -= len(run.hashes)
            self.size -= len(run.hashes)
            run.slots ^= bit
            if not run.slots:
                self._run_count -= 1
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
