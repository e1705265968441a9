"""Are a simulated gateway's hashes as alike as the beginnings of prompts are in their trace?"""

import pytest

from headgate.model.prefix import DISTANCES, unpack
from headgate.model.units import ClassName, Instant, TenantId
from headgate.simulation.workload.arrival import Arrival
from headgate.simulation.workload.hashes import packed_hashes


def hashes(prompt_tokens: int, *names: int) -> tuple[int, ...]:
    arrival = Arrival(Instant(0), prompt_tokens, 1, ClassName("c"), TenantId("t"), names)
    return unpack(packed_hashes(arrival))


@pytest.mark.parametrize(("tokens", "count"), [(255, 0), (256, 1), (512, 2), (1_023, 2), (1_024, 3), (20_000, 36)])
def test_there_is_a_hash_for_each_distance_that_the_prompt_reaches(tokens: int, count: int) -> None:
    found = hashes(tokens, *range(-(-tokens // 512)))

    assert len(found) == len(set(found)) == count == sum(distance <= tokens for distance in DISTANCES)


def test_hashes_are_alike_as_far_as_the_names_are() -> None:
    one, other = hashes(5_000, *range(10)), hashes(5_000, 0, 1, 2, *range(100, 107))

    assert [mine == theirs for mine, theirs in zip(one, other, strict=True)] == [True] * 4 + [False] * 6


def test_a_prompt_without_names_has_no_hash() -> None:
    assert hashes(5_000) == ()
