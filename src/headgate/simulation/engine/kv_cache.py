"""Allocation of KV cache blocks to sequences, with prefix caching."""

from headgate.model.engine_profile import EngineProfile
from headgate.simulation.engine.blocks import BlockPool
from headgate.simulation.engine.sequence import Sequence


class KvCache:
    __slots__ = ("_profile", "pool")

    def __init__(self, profile: EngineProfile) -> None:
        self._profile = profile
        self.pool = BlockPool(profile.kv_blocks)

    def acquire_cached(self, sequence: Sequence) -> bool:
        """Allocates a waiting sequence's cached blocks if the rest of its prompt fits as well."""
        profile, pool = self._profile, self.pool
        # The last prompt token is always computed, because that produces the next token.
        found_max = (sequence.prefill_tokens - 1) // profile.block_tokens
        names = sequence.request.prefix if profile.prefix_cache else ()
        found, free = pool.find_cached(names, found_max)
        needed = profile.blocks_for(sequence.prefill_tokens) - (found - free)
        if needed + profile.watermark_blocks > pool.free:
            return False
        sequence.block_hashes = list(names[:found])
        pool.acquire(sequence.block_hashes)
        if sequence.run is not None and found >= sequence.run_start:
            found += pool.resume(sequence.run, skip=found - sequence.run_start)
        sequence.run = None
        sequence.hashed_blocks = found
        sequence.computed_tokens = found * profile.block_tokens
        return True

    def has_room(self, sequence: Sequence, chunk: int) -> bool:
        return self._blocks_more(sequence, chunk) <= self.pool.free

    def extend(self, sequence: Sequence, chunk: int) -> None:
        """Allocates blocks for a prompt chunk, and names the blocks that the chunk fills."""
        self.pool.allocate(self._blocks_more(sequence, chunk))
        sequence.computed_tokens += chunk
        prefix = sequence.request.prefix
        if self._profile.prefix_cache and sequence.hashed_blocks < len(prefix):
            full = sequence.computed_tokens // self._profile.block_tokens
            sequence.block_hashes += [
                name for name in prefix[sequence.hashed_blocks : full] if self.pool.register(name)
            ]
            sequence.hashed_blocks = max(sequence.hashed_blocks, full)

    def release_preempted(self, sequence: Sequence, blocks: int) -> None:
        """Releases a preempted sequence's blocks and records where to find them."""
        if self._profile.prefix_cache:
            full = sequence.computed_tokens // self._profile.block_tokens
            sequence.run_start = len(sequence.block_hashes)
            sequence.run = self.pool.release_preempted(sequence.block_hashes, full - sequence.run_start, blocks - full)
        else:
            self.pool.release([], blocks)
        sequence.computed_tokens = 0

    def release(self, sequence: Sequence, blocks: int) -> None:
        self.pool.release(sequence.block_hashes, blocks - len(sequence.block_hashes))

    def _blocks_more(self, sequence: Sequence, chunk: int) -> int:
        return self._profile.blocks_for(sequence.computed_tokens + chunk) - self._profile.blocks_for(
            sequence.computed_tokens
        )
