"""Replaces the prefix hashes of prompts by small numbers, in order of appearance.

A hash could be compared with the hashes of known prompts. The numbers only show which prompts have equal beginnings.

A gateway hashes a prompt at fixed distances in bytes, but a trace has one id for each block of 512 tokens. Bytes are
converted at the request's own ratio of tokens to bytes, and each distance is rounded to whole blocks. A hash keeps the
position that it got when it first appeared, so that all prompts that share it agree on their common blocks.
"""

from collections import OrderedDict
from typing import Final

from headgate.model.prefix import HASH_BYTES, PREFIX_LENGTHS, salted_hashes, unpack_hashes
from headgate.model.units import BYTES_PER_TOKEN
from headgate.ports.traffic import TrafficRow
from headgate.simulation.workload.arrival import PREFIX_BLOCK_TOKENS

HASHES_KEPT_MAX: Final = 1_000_000
"""Maximum number of hashes in memory, about 250 MB. The least recently used ones are forgotten, and get new ids if they
appear again.
"""
BLOCKS_MAX: Final = 2_048
"""Maximum number of blocks of a prompt, which is a million tokens."""
_RATIO_MIN: Final = 0.5
_RATIO_MAX: Final = 2.0
"""Limits on the ratio of the engine's tokens to bytes / 4. Images have tokens, but are not in the hashed bytes."""


class _Position:
    """End of a hashed prefix."""

    __slots__ = ("blocks", "ids", "tokens")

    def __init__(self, tokens: float, blocks: int, ids: tuple[int, ...]) -> None:
        self.tokens = tokens
        self.blocks = blocks
        """Number of blocks from the start of the prompt."""
        self.ids = ids
        """Ids of the blocks after the previous hash."""


class PrefixIds:
    def __init__(self, *, hashes_kept_max: int = HASHES_KEPT_MAX) -> None:
        self._kept_max = hashes_kept_max
        self._known: OrderedDict[int, _Position] = OrderedDict()
        self.count = 0
        """Number of ids given out."""

    def ids(self, row: TrafficRow) -> tuple[int, ...]:
        """Returns one id for each block of the prompt that has hashes."""
        count = min(len(row.prefix) // HASH_BYTES, len(PREFIX_LENGTHS))
        if not count:
            return ()
        # Models have separate KV caches.
        hashes = salted_hashes(unpack_hashes(row.prefix[: count * HASH_BYTES]), row.model)
        ratio = _tokens_per_estimated_token(row)
        before = row.bytes_before_prefix / BYTES_PER_TOKEN
        found: list[int] = []
        tokens, blocks, distance = before * ratio, 0, 0.0
        for each, length in zip(hashes, PREFIX_LENGTHS, strict=False):
            position = self._known.get(each)
            if position is None:
                position = self._add(each, tokens + (length - distance) * ratio, blocks)
            found += position.ids
            tokens, blocks, distance = position.tokens, position.blocks, length
        # The shortest prefix is used most recently, so that it is forgotten after the longer ones.
        for each in reversed(hashes):
            self._known.move_to_end(each)
        while len(self._known) > self._kept_max:
            self._known.popitem(last=False)
        return tuple(found)

    def _add(self, prefix_hash: int, tokens: float, blocks_before: int) -> _Position:
        blocks = max(blocks_before, min(BLOCKS_MAX, int(tokens / PREFIX_BLOCK_TOKENS + 0.5)))
        ids = tuple(range(self.count + 1, self.count + 1 + blocks - blocks_before))
        self.count += len(ids)
        position = self._known[prefix_hash] = _Position(tokens, blocks, ids)
        return position


def _tokens_per_estimated_token(row: TrafficRow) -> float:
    if not row.prompt_tokens or not row.prompt_bytes:
        return 1.0
    return min(_RATIO_MAX, max(_RATIO_MIN, row.prompt_tokens * BYTES_PER_TOKEN / row.prompt_bytes))
