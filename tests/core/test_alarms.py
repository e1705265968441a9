"""Do alarms ring once, in order, and leave nothing behind?"""

from headgate.core.alarms import Alarms
from headgate.model.units import Instant


def test_alarms_ring_earliest_first_and_those_of_one_moment_in_the_order_in_which_they_were_set() -> None:
    alarms: Alarms[str] = Alarms()
    for key, moment in (("late", 9), ("b", 5), ("a", 5), ("early", 1)):
        alarms.set(key, Instant(moment))

    assert alarms.next() == 1
    assert alarms.pop_due(Instant(5)) == ["early", "b", "a"]
    assert alarms.next() == 9
    assert alarms.pop_due(Instant(8)) == []


def test_an_alarm_that_was_moved_rings_at_its_last_moment_only() -> None:
    alarms: Alarms[str] = Alarms()
    alarms.set("a", Instant(3))
    alarms.set("a", Instant(7))

    assert alarms.pop_due(Instant(5)) == []
    assert alarms.pop_due(Instant(7)) == ["a"]
    assert alarms.next() is None


def test_an_alarm_that_was_cleared_does_not_ring() -> None:
    alarms: Alarms[str] = Alarms()
    alarms.set("a", Instant(3))
    alarms.clear("a")
    alarms.clear("never set")

    assert alarms.next() is None
    assert alarms.pop_due(Instant(5)) == []


def test_an_alarm_set_again_for_the_moment_of_its_husk_rings_once() -> None:
    alarms: Alarms[str] = Alarms()
    alarms.set("a", Instant(3))
    alarms.clear("a")
    alarms.set("a", Instant(3))

    assert alarms.pop_due(Instant(3)) == ["a"]
    assert alarms.pop_due(Instant(3)) == []


def test_memory_follows_what_is_alive() -> None:
    alarms: Alarms[str] = Alarms()
    alarms.set("first", Instant(0))
    for moment in range(10_000):
        alarms.set("moved", Instant(1 + moment))
        alarms.set("cleared", Instant(1 + moment))
        alarms.clear("cleared")

    assert len(alarms._heap) < 100
    assert alarms.pop_due(Instant(20_000)) == ["first", "moved"]
