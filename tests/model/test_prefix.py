"""Do the distances reach as far as they say?"""

from itertools import pairwise

import pytest

from headgate.model.prefix import DISTANCES, HASH_BYTES, HASHES_MAX, STEPS, pack, reach, unpack


def test_distances_grow_and_each_step_is_fine_beside_the_way_behind_it() -> None:
    assert len(DISTANCES) == HASHES_MAX == 64
    assert DISTANCES[0] == 256
    assert DISTANCES[-1] == 131_072
    assert list(STEPS[1:]) == [later - before for before, later in pairwise(DISTANCES)]
    assert all(9 * step <= distance for step, distance in zip(STEPS[10:], DISTANCES[9:], strict=False))


def test_so_many_hashes_reach_so_far() -> None:
    assert [reach(count) for count in (0, 1, 2, 3, 64)] == [0, 256, 512, 1_024, 131_072]


@pytest.mark.parametrize("hashes", [[], [1], [0, 2**64 - 1, 7], list(range(64))])
def test_what_is_packed_is_unpacked_again(hashes: list[int]) -> None:
    assert len(pack(hashes)) == HASH_BYTES * len(hashes)
    assert list(unpack(pack(hashes))) == hashes
