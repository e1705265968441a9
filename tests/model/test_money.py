"""Which of the prices of a pool holds at a moment?"""

from headgate.model.money import NanoUsd, Price, price_at
from headgate.model.units import Instant


def test_of_prices_the_last_that_has_begun_holds() -> None:
    first, second = Price(Instant(10), NanoUsd(1)), Price(Instant(20), NanoUsd(2))

    assert [price_at((first, second), Instant(at)) for at in (9, 10, 19, 20, 99)] == [
        None,
        first,
        first,
        second,
        second,
    ]


def test_a_pool_without_a_price_has_none() -> None:
    assert price_at((), Instant(5)) is None
