"""A month's cost forecast, and the accuracy of its error estimate."""

import random

import pytest

from headgate.ledger.reports.forecast import WEEKS_MAX, choose_method, forecast_month

DAY = 1_000_000_000_000


def synthetic(
    count: int, seed: int, *, weekend: float = 0.4, noise: float = 0.08, growth: float = 0.0, walk: float = 0.0
) -> list[int]:
    """Daily costs with quieter weekends, random noise, growth and a drifting level."""
    chance, level, made = random.Random(seed), 1.0, []
    for place in range(count):
        level *= (1 + growth) * (1 + chance.gauss(0, walk))
        usual = weekend if place % 7 in (5, 6) else 1.0
        made.append(max(0, int(DAY * level * usual * (1 + chance.gauss(0, noise)))))
    return made


def test_forecast_extrapolates_constant_days() -> None:
    seen = forecast_month([DAY] * 10, so_far=10 * DAY, today=0, today_left=1.0, ahead=19)

    assert (seen.expected, seen.low, seen.high) == (30 * DAY, 30 * DAY, 30 * DAY)
    assert (seen.method, seen.error) == ("mean", 0.0)


def test_forecast_adds_only_the_rest_of_today() -> None:
    seen = forecast_month([DAY] * 10, so_far=10 * DAY + DAY // 4, today=DAY // 4, today_left=0.75, ahead=0)

    assert seen.expected == 11 * DAY


def test_weekday_method_requires_two_weeks() -> None:
    days = synthetic(28, seed=1, noise=0.0)
    assert forecast_month(days[:13], so_far=0, today=0, today_left=1.0, ahead=5).method == "mean"
    seen = forecast_month(days[:14], so_far=0, today=0, today_left=1.0, ahead=4)
    assert seen.method == "weekday"
    assert seen.expected == pytest.approx(sum(days[14:19]), rel=1e-9)
    assert seen.expected != pytest.approx(5 * sum(days[7:14]) / 7, rel=0.1)


def test_more_accurate_method_is_selected() -> None:
    assert choose_method(synthetic(35, seed=2), 5)[0] == "weekday"
    assert choose_method(synthetic(35, seed=3, weekend=1.0, noise=0.5), 5)[0] in ("mean", "weekday")
    # A single odd week must not be learned as a weekday pattern.
    odd = [DAY, 9 * DAY, DAY, DAY, DAY, DAY, DAY] + [DAY] * 21
    assert choose_method(odd, 5)[0] == "mean"


def test_days_before_the_first_cost_are_ignored() -> None:
    days = [0] * 25 + [DAY] * 8
    seen = forecast_month(days, so_far=8 * DAY, today=0, today_left=1.0, ahead=9)

    assert seen.expected == 18 * DAY


def test_first_day_is_extrapolated_with_a_wide_interval() -> None:
    seen = forecast_month([0, 0], so_far=DAY // 2, today=DAY // 2, today_left=0.5, ahead=9)

    assert seen.expected == 10 * DAY
    assert (seen.low, seen.error) == (DAY // 2, None)
    assert seen.high > 15 * DAY
    assert forecast_month([], so_far=0, today=0, today_left=1.0, ahead=9).expected == 0


@pytest.mark.parametrize(
    ("shape", "error_max"),
    [
        ({}, 0.05),
        ({"noise": 0.3}, 0.12),
        ({"growth": 0.01}, 0.16),
        ({"walk": 0.05}, 0.20),
        ({"weekend": 1.0}, 0.05),
    ],
    ids=["weekly pattern", "noisy", "growing", "drifting", "flat"],
)
def test_forecast_for_synthetic_days_is_accurate(shape: dict[str, float], error_max: float) -> None:
    """Forecast two weeks from the last five and check the mean error and the coverage of the interval."""
    errors, within, runs = [], 0, 200
    for seed in range(runs):
        days = synthetic(WEEKS_MAX * 7 + 14, seed, **shape)
        past, truth = days[:-14], sum(days[-14:])
        seen = forecast_month(past, so_far=0, today=0, today_left=1.0, ahead=13)
        errors.append(abs(seen.expected - truth) / truth)
        within += seen.low <= truth <= seen.high
    error = sum(errors) / runs
    print(f"{shape}: error {100 * error:.1f} %, {100 * within / runs:.0f} % within the 80 % interval")

    assert error < error_max
    assert within / runs > 0.55


def test_selected_method_is_accurate_with_and_without_a_weekly_pattern() -> None:
    """The weekday factor halves the error if there is a weekly pattern and adds little error if there is none."""

    def error_of(shape: dict[str, float], known: int) -> float:
        errors = []
        for seed in range(100):
            days = synthetic(WEEKS_MAX * 7 + 10, seed, **shape)
            # With fewer than 14 days only the mean is available.
            past, truth = days[35 - known : 35], sum(days[35:45])
            errors.append(
                abs(forecast_month(past, so_far=0, today=0, today_left=1.0, ahead=9).expected - truth) / truth
            )
        return sum(errors) / len(errors)

    assert error_of({}, 35) < 0.5 * error_of({}, 13)
    assert error_of({"weekend": 1.0}, 35) < 1.3 * error_of({"weekend": 1.0}, 13)
