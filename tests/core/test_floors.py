"""Does a lower band get its share, and no more?"""

from dataclasses import replace
from itertools import pairwise

from headgate.core.queues.floors import Floors
from headgate.model.policy import Policy, ServiceClass
from headgate.model.units import ClassName, Duration, PoolName
from testing.builders import a_class, a_policy, a_scheduler, arrived, at, told
from tests.core.test_bands_and_turns import served

P = PoolName("p")


def floored(percent: int) -> Policy:
    batch: ServiceClass = replace(a_class("batch", band=1, queue_wait=10_000), floor_percent=percent)
    return a_policy(classes=(a_class("interactive", queue_wait=10_000), batch))


def busy(percent: int) -> list[str]:
    """Who goes when both bands have more than enough, all requests alike."""
    scheduler = a_scheduler(policy=floored(percent))
    told(scheduler, at(0), arrived("runs"))
    for number in range(60):
        told(scheduler, at(0), arrived(f"i{number}"), arrived(f"b{number}", "bolt", service_class="batch"))
    return served(scheduler, "runs", 50)


def test_without_a_floor_the_lower_band_waits() -> None:
    assert [each for each in busy(0) if each.startswith("b")] == []


def test_a_floor_of_a_tenth_gives_every_tenth_place() -> None:
    order = busy(10)
    turns = [number for number, each in enumerate(order) if each.startswith("b")]

    assert len(turns) in (4, 5, 6)
    assert max(later - earlier for earlier, later in pairwise(turns)) <= 11


def test_what_a_band_gets_while_nobody_else_waits_costs_it_one_turn_at_most() -> None:
    floors = Floors()
    floors.change_rules({1: 50})
    for _ in range(100):
        floors.served(P, 1, Duration(10), [1])

    assert floors.order(P, [0, 1]) == [0, 1]
    floors.served(P, 0, Duration(10), [0, 1])
    floors.served(P, 0, Duration(10), [0, 1])
    assert floors.order(P, [0, 1]) == [1, 0]


def test_a_band_that_does_not_wait_earns_nothing() -> None:
    floors = Floors()
    floors.change_rules({1: 50})
    floors.served(P, 1, Duration(10), [1])
    for _ in range(100):
        floors.served(P, 0, Duration(10), [0])

    assert floors.order(P, [0, 1]) == [0, 1]


def test_being_due_is_not_saved_up() -> None:
    floors = Floors()
    floors.change_rules({1: 50})
    for _ in range(100):
        floors.served(P, 0, Duration(10), [0, 1])
    assert floors.order(P, [0, 1]) == [1, 0]
    floors.served(P, 1, Duration(10), [0, 1])

    assert floors.order(P, [0, 1]) == [0, 1]


def test_a_held_band_is_served_only_when_it_is_due() -> None:
    floors = Floors()
    floors.change_rules({1: 50})
    floors.held = {P: frozenset({1})}

    assert floors.order(P, [0, 1]) == [0]
    floors.earn(P, Duration(10), [1])
    assert floors.order(P, [0, 1]) == [1, 0]


def test_a_floor_that_is_gone_is_forgotten() -> None:
    floors = Floors()
    floors.change_rules({1: 50, 2: 50})
    floors.served(P, 0, Duration(10), [0, 1, 2])
    floors.change_rules({2: 50})

    assert floors.order(P, [0, 1, 2]) == [2, 0, 1]
    floors.served(P, 1, Duration(10), [0, 1])
    assert floors.order(P, [0, 1, 2]) == [2, 0, 1]


def test_of_the_classes_of_a_band_the_highest_floor_counts() -> None:
    classes = (
        a_class("interactive"),
        replace(a_class("batch", band=1), floor_percent=5),
        ServiceClass(ClassName("night"), 1, floor_percent=20),
        replace(a_class("bulk", band=1), floor_percent=10),
    )
    scheduler = a_scheduler(policy=a_policy(classes=classes))

    assert scheduler._state.rules.floors == {1: 20}
