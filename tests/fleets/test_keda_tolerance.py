"""The Kubernetes autoscaler reaches the desired number of endpoints.

The tests model the autoscaler as documented for an external metric with an average value. The ratio is the metric
divided by the product of the target and the current number. If the ratio differs from 1 by no more than the tolerance,
nothing changes. Otherwise the new number is the metric divided by the target, rounded up.
"""

from math import ceil

import pytest

from headgate.fleets.keda.tolerance import metric_value

TARGET = 1.0
ENDPOINTS = [1, 2, 9, 10, 11, 19, 20, 21, 30, 55, 100, 130]


def kubernetes(told: int, present: int, tolerance: float = 0.1) -> int:
    ratio = told / (TARGET * present)
    return present if abs(ratio - 1.0) <= tolerance else ceil(told / TARGET)


def after(wanted: int, present: int, *, rounds: int = 5, tolerance_percent: int = 10) -> list[int]:
    """Return the number of endpoints after each scaling round."""
    found = []
    for _ in range(rounds):
        told = metric_value(wanted, current=present, tolerance_percent=tolerance_percent)
        present = kubernetes(told, present, tolerance_percent / 100)
        found.append(present)
    return found


def test_unadjusted_metric_is_within_the_autoscaler_tolerance() -> None:
    assert kubernetes(21, present=20) == 20


@pytest.mark.parametrize("present", ENDPOINTS)
def test_scale_up_takes_one_round_to_reach_the_desired_number(present: int) -> None:
    for wanted in range(present + 1, 200):
        found = after(wanted, present)

        assert found[0] >= wanted
        assert set(found) == {found[0]}, "the number of endpoints oscillates"


@pytest.mark.parametrize("present", ENDPOINTS)
def test_scale_up_exceeds_the_desired_number_by_at_most_a_tenth(present: int) -> None:
    assert all(after(wanted, present)[0] - wanted <= present // 10 for wanted in range(present + 1, 200))


@pytest.mark.parametrize("present", range(1, 10))
def test_scale_up_is_exact_below_ten_endpoints(present: int) -> None:
    assert all(after(wanted, present)[0] == wanted for wanted in range(present + 1, 200))


@pytest.mark.parametrize("present", ENDPOINTS)
def test_scale_down_ends_within_a_tenth_above_the_desired_number(present: int) -> None:
    for wanted in range(1, present):
        found = after(wanted, present)

        assert set(found) == {found[0]}
        assert wanted <= found[0]
        assert wanted >= found[0] * 0.9 - 1e-9


@pytest.mark.parametrize("present", ENDPOINTS)
def test_scaling_is_exact_without_a_tolerance(present: int) -> None:
    assert all(after(wanted, present, tolerance_percent=0)[0] == wanted for wanted in range(1, 200))


def test_metric_is_the_desired_number_if_the_current_number_is_unknown() -> None:
    assert [metric_value(wanted, current=0) for wanted in (0, 1, 30)] == [0, 1, 30]
