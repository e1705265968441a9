"""What is remembered of wants, absences and measurements?"""

from headgate.core.autoscaling.memory import Absences, Greatest, Lately
from headgate.model.units import MINUTE
from testing.builders import at, lasting


def test_nineteen_in_twenty_of_the_last_few() -> None:
    lately = Lately(20)
    assert lately.ninety_fifth(otherwise=7) == 7

    for measured in (1_000, *range(20)):
        lately.add(measured)
    assert lately.ninety_fifth() == 18


def test_the_greatest_want_of_a_while_and_at_least_the_last_one() -> None:
    greatest = Greatest()
    for second, want in enumerate([5, 3, 4, 1]):
        greatest.add(want, at(second))

    assert [greatest.since(at(second)) for second in (0, 1, 3, 9)] == [5, 4, 1, 1]


def test_without_any_return_an_absence_is_taken_to_last_an_hour() -> None:
    assert Absences().lasted_ns(at(0)) == 60 * MINUTE


def test_what_comes_back_tells_how_long_it_was_away() -> None:
    absences = Absences()
    absences.gave_back(before=5, after=4, now=at(0))
    absences.gave_back(before=4, after=2, now=at(10))
    absences.wanted_again(3, now=at(20))
    assert absences.lasted_ns(at(20)) == lasting(10)

    absences.wanted_again(9, now=at(40))
    assert absences.lasted_ns(at(40)) == (lasting(10) + lasting(30) + lasting(40)) // 3


def test_who_was_never_given_back_has_not_been_away() -> None:
    absences = Absences()
    absences.wanted_again(3, now=at(20))

    assert absences.lasted_ns(at(20)) == 60 * MINUTE


def test_an_absence_is_forgotten_an_hour_after_its_end() -> None:
    absences = Absences()
    absences.gave_back(before=2, after=1, now=at(0))
    absences.wanted_again(2, now=at(10))

    assert absences.lasted_ns(at(3_609)) == lasting(10)
    assert absences.lasted_ns(at(3_610)) == 60 * MINUTE
