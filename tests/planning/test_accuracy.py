"""Are the fifteen figures what their names say?"""

import pytest

from headgate.model.units import SECOND, Instant
from headgate.planning.accuracy import errors, figures, mean_error
from headgate.planning.answers import Answer, Demand

DEMANDS = [Demand(Instant(number * SECOND), 10, 11) for number in range(5)]
# To the first token 1, 2, 3, 4, 5 s; to the end twice that.
ANSWERS = [
    Answer(Instant((2 * number + 1) * SECOND), Instant((3 * number + 2) * SECOND)) for number in range(len(DEMANDS))
]


def test_times_are_told_as_mean_and_percentiles() -> None:
    found = figures(DEMANDS, ANSWERS)

    assert len(found) == 15
    assert found["ttft_mean"] == found["ttft_p50"] == 3
    assert found["ttft_p90"] == pytest.approx(4.6)
    assert found["tpot_p50"] == pytest.approx(0.3)
    assert found["e2e_p99"] == pytest.approx(9.92)


def test_a_single_token_has_no_time_per_further_token() -> None:
    found = figures([*DEMANDS, Demand(Instant(0), 10, 1)], [*ANSWERS, Answer(Instant(1), Instant(1))])

    assert found["tpot_mean"] == figures(DEMANDS, ANSWERS)["tpot_mean"]
    assert found["ttft_mean"] < 3


def test_an_error_is_relative_to_what_was_measured() -> None:
    found = errors({"ttft_mean": 2.0, "e2e_p99": 10.0}, {"ttft_mean": 1.9, "e2e_p99": 11.0})

    assert found == pytest.approx({"ttft_mean": -0.05, "e2e_p99": 0.1})
    assert mean_error(found) == pytest.approx(0.075)
