"""Who is believed of what will be asked, and with how much headroom?"""

import pytest

from headgate.core.autoscaling.forecast import (
    FIRST,
    FORECASTERS,
    HEADROOM_PERCENT_MAX,
    QUANTUM_PPM,
    DampedTrend,
    DayProfile,
    Errors,
    Forecast,
    Forecasts,
    LastValue,
    Peak,
)
from headgate.model.units import MINUTE, Duration, Instant
from testing.builders import at, lasting

PPM = 1_000_000
LEAD = lasting(130)
STEPS = 13


def stepped(forecasts: Forecasts, *values: int) -> Forecast:
    """What it says after so much was asked in one step after another."""
    forecast = Forecast(0, 0, "")
    for place, ppm in enumerate(values):
        forecast = forecasts.step(ppm, at(10 * place), steps=STEPS, ahead_ns=LEAD)
    return forecast


def test_the_last_value_goes_on() -> None:
    forecaster = LastValue()
    forecaster.observe(3, at(0))
    forecaster.observe(5, at(10))

    assert forecaster.ahead(STEPS, LEAD) == 5


def test_the_peak_is_the_most_of_the_last_two_minutes() -> None:
    forecaster = Peak()
    said = list[int]()
    for place, ppm in enumerate([9, 7, *[1] * 12]):
        forecaster.observe(ppm, at(10 * place))
        said.append(forecaster.ahead(STEPS, LEAD))

    assert said == [*[9] * 12, 7, 1]


def test_a_trend_goes_on_and_is_damped() -> None:
    forecaster = DampedTrend()
    for place in range(200):
        forecaster.observe(place * 10_000, at(10 * place))

    near, far = forecaster.ahead(STEPS, LEAD), forecaster.ahead(10 * STEPS, Duration(10 * LEAD))
    assert 1_990_000 + 7 * 10_000 < near < 1_990_000 + 13 * 10_000
    assert near < far < 1_990_000 + 26 * 10_000


def test_a_trend_never_falls_below_nothing() -> None:
    forecaster = DampedTrend()
    for place in range(20):
        forecaster.observe((19 - place) * 10_000, at(10 * place))

    assert forecaster.ahead(10 * STEPS, LEAD) == 0


def a_day(ppm_at_noon: int) -> DayProfile:
    """A day on which nothing is asked but from noon to one."""
    forecaster = DayProfile()
    for minute in range(1_440):
        forecaster.observe(ppm_at_noon if 720 <= minute < 780 else 0, Instant(minute * MINUTE))
    return forecaster


def test_what_came_at_noon_yesterday_is_expected_before_noon() -> None:
    forecaster = a_day(5 * PPM)
    forecaster.observe(0, Instant((1_440 + 715) * MINUTE))

    assert forecaster.ahead(1, Duration(10 * MINUTE)) == 5 * PPM
    assert forecaster.ahead(1, Duration(MINUTE)) == 0


def test_what_ended_at_one_is_expected_to_end_and_never_below_nothing() -> None:
    forecaster = a_day(5 * PPM)
    forecaster.observe(6 * PPM, Instant((1_440 + 775) * MINUTE))

    assert forecaster.ahead(1, Duration(10 * MINUTE)) == PPM
    forecaster.observe(PPM, Instant((1_440 + 775) * MINUTE))
    assert forecaster.ahead(1, Duration(10 * MINUTE)) == 0


def test_a_day_is_the_mean_of_the_days_that_were_seen() -> None:
    forecaster = DayProfile()
    for day, ppm in enumerate([2 * PPM, 4 * PPM]):
        for minute in range(1_440):
            forecaster.observe(ppm if minute >= 720 else 0, Instant((1_440 * day + minute) * MINUTE))
    forecaster.observe(0, Instant((2_880 + 700) * MINUTE))

    assert forecaster.ahead(1, Duration(40 * MINUTE)) == 3 * PPM


