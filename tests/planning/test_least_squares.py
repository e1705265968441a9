"""Is the least sum of squares found, also where the function jumps or does not care?"""

import pytest

from headgate.planning.least_squares import Point, rounds


def last(residuals, start: Point, trials_max: int = 300) -> Point:
    return list(rounds(residuals, start, trials_max=trials_max))[-1].point


def test_a_linear_problem_is_solved() -> None:
    found = last(lambda at: [at[0] + at[1] - 3, at[0] - at[1] + 1, 2 * at[0] - 2], (0.0, 0.0))

    assert found == pytest.approx((1.0, 2.0), abs=0.01)


def test_steps_in_the_function_do_not_stop_the_search() -> None:
    def residuals(at: Point) -> list[float]:
        return [round(20 * (at[0] * scale - 1.3 * scale)) / 20 for scale in (1, 2, 5)]

    assert last(residuals, (0.0,)) == pytest.approx((1.3,), abs=0.05)


def test_a_parameter_that_nothing_depends_on_stays_where_it_is() -> None:
    assert last(lambda at: [at[0] - 1], (0.0, 7.0)) == pytest.approx((1.0, 7.0), abs=0.01)


def test_the_search_keeps_within_its_trials() -> None:
    tried: list[Point] = []

    def residuals(at: Point) -> list[float]:
        tried.append(at)
        return [at[0] - 100, at[1] + 100]

    found = list(rounds(residuals, (0.0, 0.0), trials_max=30))

    assert len(tried) == 29
    assert len(found) == 4
    assert found[-1].number <= 29
