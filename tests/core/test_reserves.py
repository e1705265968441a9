"""Slots reserved for a class."""

import time
from dataclasses import replace

from headgate.core.commands import Dispatch
from headgate.core.scheduler import Scheduler
from headgate.model.policy import Policy, ServiceClass
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    first_token,
    policy_changed,
)

RESERVING = replace(a_class("interactive"), reserve_percent=50)
BATCH = a_class("batch", band=1)


def of(*classes: ServiceClass) -> Policy:
    return a_policy(classes=classes)


def with_places(places: int, *classes: ServiceClass) -> Scheduler:
    return a_scheduler(an_endpoint(places=places), policy=of(*(classes or (RESERVING, BATCH))))


def sent(scheduler: Scheduler, service_class: str, *names: str) -> list[str]:
    """Returns the requests that are sent immediately."""
    commands = commands_for(scheduler, at(0), *[arrived(name, service_class=service_class) for name in names])
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


def test_other_classes_leave_reserved_slots_free() -> None:
    scheduler = with_places(4)

    assert sent(scheduler, "batch", "b1", "b2", "b3") == ["b1", "b2"]
    assert sent(scheduler, "interactive", "i1", "i2", "i3") == ["i1", "i2"]


def test_slots_in_use_by_class_count_towards_its_reservation() -> None:
    scheduler = with_places(4)

    assert sent(scheduler, "interactive", "i1", "i2") == ["i1", "i2"]
    assert sent(scheduler, "batch", "b1", "b2", "b3") == ["b1", "b2"]


def test_reserving_class_may_use_all_slots() -> None:
    assert len(sent(with_places(4), "interactive", "i1", "i2", "i3", "i4", "i5")) == 4


def test_slot_freed_by_reserving_class_stays_reserved() -> None:
    scheduler = with_places(2)
    sent(scheduler, "interactive", "i1")
    sent(scheduler, "batch", "b1", "b2")

    assert [each for each in scheduler.handle(completed("i1"), at(0)) if isinstance(each, Dispatch)] == []
    assert sent(scheduler, "interactive", "i2") == ["i2"]


def test_number_of_reserved_slots_is_rounded_down() -> None:
    third = replace(RESERVING, reserve_percent=33)

    assert len(sent(with_places(3, third, BATCH), "batch", "b1", "b2", "b3")) == 3
    assert len(sent(with_places(4, third, BATCH), "batch", "b1", "b2", "b3", "b4")) == 3


def test_reserving_classes_leave_each_others_slots_free() -> None:
    code = replace(a_class("code"), reserve_percent=25)
    scheduler = with_places(4, RESERVING, code, BATCH)

    assert sent(scheduler, "batch", "b1", "b2") == ["b1"]
    assert sent(scheduler, "code", "c1", "c2") == ["c1"]
    assert sent(scheduler, "interactive", "i1", "i2", "i3") == ["i1", "i2"]


def test_blocked_class_does_not_block_reserving_class_in_same_band() -> None:
    code = a_class("code")
    scheduler = with_places(4, RESERVING, code)

    assert sent(scheduler, "code", "c1", "c2", "c3") == ["c1", "c2"]
    assert sent(scheduler, "interactive", "i1") == ["i1"]


def test_class_reserves_slots_only_in_its_pools() -> None:
    elsewhere = replace(a_class("interactive", pools=("q",)), reserve_percent=50)
    policy = replace(of(elsewhere, BATCH), pools=a_policy(pools=("p", "q")).pools)
    scheduler = a_scheduler(an_endpoint(places=2), policy=policy)

    assert len(sent(scheduler, "batch", "b1", "b2")) == 2


def test_running_requests_count_towards_new_reservation() -> None:
    scheduler = with_places(4, a_class("interactive"), BATCH)
    sent(scheduler, "interactive", "i1")
    commands_for(scheduler, at(0), policy_changed(of(RESERVING, BATCH)))

    assert sent(scheduler, "batch", "b1", "b2", "b3") == ["b1", "b2"]


def seconds_for_those_with_a_place_of_their_own(waiting: int) -> float:
    """Returns the CPU time for ten requests in the reserving class while `waiting` tenants' requests are blocked."""
    names = tuple(f"t{number}" for number in range(waiting))
    policy = a_policy(classes=(RESERVING, BATCH), tenants=names)
    scheduler = a_scheduler(an_endpoint(places=4), policy=policy)
    commands_for(scheduler, at(0), *[arrived(f"b-{name}", name, service_class="batch") for name in names])
    began = time.process_time()
    for number in range(10):
        commands = commands_for(scheduler, at(1), arrived(f"i{number}", "t0"), first_token(f"i{number}"))
        assert isinstance(commands[0], Dispatch)
        commands_for(scheduler, at(1), completed(f"i{number}"))
    return time.process_time() - began


def test_requests_blocked_by_reservation_do_not_slow_dispatch() -> None:
    few = min(seconds_for_those_with_a_place_of_their_own(10) for _ in range(5))
    many = min(seconds_for_those_with_a_place_of_their_own(1_000) for _ in range(5))

    # If every blocked tenant were checked, a hundred times as many tenants would take a hundred times as long.
    assert many < 10 * few
