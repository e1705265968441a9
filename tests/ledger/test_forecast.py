"""Is a month's cost foreseen from its days, and is the error that is told the error that is made?"""

import random

import pytest

from headgate.ledger.reports.forecast import WEEKS_MAX, chosen, outlook

DAY = 1_000_000_000_000


def synthetic(
    count: int, seed: int, *, weekend: float = 0.4, noise: float = 0.08, growth: float = 0.0, walk: float = 0.0
) -> list[int]:
    """Days with a quieter weekend, chance, growth and a level that wanders."""
    chance, level, made = random.Random(seed), 1.0, []
    for place in range(count):
        level *= (1 + growth) * (1 + chance.gauss(0, walk))
        usual = weekend if place % 7 in (5, 6) else 1.0
        made.append(max(0, int(DAY * level * usual * (1 + chance.gauss(0, noise)))))
    return made


def test_days_that_are_all_alike_go_on_so() -> None:
    seen = outlook([DAY] * 10, so_far=10 * DAY, today=0, today_left=1.0, ahead=19)

    assert (seen.expected, seen.low, seen.high) == (30 * DAY, 30 * DAY, 30 * DAY)
    assert (seen.method, seen.error) == ("mean", 0.0)


def test_what_is_left_of_today_is_all_that_is_added_of_it() -> None:
    seen = outlook([DAY] * 10, so_far=10 * DAY + DAY // 4, today=DAY // 4, today_left=0.75, ahead=0)

    assert seen.expected == 11 * DAY


def test_two_weeks_tell_the_days_of_a_week_apart_and_fewer_do_not() -> None:
    days = synthetic(28, seed=1, noise=0.0)
    assert outlook(days[:13], so_far=0, today=0, today_left=1.0, ahead=5).method == "mean"
    seen = outlook(days[:14], so_far=0, today=0, today_left=1.0, ahead=4)
    assert seen.method == "weekday"
    assert seen.expected == pytest.approx(sum(days[14:19]), rel=1e-9)
    assert seen.expected != pytest.approx(5 * sum(days[7:14]) / 7, rel=0.1)


def test_the_method_that_was_nearer_is_used() -> None:
    assert chosen(synthetic(35, seed=2), 5)[0] == "weekday"
    assert chosen(synthetic(35, seed=3, weekend=1.0, noise=0.5), 5)[0] in ("mean", "weekday")
    # Days of no pattern at all but one odd week: a pattern learned from it would be wrong.
    odd = [DAY, 9 * DAY, DAY, DAY, DAY, DAY, DAY] + [DAY] * 21
    assert chosen(odd, 5)[0] == "mean"


def test_what_began_late_is_not_thought_to_have_been_nothing_before() -> None:
    days = [0] * 25 + [DAY] * 8
    seen = outlook(days, so_far=8 * DAY, today=0, today_left=1.0, ahead=9)

    assert seen.expected == 18 * DAY


def test_a_first_day_is_continued_as_it_began_and_says_that_it_knows_little() -> None:
    seen = outlook([0, 0], so_far=DAY // 2, today=DAY // 2, today_left=0.5, ahead=9)

    assert seen.expected == 10 * DAY
    assert (seen.low, seen.error) == (DAY // 2, None)
    assert seen.high > 15 * DAY
    assert outlook([], so_far=0, today=0, today_left=1.0, ahead=9).expected == 0


@pytest.mark.parametrize(
    ("shape", "error_max"),
    [
        ({}, 0.05),
        ({"noise": 0.3}, 0.12),
        ({"growth": 0.01}, 0.16),
        ({"walk": 0.05}, 0.20),
        ({"weekend": 1.0}, 0.05),
    ],
    ids=["weeks", "noisy", "growing", "wandering", "flat"],
)
def test_months_that_are_known_are_foreseen(shape: dict[str, float], error_max: float) -> None:
    """Two weeks ahead, from five weeks behind: the error on the mean, and how often the interval held the truth."""
    errors, within, runs = [], 0, 200
    for seed in range(runs):
        days = synthetic(WEEKS_MAX * 7 + 14, seed, **shape)
        past, truth = days[:-14], sum(days[-14:])
        seen = outlook(past, so_far=0, today=0, today_left=1.0, ahead=13)
        errors.append(abs(seen.expected - truth) / truth)
        within += seen.low <= truth <= seen.high
    error = sum(errors) / runs
    print(f"{shape}: error {100 * error:.1f} %, {100 * within / runs:.0f} % within the interval of 80 %")

    assert error < error_max
    assert within / runs > 0.55


def test_the_choice_is_no_worse_than_either_method() -> None:
    """On days with weeks the pattern halves the error; on days without any it costs little."""

    def error_of(shape: dict[str, float], known: int) -> float:
        errors = []
        for seed in range(100):
            days = synthetic(WEEKS_MAX * 7 + 10, seed, **shape)
            # Fewer than 14 days leave the mean alone.
            past, truth = days[35 - known : 35], sum(days[35:45])
            errors.append(abs(outlook(past, so_far=0, today=0, today_left=1.0, ahead=9).expected - truth) / truth)
        return sum(errors) / len(errors)

    assert error_of({}, 35) < 0.5 * error_of({}, 13)
    assert error_of({"weekend": 1.0}, 35) < 1.3 * error_of({"weekend": 1.0}, 13)
