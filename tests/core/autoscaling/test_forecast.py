"""Tests for the demand forecasters, their selection and their headroom."""

import pytest

from headgate.core.autoscaling.forecast import (
    DEFAULT_FORECASTER,
    FORECASTERS,
    HEADROOM_PERCENT_MAX,
    QUANTUM_PPM,
    DampedTrend,
    DayProfile,
    DemandForecast,
    ForecastErrors,
    ForecasterSet,
    LastValue,
    RecentPeak,
)
from headgate.model.units import MINUTE, Duration, Instant
from testing.builders import at, duration

PPM = 1_000_000
LEAD = duration(130)
STEPS = 13


def stepped(forecasts: ForecasterSet, *values: int) -> DemandForecast:
    """Returns the forecast after one step for each demand value."""
    forecast = DemandForecast(0, 0, "")
    for place, ppm in enumerate(values):
        forecast = forecasts.step(ppm, at(10 * place), steps=STEPS, ahead_ns=LEAD)
    return forecast


def test_last_value_forecast_repeats_the_latest_demand() -> None:
    forecaster = LastValue()
    forecaster.observe(3, at(0))
    forecaster.observe(5, at(10))

    assert forecaster.predict(STEPS, LEAD) == 5


def test_peak_forecast_is_the_maximum_of_the_last_two_minutes() -> None:
    forecaster = RecentPeak()
    said = list[int]()
    for place, ppm in enumerate([9, 7, *[1] * 12]):
        forecaster.observe(ppm, at(10 * place))
        said.append(forecaster.predict(STEPS, LEAD))

    assert said == [*[9] * 12, 7, 1]


def test_trend_forecast_extrapolates_and_is_damped() -> None:
    forecaster = DampedTrend()
    for place in range(200):
        forecaster.observe(place * 10_000, at(10 * place))

    near, far = forecaster.predict(STEPS, LEAD), forecaster.predict(10 * STEPS, Duration(10 * LEAD))
    assert 1_990_000 + 7 * 10_000 < near < 1_990_000 + 13 * 10_000
    assert near < far < 1_990_000 + 26 * 10_000


def test_trend_forecast_is_never_negative() -> None:
    forecaster = DampedTrend()
    for place in range(20):
        forecaster.observe((19 - place) * 10_000, at(10 * place))

    assert forecaster.predict(10 * STEPS, LEAD) == 0


def a_day(ppm_at_noon: int) -> DayProfile:
    """Returns the profile of a day with demand only from 12:00 to 13:00."""
    forecaster = DayProfile()
    for minute in range(1_440):
        forecaster.observe(ppm_at_noon if 720 <= minute < 780 else 0, Instant(minute * MINUTE))
    return forecaster


def test_day_profile_predicts_the_peak_of_the_previous_day() -> None:
    forecaster = a_day(5 * PPM)
    forecaster.observe(0, Instant((1_440 + 715) * MINUTE))

    assert forecaster.predict(1, Duration(10 * MINUTE)) == 5 * PPM
    assert forecaster.predict(1, Duration(MINUTE)) == 0


def test_day_profile_predicts_the_end_of_the_peak_and_is_never_negative() -> None:
    forecaster = a_day(5 * PPM)
    forecaster.observe(6 * PPM, Instant((1_440 + 775) * MINUTE))

    assert forecaster.predict(1, Duration(10 * MINUTE)) == PPM
    forecaster.observe(PPM, Instant((1_440 + 775) * MINUTE))
    assert forecaster.predict(1, Duration(10 * MINUTE)) == 0


def test_day_profile_is_the_mean_of_previous_days() -> None:
    forecaster = DayProfile()
    for day, ppm in enumerate([2 * PPM, 4 * PPM]):
        for minute in range(1_440):
            forecaster.observe(ppm if minute >= 720 else 0, Instant((1_440 * day + minute) * MINUTE))
    forecaster.observe(0, Instant((2_880 + 700) * MINUTE))

    assert forecaster.predict(1, Duration(40 * MINUTE)) == 3 * PPM


