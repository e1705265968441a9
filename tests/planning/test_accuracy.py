"""A run's latency figures and the errors between two runs."""

import pytest

from headgate.model.units import SECOND, Instant
from headgate.planning.accuracy import latency_stats, mean_error, relative_errors
from headgate.planning.engine_replay import RunRequest, TokenTimes

DEMANDS = [RunRequest(Instant(number * SECOND), 10, 11) for number in range(5)]
# Times to first token are 1, 2, 3, 4 and 5 s. End-to-end times are twice as long.
ANSWERS = [
    TokenTimes(Instant((2 * number + 1) * SECOND), Instant((3 * number + 2) * SECOND)) for number in range(len(DEMANDS))
]


def test_figures_are_means_and_percentiles() -> None:
    found = latency_stats(DEMANDS, ANSWERS)

    assert len(found) == 15
    assert found["ttft_mean"] == found["ttft_p50"] == 3
    assert found["ttft_p90"] == pytest.approx(4.6)
    assert found["tpot_p50"] == pytest.approx(0.3)
    assert found["e2e_p99"] == pytest.approx(9.92)


def test_single_token_response_has_no_time_per_output_token() -> None:
    found = latency_stats([*DEMANDS, RunRequest(Instant(0), 10, 1)], [*ANSWERS, TokenTimes(Instant(1), Instant(1))])

    assert found["tpot_mean"] == latency_stats(DEMANDS, ANSWERS)["tpot_mean"]
    assert found["ttft_mean"] < 3


def test_error_is_relative_to_the_measured_value() -> None:
    found = relative_errors({"ttft_mean": 2.0, "e2e_p99": 10.0}, {"ttft_mean": 1.9, "e2e_p99": 11.0})

    assert found == pytest.approx({"ttft_mean": -0.05, "e2e_p99": 0.1})
    assert mean_error(found) == pytest.approx(0.075)
