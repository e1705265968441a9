"""Are places kept free for a class that reserves them, and no more than it does not use?"""

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
    completed,
    first_token,
    policy_changed,
    told,
)

RESERVING = replace(a_class("interactive"), reserve_percent=50)
BATCH = a_class("batch", band=1)


def of(*classes: ServiceClass) -> Policy:
    return a_policy(classes=classes)


def with_places(places: int, *classes: ServiceClass) -> Scheduler:
    return a_scheduler(an_endpoint(places=places), policy=of(*(classes or (RESERVING, BATCH))))


def sent(scheduler: Scheduler, service_class: str, *names: str) -> list[str]:
    """Which of these go at once."""
    commands = told(scheduler, at(0), *[arrived(name, service_class=service_class) for name in names])
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


def test_others_leave_free_what_a_class_has_reserved() -> None:
    scheduler = with_places(4)

    assert sent(scheduler, "batch", "b1", "b2", "b3") == ["b1", "b2"]
    assert sent(scheduler, "interactive", "i1", "i2", "i3") == ["i1", "i2"]


def test_what_the_class_holds_already_is_not_kept_free_once_more() -> None:
    scheduler = with_places(4)

    assert sent(scheduler, "interactive", "i1", "i2") == ["i1", "i2"]
    assert sent(scheduler, "batch", "b1", "b2", "b3") == ["b1", "b2"]


def test_the_class_itself_may_use_all_places() -> None:
    assert len(sent(with_places(4), "interactive", "i1", "i2", "i3", "i4", "i5")) == 4


def test_a_place_that_the_class_gives_back_stays_free_for_it() -> None:
    scheduler = with_places(2)
    sent(scheduler, "interactive", "i1")
    sent(scheduler, "batch", "b1", "b2")

    assert [each for each in scheduler.handle(completed("i1"), at(0)) if isinstance(each, Dispatch)] == []
    assert sent(scheduler, "interactive", "i2") == ["i2"]


def test_a_share_of_few_places_is_rounded_down() -> None:
    third = replace(RESERVING, reserve_percent=33)

    assert len(sent(with_places(3, third, BATCH), "batch", "b1", "b2", "b3")) == 3
    assert len(sent(with_places(4, third, BATCH), "batch", "b1", "b2", "b3", "b4")) == 3


def test_two_classes_keep_free_what_each_has_reserved_from_each_other_too() -> None:
    code = replace(a_class("code"), reserve_percent=25)
    scheduler = with_places(4, RESERVING, code, BATCH)

    assert sent(scheduler, "batch", "b1", "b2") == ["b1"]
    assert sent(scheduler, "code", "c1", "c2") == ["c1"]
    assert sent(scheduler, "interactive", "i1", "i2", "i3") == ["i1", "i2"]


def test_nobody_else_holds_up_who_has_a_place_of_its_own_in_the_same_band() -> None:
    code = a_class("code")
    scheduler = with_places(4, RESERVING, code)

    assert sent(scheduler, "code", "c1", "c2", "c3") == ["c1", "c2"]
    assert sent(scheduler, "interactive", "i1") == ["i1"]


def test_a_class_reserves_only_at_pools_that_it_may_use() -> None:
    elsewhere = replace(a_class("interactive", pools=("q",)), reserve_percent=50)
    policy = replace(of(elsewhere, BATCH), pools=a_policy(pools=("p", "q")).pools)
    scheduler = a_scheduler(an_endpoint(places=2), policy=policy)

    assert len(sent(scheduler, "batch", "b1", "b2")) == 2


def test_what_is_in_flight_counts_under_a_policy_that_begins_to_reserve() -> None:
    scheduler = with_places(4, a_class("interactive"), BATCH)
    sent(scheduler, "interactive", "i1")
    told(scheduler, at(0), policy_changed(of(RESERVING, BATCH)))

    assert sent(scheduler, "batch", "b1", "b2", "b3") == ["b1", "b2"]


def seconds_for_those_with_a_place_of_their_own(waiting: int) -> float:
    """What ten requests of the reserving class cost while so many tenants wait that have none."""
    names = tuple(f"t{number}" for number in range(waiting))
    policy = a_policy(classes=(RESERVING, BATCH), tenants=names)
    scheduler = a_scheduler(an_endpoint(places=4), policy=policy)
    told(scheduler, at(0), *[arrived(f"b-{name}", name, service_class="batch") for name in names])
    began = time.process_time()
    for number in range(10):
        commands = told(scheduler, at(1), arrived(f"i{number}", "t0"), first_token(f"i{number}"))
        assert isinstance(commands[0], Dispatch)
        told(scheduler, at(1), completed(f"i{number}"))
    return time.process_time() - began


def test_those_who_wait_for_what_is_kept_for_others_cost_nothing_meanwhile() -> None:
    few = min(seconds_for_those_with_a_place_of_their_own(10) for _ in range(5))
    many = min(seconds_for_those_with_a_place_of_their_own(1_000) for _ in range(5))

    # Asked one by one, a hundred times as many cost a hundred times as much.
    assert many < 10 * few
