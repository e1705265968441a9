"""Tests for the autoscaler's recent history: measurements, desired counts and released endpoints."""

from headgate.core.autoscaling.scaling_history import RecentValues, ScaleDownHistory, SlidingMax
from headgate.model.units import MINUTE
from testing.builders import at, duration


def test_percentile_covers_only_recent_values() -> None:
    lately = RecentValues(20)
    assert lately.p95(default=7) == 7

    for measured in (1_000, *range(20)):
        lately.add(measured)
    assert lately.p95() == 18


def test_maximum_desired_count_covers_the_window_and_at_least_the_last_value() -> None:
    greatest = SlidingMax()
    for second, want in enumerate([5, 3, 4, 1]):
        greatest.add(want, at(second))

    assert [greatest.since(at(second)) for second in (0, 1, 3, 9)] == [5, 4, 1, 1]


def test_mean_time_away_is_one_hour_without_returns() -> None:
    assert ScaleDownHistory().mean_absence_ns(at(0)) == 60 * MINUTE


def test_mean_time_away_is_measured_from_release_to_return() -> None:
    absences = ScaleDownHistory()
    absences.scaled_down(before=5, after=4, now=at(0))
    absences.scaled_down(before=4, after=2, now=at(10))
    absences.scaled_up(3, now=at(20))
    assert absences.mean_absence_ns(at(20)) == duration(10)

    absences.scaled_up(9, now=at(40))
    assert absences.mean_absence_ns(at(40)) == (duration(10) + duration(30) + duration(40)) // 3


def test_endpoints_never_released_are_not_counted_as_returned() -> None:
    absences = ScaleDownHistory()
    absences.scaled_up(3, now=at(20))

    assert absences.mean_absence_ns(at(20)) == 60 * MINUTE


def test_returned_endpoint_is_forgotten_after_an_hour() -> None:
    absences = ScaleDownHistory()
    absences.scaled_down(before=2, after=1, now=at(0))
    absences.scaled_up(2, now=at(10))

    assert absences.mean_absence_ns(at(3_609)) == duration(10)
    assert absences.mean_absence_ns(at(3_610)) == 60 * MINUTE