def test_where_the_day_is_not_known_it_goes_on() -> None:
    forecaster = DayProfile()
    forecaster.observe(7, at(0))
    assert forecaster.ahead(STEPS, LEAD) == 7

    for minute in range(10):
        forecaster.observe(8, at(60 * minute))
    assert forecaster.ahead(1, Duration(60 * MINUTE)) == 8


def test_before_anything_is_measured_headroom_is_a_fifth() -> None:
    assert Errors().headroom_percent == 20


def test_headroom_covers_nineteen_errors_in_twenty() -> None:
    errors = Errors()
    for _ in range(400):
        for percent in range(20):
            errors.add(PPM, PPM + percent * PPM // 100)

    assert errors.headroom_percent == pytest.approx(18, abs=1)


def test_headroom_vanishes_where_nothing_is_ever_lacking() -> None:
    errors = Errors()
    for _ in range(400):
        errors.add(2 * PPM, PPM)

    assert errors.headroom_percent == 0


def test_headroom_is_bounded() -> None:
    errors = Errors()
    for _ in range(400):
        errors.add(0, 40 * PPM)

    assert errors.headroom_percent == HEADROOM_PERCENT_MAX


def test_errors_of_long_ago_are_forgotten() -> None:
    errors = Errors()
    for _ in range(8_640):
        errors.add(PPM, 2 * PPM)
    for _ in range(3 * 8_640):
        errors.add(PPM, PPM + PPM // 10)

    assert errors.headroom_percent == 10


def test_a_forecast_is_rounded_and_says_who_made_it() -> None:
    assert stepped(Forecasts(), 1_234_567) == Forecast(1_235_000, 20, FIRST)
    assert QUANTUM_PPM == 1_000


def test_a_steady_rise_makes_the_trend_believed() -> None:
    forecasts = Forecasts()
    stepped(forecasts, *(place * 20_000 for place in range(600)))

    assert forecasts.by == "damped trend"


def test_a_rise_at_the_same_time_of_each_day_makes_the_profile_believed() -> None:
    forecasts = Forecasts()
    for step in range(3 * 8_640 + 4_400):
        ppm = 8 * PPM if step % 8_640 // 120 % 2 else PPM
        forecasts.step(ppm, Instant(step * 10 * 10**9), steps=STEPS, ahead_ns=LEAD)

    assert forecasts.by == "day profile"


def test_short_falls_that_are_made_up_for_make_the_peak_believed() -> None:
    forecasts = Forecasts()
    stepped(forecasts, *(PPM if place % 9 < 3 else 4 * PPM for place in range(1_000)))

    assert forecasts.by == "peak"
    assert forecasts.headroom_percent == 0


def test_where_all_are_right_nobody_else_is_believed() -> None:
    forecasts = Forecasts()
    stepped(forecasts, *[2 * PPM] * 700)

    assert (forecasts.by, forecasts.headroom_percent) == (FIRST, 0)
    assert FIRST in FORECASTERS


def test_after_losing_track_nothing_said_before_is_compared() -> None:
    lost, kept = Forecasts(), Forecasts()
    for place, ppm in enumerate([*[PPM] * 40, *[9 * PPM] * 30]):
        if place == 40:
            lost.lost_track()
        for each in (lost, kept):
            each.step(ppm, at(10 * place), steps=30, ahead_ns=lasting(300))

    assert lost.headroom_percent == 20
    assert kept.headroom_percent == HEADROOM_PERCENT_MAX


def test_a_lead_that_becomes_shorter_is_measured_at_once() -> None:
    forecasts = Forecasts()
    for place, ppm in enumerate([*[PPM] * 40, *[9 * PPM] * 30]):
        steps = 30 if place < 40 else 2
        forecasts.step(ppm, at(10 * place), steps=steps, ahead_ns=lasting(10 * steps))

    # At a lead of two steps only two forecasts are off, at thirty all would be.
    assert forecasts.headroom_percent == 20
