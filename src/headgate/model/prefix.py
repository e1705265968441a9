"""Lengths of the prompt prefixes that a ticket's hashes cover.

A ticket carries up to 64 rolling hashes of its prompt at increasing prefix lengths. The first steps are small because
most prompts are short; later steps grow the prefix by about a tenth. Each hash covers the whole prefix, so two prompts
that share a hash have the same prefix up to that length. Gateways hash bytes and the simulator hashes block names, both
at these lengths.
"""

from hashlib import blake2b
from itertools import accumulate, chain, repeat
from struct import Struct
from typing import Final

HASH_BYTES: Final = 8

STEP_TOKENS: Final = tuple(
    chain([256, 256], repeat(512, 31), repeat(1_024, 8), repeat(2_048, 8), repeat(4_096, 8), repeat(8_192, 7))
)
"""Tokens between consecutive prefix lengths."""

PREFIX_LENGTHS: Final = tuple(accumulate(STEP_TOKENS))
"""Prefix length in tokens that each hash covers, up to 131,072."""

HASHES_MAX: Final = len(PREFIX_LENGTHS)

_STRUCTS: Final = tuple(Struct(f"<{count}Q") for count in range(HASHES_MAX + 1))


def pack_hashes(hashes: list[int]) -> bytes:
    """Packs at most 64 hashes, shortest prefix first."""
    return _STRUCTS[len(hashes)].pack(*hashes)


def unpack_hashes(prefix: bytes) -> tuple[int, ...]:
    return _STRUCTS[len(prefix) // HASH_BYTES].unpack(prefix)


def salted_hashes(hashes: tuple[int, ...], adapter: str) -> tuple[int, ...]:
    """Returns the hashes of the same prefix computed with a LoRA adapter, whose KV cache differs from the model's."""
    salt = int.from_bytes(blake2b(adapter.encode(), digest_size=HASH_BYTES).digest(), "little")
    return tuple(each ^ salt for each in hashes)


def prefix_tokens(count: int) -> int:
    """Returns the prefix length in tokens that the first `count` hashes cover."""
    return PREFIX_LENGTHS[count - 1] if count else 0
