"""Tests for the slowest round trip in the last two seconds."""

from headgate.hosts.cell.redis.round_trips import SlowestRoundTrip


def test_stall_stays_visible_after_many_fast_round_trips() -> None:
    slowest = SlowestRoundTrip()
    slowest.add(0.4, at_s=10.1)
    for number in range(50):
        slowest.add(0.001, at_s=10.2 + number / 100)

    assert slowest.seconds(10.9) == 0.4
    assert slowest.seconds(11.9) == 0.4
    assert slowest.seconds(12.0) == 0.001


def test_stall_is_replaced_after_two_seconds_of_fast_round_trips() -> None:
    slowest = SlowestRoundTrip()
    slowest.add(0.4, at_s=10.1)
    for second in (11, 12):
        slowest.add(0.001, at_s=second + 0.5)

    assert slowest.seconds(12.6) == 0.001


def test_batch_without_a_reply_is_counted_by_its_age() -> None:
    slowest = SlowestRoundTrip()
    slowest.add(0.001, at_s=10.1)

    assert slowest.seconds(10.6, waiting_s=0.3) == 0.3


def test_last_round_trip_is_used_if_there_is_no_recent_one() -> None:
    slowest = SlowestRoundTrip()
    slowest.add(0.3, at_s=10.1)
    slowest.add(0.002, at_s=10.2)

    assert slowest.seconds(60.0) == 0.002
