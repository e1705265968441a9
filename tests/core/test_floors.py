"""Tests for the minimum shares of lower-priority bands."""

from dataclasses import replace
from itertools import pairwise

from headgate.core.queues.min_shares import MinShares
from headgate.model.policy import Policy, ServiceClass
from headgate.model.units import ClassName, Duration, PoolName
from testing.builders import a_class, a_policy, a_scheduler, arrived, at, commands_for
from tests.core.test_bands_and_turns import served

P = PoolName("p")


def floored(percent: int) -> Policy:
    batch: ServiceClass = replace(a_class("batch", band=1, queue_wait=10_000), min_share_percent=percent)
    return a_policy(classes=(a_class("interactive", queue_wait=10_000), batch))


def busy(percent: int) -> list[str]:
    """Returns the order of service while both bands have many identical requests queued."""
    scheduler = a_scheduler(policy=floored(percent))
    commands_for(scheduler, at(0), arrived("runs"))
    for number in range(60):
        commands_for(scheduler, at(0), arrived(f"i{number}"), arrived(f"b{number}", "bolt", service_class="batch"))
    return served(scheduler, "runs", 50)


def test_lower_band_without_a_minimum_share_waits() -> None:
    assert [each for each in busy(0) if each.startswith("b")] == []


def test_minimum_share_of_ten_percent_gives_every_tenth_slot() -> None:
    order = busy(10)
    turns = [number for number, each in enumerate(order) if each.startswith("b")]

    assert len(turns) in (4, 5, 6)
    assert max(later - earlier for earlier, later in pairwise(turns)) <= 11


def test_service_without_competition_delays_a_band_by_at_most_one_turn() -> None:
    floors = MinShares()
    floors.change_rules({1: 50})
    for _ in range(100):
        floors.record_served(P, 1, Duration(10), [1])

    assert floors.order(P, [0, 1]) == [0, 1]
    floors.record_served(P, 0, Duration(10), [0, 1])
    floors.record_served(P, 0, Duration(10), [0, 1])
    assert floors.order(P, [0, 1]) == [1, 0]


def test_band_without_queued_requests_earns_no_credit() -> None:
    floors = MinShares()
    floors.change_rules({1: 50})
    floors.record_served(P, 1, Duration(10), [1])
    for _ in range(100):
        floors.record_served(P, 0, Duration(10), [0])

    assert floors.order(P, [0, 1]) == [0, 1]


def test_band_that_is_due_earns_no_further_credit() -> None:
    floors = MinShares()
    floors.change_rules({1: 50})
    for _ in range(100):
        floors.record_served(P, 0, Duration(10), [0, 1])
    assert floors.order(P, [0, 1]) == [1, 0]
    floors.record_served(P, 1, Duration(10), [0, 1])

    assert floors.order(P, [0, 1]) == [0, 1]


def test_band_limited_to_its_minimum_share_is_served_only_when_due() -> None:
    floors = MinShares()
    floors.change_rules({1: 50})
    floors.limited_bands = {P: frozenset({1})}

    assert floors.order(P, [0, 1]) == [0]
    floors.earn(P, Duration(10), [1])
    assert floors.order(P, [0, 1]) == [1, 0]


def test_removed_minimum_share_is_forgotten() -> None:
    floors = MinShares()
    floors.change_rules({1: 50, 2: 50})
    floors.record_served(P, 0, Duration(10), [0, 1, 2])
    floors.change_rules({2: 50})

    assert floors.order(P, [0, 1, 2]) == [2, 0, 1]
    floors.record_served(P, 1, Duration(10), [0, 1])
    assert floors.order(P, [0, 1, 2]) == [2, 0, 1]


def test_highest_minimum_share_in_a_band_applies() -> None:
    classes = (
        a_class("interactive"),
        replace(a_class("batch", band=1), min_share_percent=5),
        ServiceClass(ClassName("night"), 1, min_share_percent=20),
        replace(a_class("bulk", band=1), min_share_percent=10),
    )
    scheduler = a_scheduler(policy=a_policy(classes=classes))

    assert scheduler._state.rules.min_shares == {1: 20}
