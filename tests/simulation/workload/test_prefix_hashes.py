"""Tests that simulated requests' prefix hashes match exactly as far as the prefixes in their trace do."""

import pytest

from headgate.model.prefix import PREFIX_LENGTHS, unpack_hashes
from headgate.model.units import ClassName, Instant, TenantId
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.prefix_hashes import packed_prefix_hashes


def hashes(prompt_tokens: int, *names: int) -> tuple[int, ...]:
    arrival = Arrival(Instant(0), prompt_tokens, 1, ClassName("c"), TenantId("t"), names)
    return unpack_hashes(packed_prefix_hashes(arrival))


@pytest.mark.parametrize(("tokens", "count"), [(255, 0), (256, 1), (512, 2), (1_023, 2), (1_024, 3), (20_000, 36)])
def test_prompt_has_one_hash_per_distance_it_reaches(tokens: int, count: int) -> None:
    found = hashes(tokens, *range(-(-tokens // 512)))

    assert len(found) == len(set(found)) == count == sum(distance <= tokens for distance in PREFIX_LENGTHS)


def test_hashes_are_equal_up_to_the_first_different_block() -> None:
    one, other = hashes(5_000, *range(10)), hashes(5_000, 0, 1, 2, *range(100, 107))

    assert [mine == theirs for mine, theirs in zip(one, other, strict=True)] == [True] * 4 + [False] * 6


def test_prompt_without_block_names_has_no_hashes() -> None:
    assert hashes(5_000) == ()
