"""Tests for the search for the fewest endpoints, with a fake instead of the simulation."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.units import ClassName, PoolName
from headgate.planning.cases import CaseResult, PlanCase
from headgate.planning.search import EndpointSearch, NoPlan, PlannedPool, one_fewer
from tests.planning.builders import FakeRuns, a_result

A, B = PoolName("a"), PoolName("b")
ONE = (PlannedPool(A, 1.0, 5),)
TWO = (PlannedPool(A, 1.0, 5), PlannedPool(B, 0.5, 9))
OBJECTIVES = {ClassName("interactive"): 0.95}


def a_search(runs: FakeRuns, pools: tuple[PlannedPool, ...] = ONE, *, seeds: int = 1) -> EndpointSearch:
    return EndpointSearch(runs, OBJECTIVES, pools, seeds=range(seeds), endpoints_max=50)


@given(needed=st.integers(1, 50), guess=st.integers(1, 80))
def test_search_finds_the_fewest_endpoints_from_any_guess(needed: int, guess: int) -> None:
    search = a_search(FakeRuns(lambda _: {A: needed}))

    assert search.fewest(1.0, guess=guess) == ((A, needed),)


@given(needed=st.integers(1, 25), other=st.integers(1, 25), floor=st.integers(1, 3))
def test_no_pool_can_be_reduced(needed: int, other: int, floor: int) -> None:
    runs = FakeRuns(lambda _: {A: needed, B: other})
    found = a_search(runs, TWO).fewest(1.0, at_least=((A, floor), (B, floor)))

    assert found == ((A, max(needed, floor)), (B, max(other, floor)))


def test_most_expensive_pool_is_reduced_first() -> None:
    def run(cases: Sequence[PlanCase]) -> list[CaseResult]:
        return [a_result({}, good=100 if sum(dict(each.endpoints).values()) >= 4 else 0) for each in cases]

    # The smallest fleet in proportion has three endpoints in pool a and two in b.
    assert EndpointSearch(run, OBJECTIVES, TWO, seeds=(0,)).fewest(1.0) == ((A, 3), (B, 1))


@given(each=st.lists(st.floats(0.1, 4), min_size=2, max_size=5, unique=True), per_endpoint=st.floats(0.1, 2))
def test_more_traffic_never_needs_fewer_endpoints(each: list[float], per_endpoint: float) -> None:
    """Without a lower bound from less traffic."""
    search = a_search(FakeRuns(lambda case: {A: math.ceil(case.traffic / per_endpoint)}))
    found = [dict(search.fewest(traffic))[A] for traffic in sorted(each)]

    assert found == sorted(found)


def test_every_seed_has_to_hold_the_objectives() -> None:
    search = a_search(FakeRuns(lambda case: {A: 3 + case.seed}), seeds=3)

    assert search.fewest(1.0) == ((A, 5),)


def test_cases_are_simulated_once() -> None:
    runs = FakeRuns(lambda _: {A: 7})
    search = a_search(runs, seeds=2)
    search.fewest(1.0)
    search.fewest(1.0, guess=7)

    assert len(runs.cases) == len(set(runs.cases)) == search.cases


def test_good_guess_saves_runs() -> None:
    runs = FakeRuns(lambda _: {A: 40})
    a_search(runs).fewest(1.0, guess=40)

    assert [each.endpoints for each in runs.cases] == [((A, 40),), ((A, 39),)]


def test_unattainable_objective_is_reported_with_its_numbers() -> None:
    search = a_search(FakeRuns(lambda _: {A: 1_000}))

    with pytest.raises(NoPlan) as caught:
        search.fewest(1.0)

    assert str(caught.value) == (
        "no plan: with 50 endpoints per pool, 90.0% of class interactive are good, but its objective is 95.0%; "
        "lower the objective, relax its callers' targets, or raise --endpoints-max"
    )


def test_queue_that_grows_in_the_largest_fleet_is_reported() -> None:
    def run(cases: Sequence[PlanCase]) -> list[CaseResult]:
        return [a_result({A: 1}, waiting=50) for _ in cases]

    with pytest.raises(NoPlan, match="with 4 endpoints per pool, more and more requests are waiting"):
        EndpointSearch(run, OBJECTIVES, ONE, seeds=(0,), endpoints_max=4).fewest(1.0)


def test_fleets_with_one_fewer_leave_out_pools_with_a_single_endpoint() -> None:
    assert list(one_fewer(((A, 3), (B, 1)))) == [(A, ((A, 2), (B, 1)))]


def test_results_keep_the_order_of_the_cases() -> None:
    search = a_search(FakeRuns(lambda _: {A: 2}))
    cases = [PlanCase(endpoints=((A, count),)) for count in (1, 2, 1)]

    assert [each.holds(OBJECTIVES) for each in search.results(cases)] == [False, True, False]
