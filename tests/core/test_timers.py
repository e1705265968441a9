"""Tests for the timer heap: order, rescheduled and cancelled timers, and memory usage."""

from headgate.core.timers import TimerHeap, Timers
from headgate.model.units import Instant


def rung(agenda: TimerHeap, alarms: Timers[str], moment: int) -> list[str]:
    agenda.pop_due(Instant(moment))
    return alarms.pop_fired()


def test_timers_fire_by_time_and_then_in_the_order_set() -> None:
    agenda = TimerHeap()
    alarms: Timers[str] = Timers(agenda)
    for key, moment in (("late", 9), ("b", 5), ("a", 5), ("early", 1)):
        alarms.set(key, Instant(moment))

    assert agenda.next() == 1
    assert rung(agenda, alarms, 5) == ["early", "b", "a"]
    assert agenda.next() == 9
    assert rung(agenda, alarms, 8) == []


def test_moved_timer_fires_only_at_its_latest_time() -> None:
    agenda = TimerHeap()
    alarms: Timers[str] = Timers(agenda)
    alarms.set("a", Instant(3))
    alarms.set("a", Instant(7))

    assert rung(agenda, alarms, 5) == []
    assert rung(agenda, alarms, 7) == ["a"]
    assert agenda.next() is None


def test_cleared_timer_does_not_fire() -> None:
    agenda = TimerHeap()
    alarms: Timers[str] = Timers(agenda)
    alarms.set("a", Instant(3))
    alarms.clear("a")
    alarms.clear("never set")

    assert agenda.next() is None
    assert rung(agenda, alarms, 5) == []


def test_timer_set_again_for_the_time_of_its_stale_entry_fires_once() -> None:
    agenda = TimerHeap()
    alarms: Timers[str] = Timers(agenda)
    alarms.set("a", Instant(3))
    alarms.clear("a")
    alarms.set("a", Instant(3))

    assert rung(agenda, alarms, 3) == ["a"]
    assert rung(agenda, alarms, 3) == []


def test_heap_size_follows_the_number_of_live_timers() -> None:
    agenda = TimerHeap()
    alarms: Timers[str] = Timers(agenda)
    alarms.set("first", Instant(0))
    for moment in range(10_000):
        alarms.set("moved", Instant(1 + moment))
        alarms.set("cleared", Instant(1 + moment))
        alarms.clear("cleared")

    assert len(agenda) < 100
    assert rung(agenda, alarms, 20_000) == ["first", "moved"]


def test_timer_kinds_share_a_heap_and_take_only_their_own_timers() -> None:
    agenda = TimerHeap()
    one, other = Timers[str](agenda), Timers[str](agenda)
    one.set("a", Instant(3))
    other.set("a", Instant(2))
    other.set("b", Instant(4))

    assert not agenda.pop_due(Instant(1))
    assert agenda.pop_due(Instant(3))
    assert (one.pop_fired(), other.pop_fired(), one.pop_fired()) == (["a"], ["a"], [])
    assert agenda.next() == 4

    other.clear_all()
    assert agenda.next() is None


def test_heap_shrinks_after_many_timers_are_cleared() -> None:
    agenda = TimerHeap()
    alarms, others = Timers[str](agenda), Timers[str](agenda)
    for number in range(10_000):
        alarms.set(f"a{number}", Instant(50_000))
    for number in range(5_000):
        alarms.clear(f"a{number}")
    alarms.clear_all()
    for moment in range(200):
        others.set("moved", Instant(1 + moment))

    assert len(agenda) < 200
    assert rung(agenda, others, 60_000) == ["moved"]
