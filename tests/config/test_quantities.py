"""Parsing and formatting of quantities."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.config.environment import ExpansionError, References
from headgate.config.quantities import (
    InvalidQuantity,
    address,
    address_text,
    boolean,
    day,
    day_text,
    days,
    days_text,
    decimal_number,
    duration,
    duration_text,
    number_range,
    share,
    short_duration,
    short_duration_text,
    size,
    size_text,
    usd,
    usd_text,
    whole_number,
)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("250ms", 250_000_000),
        ("10s", 10_000_000_000),
        ("10 s", 10_000_000_000),
        ("1.5s", 1_500_000_000),
        ("5m", 300_000_000_000),
        ("1h", 3_600_000_000_000),
        ("0s", 0),
    ],
)
def test_duration_is_parsed_with_its_unit(text: str, nanoseconds: int) -> None:
    assert duration(text) == nanoseconds


@pytest.mark.parametrize(
    ("text", "picoseconds"),
    [
        ("13.2ms", 13_200_000_000),
        ("36.1us", 36_100_000),
        ("36.1 µs", 36_100_000),
        ("83.9ns", 83_900),
        ("0.282ns", 282),
        ("7ps", 7),
        ("1s", 10**12),
        ("0ns", 0),
    ],
)
def test_short_duration_is_parsed_to_picoseconds(text: str, picoseconds: int) -> None:
    assert short_duration(text) == picoseconds


@pytest.mark.parametrize(
    ("picoseconds", "text"),
    [(0, "0ns"), (282, "0.282ns"), (83_900, "83.9ns"), (36_100_000, "36.1us"), (10**10, "10ms"), (2 * 10**12, "2s")],
)
def test_short_duration_is_formatted_with_the_best_unit(picoseconds: int, text: str) -> None:
    assert short_duration_text(picoseconds) == text


@given(st.integers(min_value=0, max_value=10**12 - 1))
def test_short_duration_round_trips(picoseconds: int) -> None:
    assert short_duration(short_duration_text(picoseconds)) == picoseconds


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("1B", 1), ("1KiB", 1024), ("32MiB", 33_554_432), ("1.5GiB", 1_610_612_736), ("1kB", 1000), ("2MB", 2_000_000)],
)
def test_size_is_parsed_with_its_unit(text: str, bytes_: int) -> None:
    assert size(text) == bytes_


@pytest.mark.parametrize(
    ("text", "host_and_port"),
    [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0)), ("gateway.local:65535", ("gateway.local", 65535))],
)
def test_address_is_parsed_to_host_and_port(text: str, host_and_port: tuple[str, int]) -> None:
    assert address(text) == host_and_port
    assert address_text(*host_and_port) == text


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("20000", 20_000), ("20_000", 20_000), ("-3", -3)])
def test_integer_may_have_underscores(text: str, number: int) -> None:
    assert whole_number(text) == number


@pytest.mark.parametrize("read", [duration, short_duration, size, address, whole_number, boolean])
@pytest.mark.parametrize(
    "text", ["", " ", "ten", "10", "1e3s", "1s1s", "-1s", "::1:80", "a:b:80", "h:65536", "0x10", "1.0", "yes", "٣"]
)
def test_malformed_quantity_is_rejected(read, text: str) -> None:
    if (read, text) == (whole_number, "10"):
        return

    with pytest.raises(InvalidQuantity):
        read(text)


@given(st.integers(min_value=0, max_value=10**14).map(lambda each: each * 1000))
def test_duration_round_trips(nanoseconds: int) -> None:
    assert duration(duration_text(nanoseconds)) == nanoseconds


@given(st.integers(min_value=1, max_value=10**11))
def test_size_round_trips(count: int) -> None:
    assert size(size_text(count)) == count


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("plain", "plain"),
        ("${A}", "1"),
        ("x${A}y${B_2}z", "x1y${A}z"),
        ("$${A}", "${A}"),
        ("$A and $$", "$A and $$"),
    ],
)
def test_environment_variables_are_expanded_once(text: str, expanded: str) -> None:
    assert References({"A": "1", "B_2": "${A}"}, Path()).expand(text) == expanded


def test_unset_variable_is_named() -> None:
    with pytest.raises(
        ExpansionError, match=r"^the environment variable MISSING is not set; export it before starting"
    ):
        References({}, Path()).expand("a${MISSING}")


@pytest.mark.parametrize("text", ["${", "${}", "${a b}", "${1}", "${file:}", "${file:a", "${FILE:a}"])
def test_malformed_variable_reference_is_rejected(text: str) -> None:
    with pytest.raises(ExpansionError, match=r'write "[$][$]{" for a literal "[$]{"'):
        References({}, Path()).expand(text)


@pytest.mark.parametrize(("text", "number"), [("8", 8.0), ("17.5", 17.5), ("0.001", 0.001)])
def test_decimal_number_is_parsed(text: str, number: float) -> None:
    assert decimal_number(text) == number


@pytest.mark.parametrize(("text", "part"), [("0.7", 0.7), ("70%", 0.7), ("5.54 %", 0.0554), ("3", 3.0)])
def test_share_is_a_number_or_percentage(text: str, part: float) -> None:
    assert share(text) == part


@pytest.mark.parametrize(("text", "bounds"), [("200", (200, 200)), ("200:800", (200, 800))])
def test_range_is_one_or_two_numbers(text: str, bounds: tuple[int, int]) -> None:
    assert number_range(text) == bounds


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (decimal_number, "1e3"),
        (decimal_number, "--1"),
        (decimal_number, "nan"),
        (decimal_number, "1%"),
        (share, "%"),
        (share, "-1"),
        (number_range, "0"),
        (number_range, "9:8"),
        (number_range, "1:"),
        (number_range, "1.5"),
    ],
)
def test_malformed_number_is_rejected(reader: Callable[[str], object], text: str) -> None:
    with pytest.raises(InvalidQuantity):
        reader(text)


@given(st.integers(0, 10**18 - 1))
def test_dollars_round_trip(nano_usd: int) -> None:
    assert usd(usd_text(nano_usd)) == nano_usd


@given(st.integers(0, 80_000), st.integers(1, 36_500))
def test_days_round_trip(since_1970: int, number: int) -> None:
    assert day(day_text(since_1970 * 86_400 * 10**9)) == since_1970 * 86_400 * 10**9
    assert days(days_text(number)) == number


@pytest.mark.parametrize("text", ["", "1,5", "$1", "1 USD", ".5", "5.", "1e3", "-1", "1.0000000001", "1__000", "_1"])
def test_malformed_dollars_are_rejected(text: str) -> None:
    with pytest.raises(InvalidQuantity, match="an amount in dollars"):
        usd(text)


@pytest.mark.parametrize("text", ["2026-1-1", "2026-13-01", "20260101", "2026-01-01T00:00:00Z", "today"])
def test_malformed_day_is_rejected(text: str) -> None:
    with pytest.raises(InvalidQuantity, match="a day such as"):
        day(text)
