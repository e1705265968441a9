"""Tests for table layout and number formats."""

import pytest

from headgate.simulation.report.text_table import format_amount, format_duration, format_percent, render_table

MS = 1_000_000


def test_names_are_shortened_before_columns_are_dropped() -> None:
    table = [["name", "one", "two"], ["a tenant with a very long name", "1" * 8, "2" * 8]]

    assert render_table(table, 100) == [
        "name                                 one       two",
        "a tenant with a very long name  11111111  22222222",
    ]
    assert render_table(table, 40, droppable=("two",)) == [
        "name                       one       two",
        "a tenant with a ver…  11111111  22222222",
    ]


def test_optional_columns_are_dropped_if_shortened_names_do_not_fit() -> None:
    table = [["name", "one", "two"], ["a tenant with a very long name", "1" * 20, "2" * 20]]

    assert render_table(table, 40, droppable=("two",)) == [
        "name                                 one",
        "a tenant with a v…  11111111111111111111",
    ]


def test_summed_columns_are_merged_into_other() -> None:
    table = [
        ["name", "all", "one", "two", "three", "share"],
        ["some", "66666", "11111", "22222", "33333", "99.123456%"],
    ]
    summed = ("three", "one", "two")

    assert render_table(table, 45, mergeable=summed)[-1] == "some  66666  11111  22222  33333  99.123456%"
    assert render_table(table, 40, mergeable=summed) == [
        "name    all    two  other       share",
        "some  66666  22222  44444  99.123456%",
        "other: three, one",
    ]


@pytest.mark.parametrize(
    ("value_ns", "text"),
    [
        (0, "0 ms"),
        (1234, "0.00123 ms"),
        (12 * MS, "12 ms"),
        (999 * MS, "999 ms"),
        (1500 * MS, "1.5 s"),
        (10**14, "100000 s"),
    ],
)
def test_durations_have_three_significant_digits(value_ns: int, text: str) -> None:
    assert format_duration(value_ns) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0"),
        (999_999, "999999"),
        (1_000_000, "1M"),
        (12_345_678, "12.3M"),
        (999_400_000, "999M"),
        (999_600_000, "1G"),
        (7 * 10**12, "7T"),
        (7 * 10**15, "7000T"),
    ],
)
def test_large_counts_have_three_significant_digits(count: int, text: str) -> None:
    assert format_amount(count) == text


def test_percentages_have_one_decimal_and_none_is_shown_as_a_dash() -> None:
    assert (format_percent(None), format_percent(0.0), format_percent(0.98765), format_percent(1.0)) == (
        "-",
        "0.0%",
        "98.8%",
        "100.0%",
    )
