"""How far does each hash of a prompt's beginning reach?

A ticket carries hashes of its prompt's beginning up to growing distances, at most 64 of them: fine steps first, where
most prompts end, then steps of about a tenth of the way. Each stands for everything from the start up to its distance,
so two prompts that share one share all before it. Whoever makes such hashes, a gateway of bytes or a simulation of the
names of blocks, makes them at these distances.
"""

from itertools import accumulate, chain, repeat
from struct import Struct
from typing import Final

HASH_BYTES: Final = 8

STEPS: Final = tuple(
    chain([256, 256], repeat(512, 31), repeat(1_024, 8), repeat(2_048, 8), repeat(4_096, 8), repeat(8_192, 7))
)
"""Tokens from each distance to the next."""

DISTANCES: Final = tuple(accumulate(STEPS))
"""Tokens of the beginning that the first, second, … hash stands for, up to 131,072."""

HASHES_MAX: Final = len(DISTANCES)

_PACKED: Final = tuple(Struct(f"<{count}Q") for count in range(HASHES_MAX + 1))


def pack(hashes: list[int]) -> bytes:
    """At most 64 of them, the shortest beginning first."""
    return _PACKED[len(hashes)].pack(*hashes)


def unpack(prefix: bytes) -> tuple[int, ...]:
    return _PACKED[len(prefix) // HASH_BYTES].unpack(prefix)


def reach(count: int) -> int:
    """How many tokens the first so many hashes stand for."""
    return DISTANCES[count - 1] if count else 0
