"""Tests for the sizes of several pools, with a fake instead of the simulation."""

from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.units import ClassName, PoolName
from headgate.planning.cases import CaseResult, ClassResult, Endpoints
from headgate.planning.pool_sizing import PRECISION, size_pools
from headgate.planning.search import NoPlan, one_fewer
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
    with pytest.raises(
        NoPlan, match="30 endpoints per pool, class code on b misses its objective; raise --endpoints-max"
    ):
        size_pools(FakeFleet({A: 3, B: 31}), CLASSES, OBJECTIVES, guess={}, endpoints_max=30)


class SharedFleet:
    """Class chat may use both pools, and needs a capacity. Class code needs endpoints in pool a."""

    classes: Final = {A: [CHAT, CODE], B: [CHAT]}

    def __init__(self, *, chat: int, code: int, b_weight: int = 1) -> None:
        self.chat, self.code, self.b_weight = chat, code, b_weight

    def holds(self, endpoints: Endpoints) -> dict[ClassName, bool]:
        counts = dict(endpoints)
        return {CHAT: counts[A] + self.b_weight * counts[B] >= self.chat, CODE: counts[A] >= self.code}

    def __call__(self, endpoints: Endpoints) -> list[CaseResult]:
        classes = {name: ClassResult(100, 100 if good else 50, 0) for name, good in self.holds(endpoints).items()}
        return [replace(a_result(dict(endpoints)), classes=classes)]


@given(
    chat=st.integers(1, 40),
    code=st.integers(1, 15),
    b_weight=st.integers(1, 3),
    a=st.integers(1, 20),
    b=st.integers(1, 20),
)
def test_pools_that_share_a_class_cannot_be_reduced(chat: int, code: int, b_weight: int, a: int, b: int) -> None:
    fleet = SharedFleet(chat=chat, code=code, b_weight=b_weight)
    found = size_pools(fleet, fleet.classes, OBJECTIVES, guess={A: a, B: b}, endpoints_max=50)

    assert all(fleet.holds(found).values())
    assert max(count for _, count in found) < 40
    for _, smaller in one_fewer(found):
        assert not all(fleet.holds(smaller).values())


def test_pool_at_its_maximum_does_not_stop_the_growth_of_another() -> None:
    fleet = SharedFleet(chat=20, code=1, b_weight=3)
    found = size_pools(fleet, fleet.classes, OBJECTIVES, guess={A: 6, B: 1}, endpoints_max=6)

    assert all(fleet.holds(found).values())


def test_class_whose_pools_are_all_at_their_maximum_is_reported() -> None:
    fleet = SharedFleet(chat=13, code=1)

    with pytest.raises(NoPlan, match="6 endpoints per pool, class chat on a and b misses its objective"):
        size_pools(fleet, fleet.classes, OBJECTIVES, guess={}, endpoints_max=6)
