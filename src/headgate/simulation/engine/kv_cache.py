"""Which blocks does a sequence get, find again, and give back?"""

from headgate.model.engine_profile import EngineProfile
from headgate.simulation.engine.blocks import BlockPool
from headgate.simulation.engine.sequence import Sequence


class KvCache:
    __slots__ = ("_profile", "pool")

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile
        self.pool = BlockPool(profile.kv_blocks)

    def find(self, sequence: Sequence) -> bool:
        """Holds what there is of a waiting sequence, provided that all the rest of its prompt would fit too."""
        profile, pool = self._profile, self.pool
        # The last token is always computed: the next one comes out of it.
        found_max = (sequence.goal - 1) // profile.block_tokens
        names = sequence.request.prefix if profile.prefix_cache else ()
        found, free = pool.cached(names, found_max)
        needed = profile.blocks(sequence.goal) - (found - free)
        if needed + profile.watermark_blocks > pool.free:
            return False
        sequence.names = list(names[:found])
        pool.share(sequence.names)
        if sequence.run is not None and found >= sequence.run_from:
            found += pool.resume(sequence.run, skip=found - sequence.run_from)
        sequence.run = None
        sequence.named = found
        sequence.computed = found * profile.block_tokens
        return True

    def has_room(self, sequence: Sequence, chunk: int) -> bool:
        return self._blocks_more(sequence, chunk) <= self.pool.free

    def extend(self, sequence: Sequence, chunk: int) -> None:
        """Takes blocks for a chunk of a prompt and names those that it fills."""
        self.pool.take(self._blocks_more(sequence, chunk))
        sequence.computed += chunk
        prefix = sequence.request.prefix
        if self._profile.prefix_cache and sequence.named < len(prefix):
            full = sequence.computed // self._profile.block_tokens
            sequence.names += [name for name in prefix[sequence.named : full] if self.pool.name(name)]
            sequence.named = max(sequence.named, full)

    def set_aside(self, sequence: Sequence, blocks: int) -> None:
        """Gives back the blocks of a sequence that will return, and remembers where they are."""
        if self._profile.prefix_cache:
            full = sequence.computed // self._profile.block_tokens
            sequence.run_from = len(sequence.names)
            sequence.run = self.pool.set_aside(sequence.names, full - sequence.run_from, blocks - full)
        else:
            self.pool.give_back([], blocks)
        sequence.computed = 0

    def give_back(self, sequence: Sequence, blocks: int) -> None:
        self.pool.give_back(sequence.names, blocks - len(sequence.names))

    def _blocks_more(self, sequence: Sequence, chunk: int) -> int:
        return self._profile.blocks(sequence.computed + chunk) - self._profile.blocks(sequence.computed)
