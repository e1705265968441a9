"""Do figures read well, in the width there is?"""

import pytest

from headgate.simulation.report.layout import amount, duration, lay_out, percent

MS = 1_000_000


def test_names_are_shortened_before_columns_go() -> None:
    table = [["name", "one", "two"], ["a tenant with a very long name", "1" * 8, "2" * 8]]

    assert lay_out(table, 100) == [
        "name                                 one       two",
        "a tenant with a very long name  11111111  22222222",
    ]
    assert lay_out(table, 40, spare=("two",)) == [
        "name                       one       two",
        "a tenant with a ver…  11111111  22222222",
    ]


def test_columns_that_can_be_spared_go_when_names_are_as_short_as_they_may_be() -> None:
    table = [["name", "one", "two"], ["a tenant with a very long name", "1" * 20, "2" * 20]]

    assert lay_out(table, 40, spare=("two",)) == [
        "name                                 one",
        "a tenant with a v…  11111111111111111111",
    ]


def test_counts_that_must_add_up_are_told_together() -> None:
    table = [
        ["name", "all", "one", "two", "three", "share"],
        ["some", "66666", "11111", "22222", "33333", "99.123456%"],
    ]
    summed = ("three", "one", "two")

    assert lay_out(table, 45, summed=summed)[-1] == "some  66666  11111  22222  33333  99.123456%"
    assert lay_out(table, 40, summed=summed) == [
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
def test_durations_have_three_digits(value_ns: int, text: str) -> None:
    assert duration(value_ns) == text


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
def test_large_counts_have_three_digits(count: int, text: str) -> None:
    assert amount(count) == text


def test_a_share_of_nothing_is_not_a_number() -> None:
    assert (percent(None), percent(0.0), percent(0.98765), percent(1.0)) == ("-", "0.0%", "98.8%", "100.0%")
