"""Least-squares search, including stepwise functions and parameters that have no effect."""

import pytest

from headgate.planning.least_squares import Point, minimize


def last(residuals, start: Point, trials_max: int = 300) -> Point:
    return list(minimize(residuals, start, trials_max=trials_max))[-1].point


def test_search_solves_a_linear_problem() -> None:
    found = last(lambda at: [at[0] + at[1] - 3, at[0] - at[1] + 1, 2 * at[0] - 2], (0.0, 0.0))

    assert found == pytest.approx((1.0, 2.0), abs=0.01)


def test_search_handles_a_stepwise_function() -> None:
    def residuals(at: Point) -> list[float]:
        return [round(20 * (at[0] * scale - 1.3 * scale)) / 20 for scale in (1, 2, 5)]

    assert last(residuals, (0.0,)) == pytest.approx((1.3,), abs=0.05)


def test_parameter_without_effect_stays_unchanged() -> None:
    assert last(lambda at: [at[0] - 1], (0.0, 7.0)) == pytest.approx((1.0, 7.0), abs=0.01)


def test_search_respects_the_trial_limit() -> None:
    tried: list[Point] = []

    def residuals(at: Point) -> list[float]:
        tried.append(at)
        return [at[0] - 100, at[1] + 100]

    found = list(minimize(residuals, (0.0, 0.0), trials_max=30))

    assert len(tried) == 29
    assert len(found) == 4
    assert found[-1].number <= 29
