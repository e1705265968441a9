"""The slowest round trip of the last two seconds."""

from headgate.hosts.cell.redis.slowest import Slowest


def test_a_stall_stays_visible_after_many_quick_round_trips() -> None:
    slowest = Slowest()
    slowest.add(0.4, at_s=10.1)
    for number in range(50):
        slowest.add(0.001, at_s=10.2 + number / 100)

    assert slowest.seconds(10.9) == 0.4
    assert slowest.seconds(11.9) == 0.4
    assert slowest.seconds(12.0) == 0.001


def test_quick_round_trips_in_every_second_replace_a_stall() -> None:
    slowest = Slowest()
    slowest.add(0.4, at_s=10.1)
    for second in (11, 12):
        slowest.add(0.001, at_s=second + 0.5)

    assert slowest.seconds(12.6) == 0.001


def test_a_parcel_that_is_not_answered_yet_counts_by_its_age() -> None:
    slowest = Slowest()
    slowest.add(0.001, at_s=10.1)

    assert slowest.seconds(10.6, waiting_s=0.3) == 0.3


def test_without_a_recent_round_trip_the_last_one_counts() -> None:
    slowest = Slowest()
    slowest.add(0.3, at_s=10.1)
    slowest.add(0.002, at_s=10.2)

    assert slowest.seconds(60.0) == 0.002
