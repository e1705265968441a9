"""A pool's price at a given time."""

from headgate.model.money import NanoUsd, Price, price_at
from headgate.model.units import Instant


def test_latest_price_that_has_started_applies() -> None:
    first, second = Price(Instant(10), NanoUsd(1)), Price(Instant(20), NanoUsd(2))

    assert [price_at((first, second), Instant(at)) for at in (9, 10, 19, 20, 99)] == [
        None,
        first,
        first,
        second,
        second,
    ]


def test_pool_without_prices_has_no_price() -> None:
    assert price_at((), Instant(5)) is None
