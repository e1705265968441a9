"""Does the autoscaler of Kubernetes arrive at what is wanted?

It is played here as its documentation describes it for an external metric with an average value: the figure over the
target and the present number is a ratio; within the tolerance of 1 nothing changes; otherwise as many are wanted as the
figure over the target says, rounded up.
"""

from math import ceil

import pytest

from headgate.fleets.keda.tolerance import figure

TARGET = 1.0
ENDPOINTS = [1, 2, 9, 10, 11, 19, 20, 21, 30, 55, 100, 130]


def kubernetes(told: int, present: int, tolerance: float = 0.1) -> int:
    ratio = told / (TARGET * present)
    return present if abs(ratio - 1.0) <= tolerance else ceil(told / TARGET)


def after(wanted: int, present: int, *, rounds: int = 5, tolerance_percent: int = 10) -> list[int]:
    """How many there are after each round of asking and scaling."""
    found = []
    for _ in range(rounds):
        told = figure(wanted, present=present, tolerance_percent=tolerance_percent)
        present = kubernetes(told, present, tolerance_percent / 100)
        found.append(present)
    return found


def test_told_the_bare_number_kubernetes_overlooks_one_more_than_twenty() -> None:
    assert kubernetes(21, present=20) == 20


@pytest.mark.parametrize("present", ENDPOINTS)
def test_more_endpoints_come_at_once_and_never_too_few(present: int) -> None:
    for wanted in range(present + 1, 200):
        found = after(wanted, present)

        assert found[0] >= wanted
        assert set(found) == {found[0]}, "it goes to and fro"


@pytest.mark.parametrize("present", ENDPOINTS)
def test_at_most_a_tenth_and_one_too_many_come(present: int) -> None:
    assert all(after(wanted, present)[0] - wanted <= present // 10 for wanted in range(present + 1, 200))


@pytest.mark.parametrize("present", range(1, 10))
def test_below_ten_endpoints_exactly_those_come_that_are_wanted(present: int) -> None:
    assert all(after(wanted, present)[0] == wanted for wanted in range(present + 1, 200))


@pytest.mark.parametrize("present", ENDPOINTS)
def test_fewer_endpoints_are_never_fewer_than_wanted_nor_a_tenth_more(present: int) -> None:
    for wanted in range(1, present):
        found = after(wanted, present)

        assert set(found) == {found[0]}
        assert wanted <= found[0]
        assert wanted >= found[0] * 0.9 - 1e-9


@pytest.mark.parametrize("present", ENDPOINTS)
def test_without_a_tolerance_exactly_those_come_that_are_wanted(present: int) -> None:
    assert all(after(wanted, present, tolerance_percent=0)[0] == wanted for wanted in range(1, 200))


def test_where_nobody_knows_how_many_there_are_the_bare_number_is_told() -> None:
    assert [figure(wanted, present=0) for wanted in (0, 1, 30)] == [0, 1, 30]
