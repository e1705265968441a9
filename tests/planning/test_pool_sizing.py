"""Tests for the sizes of several pools, with a fake instead of the simulation."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.units import ClassName, PoolName
from headgate.planning.cases import CaseResult, ClassResult, Endpoints
from headgate.planning.pool_sizing import PRECISION, size_pools
from headgate.planning.search import NoPlan
from tests.planning.builders import a_result

A, B = PoolName("a"), PoolName("b")
CHAT, CODE = ClassName("chat"), ClassName("code")
CLASSES = {A: [CHAT], B: [CODE]}
OBJECTIVES = {CHAT: 0.99, CODE: 0.95}


class FakeFleet:
    def __init__(self, needed: dict[PoolName, int]) -> None:
        self.needed = needed
        self.rounds = 0

    def __call__(self, endpoints: Endpoints) -> list[CaseResult]:
        self.rounds += 1
        good = {pool: 100 if count >= self.needed[pool] else 50 for pool, count in endpoints}
        classes = {name: ClassResult(100, good[pool], 0) for pool, [name] in CLASSES.items()}
        return [replace(a_result(dict(endpoints)), classes=classes)]


@given(a=st.integers(1, 400), b=st.integers(1, 400), guess=st.integers(1, 400))
def test_pools_are_sized_with_relative_precision_from_any_guess(a: int, b: int, guess: int) -> None:
    fleet = FakeFleet({A: a, B: b})
    found = dict(size_pools(fleet, CLASSES, OBJECTIVES, guess={A: guess}, endpoints_max=1_000))

    for pool, needed in fleet.needed.items():
        assert needed <= found[pool] <= needed + max(0, int(PRECISION * found[pool]) - 1)


def test_good_guess_takes_few_rounds() -> None:
    fleet = FakeFleet({A: 10, B: 20})
    found = size_pools(fleet, CLASSES, OBJECTIVES, guess={A: 10, B: 21}, endpoints_max=1_000)

    assert found == ((A, 10), (B, 20))
    assert fleet.rounds <= 6


def test_pool_that_misses_its_objectives_at_any_size_is_reported() -> None:
    with pytest.raises(NoPlan, match="30 endpoints in b miss an objective"):
        size_pools(FakeFleet({A: 3, B: 31}), CLASSES, OBJECTIVES, guess={}, endpoints_max=30)
