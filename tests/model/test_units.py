"""Arithmetic and formatting of time units."""

import pytest

from headgate.model.units import MILLISECOND, MINUTE, SECOND, Duration, Instant, after, format_seconds


def test_after_adds_duration_to_instant() -> None:
    assert after(Instant(5), Duration(7)) == 12


def test_minute_is_60_seconds_and_second_is_1000_milliseconds() -> None:
    assert (MINUTE, SECOND) == (60 * SECOND, 1_000 * MILLISECOND)


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (Duration(0), "0 s"),
        (MILLISECOND, "0.001 s"),
        (Duration(1_234_567_890), "1.23 s"),
        (Duration(30 * SECOND), "30 s"),
        (Duration(99_960 * MILLISECOND), "100 s"),
        (Duration(3_600 * SECOND), "3600 s"),
        (Duration(86_400 * SECOND), "86400 s"),
    ],
)
def test_duration_is_formatted_in_seconds_without_exponent(length: Duration, text: str) -> None:
    assert format_seconds(length) == text
