"""Which endpoint probably holds the beginning of this prompt?

An engine keeps what it has computed of prompts for as long as it has room, and a prompt that begins in the same way
need not be computed again that far. Nobody tells us what an engine keeps, but we know what we have sent it. So the
index remembers, per endpoint, the hashes of the beginnings that went there, and forgets the ones sent longest ago when
they come to more than its KV cache holds.

It follows that an endpoint that is noted for a beginning is noted for every shorter one of the same prompt, for those
came with it, and with every later prompt that had it. So how much of a prompt an endpoint holds is found by halving,
and what came again later of an older prompt is its beginning. Two different beginnings of one hash break that rule: the
answer may then be wrong, but nothing is left behind.

What is not ideal: the engine may have forgotten more than we think, for answers need room too; and where room is needed
the whole of the oldest prompt is forgotten, not only its end. A wrong guess costs the time of computing what was
thought to be there, nothing else.

Endpoints are numbers here, their slots in the pool, and sets of them are bits of an integer: who holds a beginning is
found in one step, however many do.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from headgate.model.prefix import HASHES_MAX, STEPS, reach

KV_TOKENS_GUESS: Final = 500_000
"""What a KV cache is taken to hold where nobody said."""
PER_ENDPOINT_MAX: Final = 8_192
IN_ALL_MAX: Final = 262_144
"""Hashes of all endpoints of a pool together, a quarter of a kilobyte each."""
_HUSKS_TOLERATED: Final = 256
_ALL: Final = -1
"""Every slot."""


class _Prompt:
    """What an endpoint was sent at one time."""

    __slots__ = ("first", "hashes")

    def __init__(self, first: int, hashes: Sequence[int]) -> None:
        self.first = first
        """The number of the first of these hashes; the others follow it."""
        self.hashes = hashes


class _Sent:
    """What one endpoint was sent, as far as it still counts."""

    __slots__ = ("last", "listed", "number", "prompts", "tokens")

    def __init__(self) -> None:
        self.last: dict[int, int] = {}
        """Per hash the number under which it came last: that of the prompt, and its place in it."""
        self.prompts: deque[_Prompt] = deque()
        """The longest ago first; some of their hashes may have come again later."""
        self.listed = 0
        """How many hashes stand in `prompts`."""
        self.number = 0
        self.tokens = 0
        """What all of it takes of the KV cache."""

    def add(self, hashes: Sequence[int]) -> list[int]:
        """Notes a prompt; those of its hashes that are new here."""
        last = self.last
        new = [each for each in hashes if each not in last]
        self.number = first = self.number + HASHES_MAX
        last.update(zip(hashes, range(first, first + len(hashes)), strict=True))
        self.tokens += reach(len(hashes)) - reach(len(hashes) - len(new))
        self.prompts.append(_Prompt(first, hashes))
        self.listed += len(hashes)
        if self.listed > 2 * len(last) + _HUSKS_TOLERATED:
            self._tidy()
        return new

    def drop_oldest(self) -> list[int]:
        """Forgets what only the oldest prompt had."""
        prompt, last = self.prompts.popleft(), self.last
        self.listed -= len(prompt.hashes)
        dropped: list[int] = []
        for number, each in enumerate(prompt.hashes, prompt.first):
            if last.get(each) == number:
                del last[each]
                self.tokens -= STEPS[number % HASHES_MAX]
                dropped.append(each)
        return dropped

    def _tidy(self) -> None:
        """Strikes out what came again later, which is the beginning of a prompt or all of it."""
        last = self.last
        for prompt in self.prompts:
            first = prompt.first
            for each in prompt.hashes:
                if last.get(each) == first:
                    break
                first += 1
            prompt.hashes = prompt.hashes[first - prompt.first :]
            prompt.first = first
        self.prompts = deque(prompt for prompt in self.prompts if prompt.hashes)
        self.listed = sum(len(prompt.hashes) for prompt in self.prompts)


class PrefixIndex:
    """Of one pool."""

    __slots__ = ("_holders", "_in_all_max", "_sent", "size")

    def __init__(self, in_all_max: int = IN_ALL_MAX) -> None:
        self._in_all_max = in_all_max
        self._holders: dict[int, int] = {}
        """Per hash the slots of those who hold it, as bits."""
        self._sent: dict[int, _Sent] = {}
        self.size = 0
        """How many hashes are noted, over all endpoints."""

    def note(self, slot: int, hashes: Sequence[int], kv_tokens: int | None) -> None:
        """A prompt with these beginnings goes to the endpoint in this slot, whose KV cache holds so much."""
        sent = self._sent.get(slot)
        if sent is None:
            sent = self._sent[slot] = _Sent()
        holders, bit, before = self._holders, 1 << slot, len(sent.last)
        for each in sent.add(hashes):
            holders[each] = holders.get(each, 0) | bit
        self.size += len(sent.last) - before
        tokens_max = KV_TOKENS_GUESS if kv_tokens is None else kv_tokens
        while sent.tokens > tokens_max or len(sent.last) > PER_ENDPOINT_MAX or self.size > self._in_all_max:
            if not sent.last:
                sent.tokens = 0
                break
            self._drop_oldest(sent, bit)

    def forget(self, slot: int) -> None:
        """Whatever the endpoint in this slot held is gone, or is not to be counted on."""
        sent = self._sent.pop(slot, None)
        while sent is not None and sent.prompts:
            self._drop_oldest(sent, 1 << slot)

    def depth(self, slot: int, hashes: Sequence[int], *, most: int | None = None) -> int:
        """How many of these beginnings, each longer than the one before, the endpoint in this slot holds.

        Whoever knows that it holds no more than so many says so.
        """
        return self._depth(hashes, 1 << slot, len(hashes) if most is None else most)

    def depth_anywhere(self, hashes: Sequence[int]) -> int:
        """As `depth`, of whichever endpoint holds the most."""
        return self._depth(hashes, _ALL, len(hashes))

    def holders(self, hashes: Sequence[int], *, most: int, beyond: int) -> Iterator[tuple[int, int]]:
        """Those who hold more than `beyond` of the beginnings, where nobody holds more than `most`.

        How many, and who, the most first.
        """
        known, told = self._holders, 0
        for count in range(most, beyond, -1):
            if found := known.get(hashes[count - 1], 0) & ~told:
                yield count, found
                told |= found

    def _depth(self, hashes: Sequence[int], slots: int, most: int) -> int:
        """How many of these beginnings, and no more than `most`, are held by any of these."""
        known = self._holders
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if known.get(hashes[middle - 1], 0) & slots:
                low = middle
            else:
                high = middle - 1
        return low

    def _drop_oldest(self, sent: _Sent, bit: int) -> None:
        dropped, holders = sent.drop_oldest(), self._holders
        self.size -= len(dropped)
        for each in dropped:
            if left := holders[each] ^ bit:
                holders[each] = left
            else:
                del holders[each]


def slots(bits: int, start: int) -> Iterator[int]:
    """The slots of a set, beginning from one of them: whoever looks only at a few should not always see the same."""
    high = bits >> start << start
    for part in (high, bits ^ high):
        left = part
        while left:
            lowest = left & -left
            yield lowest.bit_length() - 1
            left ^= lowest
