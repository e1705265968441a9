"""Distances and encoding of prefix hashes."""

from itertools import pairwise

import pytest

from headgate.model.prefix import (
    HASH_BYTES,
    HASHES_MAX,
    PREFIX_LENGTHS,
    STEP_TOKENS,
    pack_hashes,
    prefix_tokens,
    unpack_hashes,
)


def test_distances_grow_in_steps_of_at_most_one_ninth() -> None:
    assert len(PREFIX_LENGTHS) == HASHES_MAX == 64
    assert PREFIX_LENGTHS[0] == 256
    assert PREFIX_LENGTHS[-1] == 131_072
    assert list(STEP_TOKENS[1:]) == [later - before for before, later in pairwise(PREFIX_LENGTHS)]
    assert all(9 * step <= distance for step, distance in zip(STEP_TOKENS[10:], PREFIX_LENGTHS[9:], strict=False))


def test_reach_returns_tokens_covered_by_hashes() -> None:
    assert [prefix_tokens(count) for count in (0, 1, 2, 3, 64)] == [0, 256, 512, 1_024, 131_072]


@pytest.mark.parametrize("hashes", [[], [1], [0, 2**64 - 1, 7], list(range(64))])
def test_unpack_reverses_pack(hashes: list[int]) -> None:
    assert len(pack_hashes(hashes)) == HASH_BYTES * len(hashes)
    assert list(unpack_hashes(pack_hashes(hashes))) == hashes