def test_day_profile_without_history_repeats_the_latest_demand() -> None:
    forecaster = DayProfile()
    forecaster.observe(7, at(0))
    assert forecaster.predict(STEPS, LEAD) == 7

    for minute in range(10):
        forecaster.observe(8, at(60 * minute))
    assert forecaster.predict(1, Duration(60 * MINUTE)) == 8


def test_headroom_is_20_percent_before_the_first_measurement() -> None:
    assert ForecastErrors().headroom_percent == 20


def test_headroom_covers_95_percent_of_errors() -> None:
    errors = ForecastErrors()
    for _ in range(400):
        for percent in range(20):
            errors.add(PPM, PPM + percent * PPM // 100)

    assert errors.headroom_percent == pytest.approx(18, abs=1)


def test_headroom_is_zero_if_forecasts_are_never_too_low() -> None:
    errors = ForecastErrors()
    for _ in range(400):
        errors.add(2 * PPM, PPM)

    assert errors.headroom_percent == 0


def test_headroom_is_bounded() -> None:
    errors = ForecastErrors()
    for _ in range(400):
        errors.add(0, 40 * PPM)

    assert errors.headroom_percent == HEADROOM_PERCENT_MAX


def test_old_forecast_errors_are_forgotten() -> None:
    errors = ForecastErrors()
    for _ in range(8_640):
        errors.add(PPM, 2 * PPM)
    for _ in range(3 * 8_640):
        errors.add(PPM, PPM + PPM // 10)

    assert errors.headroom_percent == 10


def test_forecast_is_rounded_and_includes_the_name_of_its_forecaster() -> None:
    assert stepped(ForecasterSet(), 1_234_567) == DemandForecast(1_235_000, 20, DEFAULT_FORECASTER)
    assert QUANTUM_PPM == 1_000


def test_steady_rise_selects_the_trend_forecaster() -> None:
    forecasts = ForecasterSet()
    stepped(forecasts, *(place * 20_000 for place in range(600)))

    assert forecasts.forecaster == "damped trend"


def test_daily_repeated_rise_selects_the_day_profile() -> None:
    forecasts = ForecasterSet()
    for step in range(3 * 8_640 + 4_400):
        ppm = 8 * PPM if step % 8_640 // 120 % 2 else PPM
        forecasts.step(ppm, Instant(step * 10 * 10**9), steps=STEPS, ahead_ns=LEAD)

    assert forecasts.forecaster == "day profile"


def test_short_dips_select_the_peak_forecaster() -> None:
    forecasts = ForecasterSet()
    stepped(forecasts, *(PPM if place % 9 < 3 else 4 * PPM for place in range(1_000)))

    assert forecasts.forecaster == "peak"
    assert forecasts.headroom_percent == 0


def test_first_forecaster_stays_selected_if_all_are_accurate() -> None:
    forecasts = ForecasterSet()
    stepped(forecasts, *[2 * PPM] * 700)

    assert (forecasts.forecaster, forecasts.headroom_percent) == (DEFAULT_FORECASTER, 0)
    assert DEFAULT_FORECASTER in FORECASTERS


def test_forecasts_before_a_gap_are_not_evaluated() -> None:
    lost, kept = ForecasterSet(), ForecasterSet()
    for place, ppm in enumerate([*[PPM] * 40, *[9 * PPM] * 30]):
        if place == 40:
            lost.clear_pending()
        for each in (lost, kept):
            each.step(ppm, at(10 * place), steps=30, ahead_ns=duration(300))

    assert lost.headroom_percent == 20
    assert kept.headroom_percent == HEADROOM_PERCENT_MAX


def test_shorter_lead_is_evaluated_immediately() -> None:
    forecasts = ForecasterSet()
    for place, ppm in enumerate([*[PPM] * 40, *[9 * PPM] * 30]):
        steps = 30 if place < 40 else 2
        forecasts.step(ppm, at(10 * place), steps=steps, ahead_ns=duration(10 * steps))

    # At a lead of two steps, only two forecasts are wrong. At thirty steps, all of them would be.
    assert forecasts.headroom_percent == 20
