"""Do alarms ring once, in order, and leave nothing behind?"""

from headgate.core.alarms import Agenda, Alarms
from headgate.model.units import Instant


def rung(agenda: Agenda, alarms: Alarms[str], moment: int) -> list[str]:
    agenda.ring(Instant(moment))
    return alarms.take()


def test_alarms_ring_earliest_first_and_those_of_one_moment_in_the_order_in_which_they_were_set() -> None:
    agenda = Agenda()
    alarms: Alarms[str] = Alarms(agenda)
    for key, moment in (("late", 9), ("b", 5), ("a", 5), ("early", 1)):
        alarms.set(key, Instant(moment))

    assert agenda.next() == 1
    assert rung(agenda, alarms, 5) == ["early", "b", "a"]
    assert agenda.next() == 9
    assert rung(agenda, alarms, 8) == []


def test_an_alarm_that_was_moved_rings_at_its_last_moment_only() -> None:
    agenda = Agenda()
    alarms: Alarms[str] = Alarms(agenda)
    alarms.set("a", Instant(3))
    alarms.set("a", Instant(7))

    assert rung(agenda, alarms, 5) == []
    assert rung(agenda, alarms, 7) == ["a"]
    assert agenda.next() is None


def test_an_alarm_that_was_cleared_does_not_ring() -> None:
    agenda = Agenda()
    alarms: Alarms[str] = Alarms(agenda)
    alarms.set("a", Instant(3))
    alarms.clear("a")
    alarms.clear("never set")

    assert agenda.next() is None
    assert rung(agenda, alarms, 5) == []


def test_an_alarm_set_again_for_the_moment_of_its_husk_rings_once() -> None:
    agenda = Agenda()
    alarms: Alarms[str] = Alarms(agenda)
    alarms.set("a", Instant(3))
    alarms.clear("a")
    alarms.set("a", Instant(3))

    assert rung(agenda, alarms, 3) == ["a"]
    assert rung(agenda, alarms, 3) == []


def test_memory_follows_what_is_alive() -> None:
    agenda = Agenda()
    alarms: Alarms[str] = Alarms(agenda)
    alarms.set("first", Instant(0))
    for moment in range(10_000):
        alarms.set("moved", Instant(1 + moment))
        alarms.set("cleared", Instant(1 + moment))
        alarms.clear("cleared")

    assert len(agenda) < 100
    assert rung(agenda, alarms, 20_000) == ["first", "moved"]


def test_kinds_share_an_agenda_and_take_only_their_own() -> None:
    agenda = Agenda()
    one, other = Alarms[str](agenda), Alarms[str](agenda)
    one.set("a", Instant(3))
    other.set("a", Instant(2))
    other.set("b", Instant(4))

    assert not agenda.ring(Instant(1))
    assert agenda.ring(Instant(3))
    assert (one.take(), other.take(), one.take()) == (["a"], ["a"], [])
    assert agenda.next() == 4

    other.clear_all()
    assert agenda.next() is None


def test_memory_follows_a_crowd_that_has_gone() -> None:
    agenda = Agenda()
    alarms, others = Alarms[str](agenda), Alarms[str](agenda)
    for number in range(10_000):
        alarms.set(f"a{number}", Instant(50_000))
    for number in range(5_000):
        alarms.clear(f"a{number}")
    alarms.clear_all()
    for moment in range(200):
        others.set("moved", Instant(1 + moment))

    assert len(agenda) < 200
    assert rung(agenda, others, 60_000) == ["moved"]
