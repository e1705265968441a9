"""Who goes first when places are few?"""

from headgate.core.commands import Command, Dispatch
from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.policy import HealthRules
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_left,
    completed,
    dispatch,
    failed,
    first_token,
    joined,
    leaving,
    told,
)


def served(scheduler: Scheduler, running: str, turns: int) -> list[str]:
    """The requests that take the only place, one after the other."""
    order: list[str] = []
    for _ in range(turns):
        [*_, last] = scheduler.handle(completed(running), at(1))
        assert isinstance(last, Dispatch)
        running = last.request_id
        order.append(running)
    return order


def dispatched(commands: list[Command]) -> list[str]:
    return [command.request_id for command in commands if isinstance(command, Dispatch)]


def test_batch_yields_to_interactive_when_one_place_is_left() -> None:
    scheduler = a_scheduler(places=1)
    told(scheduler, at(0), arrived("runs"))
    scheduler.handle(arrived("b", service_class="batch"), at(0))
    scheduler.handle(arrived("i", service_class="interactive"), at(0.5))

    assert scheduler.handle(completed("runs"), at(1))[1:] == [dispatch("i", waited=0.5)]
    assert scheduler.handle(completed("i"), at(2))[1:] == [dispatch("b", service_class="batch", waited=2)]


def test_the_band_of_the_lowest_number_goes_first_whatever_the_order_of_the_policy() -> None:
    classes = (a_class("last", band=7), a_class("first", band=-1), a_class("middle", band=3))
    scheduler = a_scheduler(policy=a_policy(classes=classes))
    told(scheduler, at(0), arrived("runs", service_class="last"))
    for name in ("last", "middle", "first"):
        told(scheduler, at(0), arrived(name, service_class=name))

    assert served(scheduler, "runs", 3) == ["first", "middle", "last"]


def test_classes_of_one_band_share_its_turns() -> None:
    classes = (a_class("code", band=0), a_class("chat", band=0))
    scheduler = a_scheduler(policy=a_policy(classes=classes))
    told(scheduler, at(0), arrived("runs"))
    told(scheduler, at(0), arrived("second", service_class="chat"), arrived("third", service_class="code"))

    assert served(scheduler, "runs", 2) == ["second", "third"]


def test_tenants_take_turns_however_much_one_of_them_sends() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), *[arrived(f"a{number}", "acme") for number in range(5)])
    told(scheduler, at(0), *[arrived(f"b{number}", "bolt") for number in range(2)])
    told(scheduler, at(0), arrived("c0", "coil"))

    assert served(scheduler, "a0", 7) == ["b0", "c0", "a1", "b1", "a2", "a3", "a4"]


def test_a_tenant_that_has_waited_alone_for_long_is_not_punished_for_it() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), *[arrived(f"a{number}", "acme") for number in range(20)])
    assert served(scheduler, "a0", 10)[-1] == "a10"
    told(scheduler, at(1), *[arrived(f"b{number}", "bolt") for number in range(5)])

    assert served(scheduler, "a10", 6) == ["b0", "a11", "b1", "a12", "b2", "a13"]


def test_a_tenant_that_returns_from_idling_has_saved_nothing_up() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("b0", "bolt"), *[arrived(f"a{number}", "acme") for number in range(20)])
    assert served(scheduler, "b0", 10)[-1] == "a9"
    told(scheduler, at(1), *[arrived(f"b{number}", "bolt") for number in range(1, 6)])

    assert served(scheduler, "a9", 6) == ["b1", "a10", "b2", "a11", "b3", "a12"]


def test_a_tenant_that_leaves_and_comes_back_between_two_turns_keeps_its_place() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", "coil"), arrived("a0", "acme"), arrived("b0", "bolt"), arrived("b1", "bolt"))
    told(scheduler, at(0), client_left("a0"), arrived("a1", "acme"))

    assert served(scheduler, "runs", 3) == ["a1", "b0", "b1"]


def test_a_tenant_that_no_longer_waits_is_passed_over() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", "coil"), arrived("a0", "acme"), arrived("b0", "bolt"))
    told(scheduler, at(0), client_left("a0"))

    assert served(scheduler, "runs", 1) == ["b0"]


def test_inside_a_tenant_the_oldest_goes_first_across_sets_of_pools() -> None:
    policy = a_policy(classes=(a_class("one", pools=("p",)), a_class("two", pools=("p", "q"))), pools=("p", "q"))
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), policy=policy)
    told(scheduler, at(0), arrived("runs", service_class="one"))
    told(scheduler, at(0), arrived("x", service_class="two"), arrived("y", service_class="one"))

    assert served(scheduler, "runs", 2) == ["x", "y"]


def test_a_line_is_served_in_the_order_of_arrival_after_one_in_its_middle_has_left() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("x"), arrived("y"), arrived("z"), client_left("y"))

    assert served(scheduler, "runs", 2) == ["x", "z"]


def test_who_waits_at_one_pool_only_does_not_count_at_another() -> None:
    policy = a_policy(classes=(a_class("one", pools=("p",)), a_class("two", pools=("q",))), pools=("p", "q"))
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=policy)
    told(scheduler, at(0), arrived("runs", service_class="one"), arrived("waits", service_class="one"))

    assert told(scheduler, at(0), arrived("r", service_class="two")) == [
        dispatch("r", "e2", pool="q", service_class="two")
    ]


def test_a_lower_band_takes_no_place_from_a_higher_one_when_two_pools_open_at_the_same_moment() -> None:
    classes = (a_class("high", band=0, pools=("p",)), a_class("low", band=1, pools=("p", "q")))
    policy = a_policy(classes=classes, pools=("p", "q"), health=HealthRules(failures_max=1))
    scheduler = a_scheduler(an_endpoint("e1", pool="q"), an_endpoint("e2", pool="p"), policy=policy)
    told(scheduler, at(0), arrived("fills p", service_class="low"), arrived("fills q", service_class="low"))
    told(scheduler, at(0), first_token("fills p"), first_token("fills q"), failed("fills q"), failed("fills p"))
    told(scheduler, at(1), arrived("low", service_class="low"), arrived("high", service_class="high"))

    assert scheduler.handle(TimerFired(), at(10)) == [
        dispatch("low", "e1", pool="q", service_class="low", waited=9),
        dispatch("high", "e2", pool="p", service_class="high", waited=9),
    ]


def test_a_tenant_that_had_to_pass_takes_one_turn_for_it_and_not_all_that_it_missed() -> None:
    """The retry of acme avoids the only endpoint with places for as long as the other one is full."""
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("a0", "acme"), arrived("long", "coil"))
    told(scheduler, at(0), *[arrived(f"b{number}", "bolt") for number in range(20)])
    running = dispatched(scheduler.handle(failed("a0"), at(0)))
    assert running == ["b0"]
    for number in range(1, 10):
        assert dispatched(scheduler.handle(completed(f"b{number - 1}"), at(0))) == [f"b{number}"]
    told(scheduler, at(0), *[arrived(f"a{number}", "acme") for number in range(1, 10)])

    order = [dispatched(scheduler.handle(completed("long"), at(1)))[0]]
    at_e1, at_e2 = "b9", order[0]
    for _ in range(3):
        order += dispatched(scheduler.handle(completed(at_e1), at(1)))
        at_e1 = order[-1]
        order += dispatched(scheduler.handle(completed(at_e2, attempt=2 if at_e2 == "a0" else 1), at(1)))
        at_e2 = order[-1]

    assert order == ["a0", "b10", "a1", "b11", "a2", "b12", "a3"]


def test_an_empty_queue_leaves_a_freed_place_free() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"))

    assert dispatched(scheduler.handle(completed("r"), at(1))) == []
    assert dispatched(scheduler.handle(leaving("nobody"), at(1))) == []


def test_those_who_have_left_a_long_line_are_forgotten() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), *(arrived(f"r{number}") for number in range(100)))
    told(scheduler, at(1), *(client_left(f"r{number}") for number in range(1, 99)), arrived("last"))

    [line] = scheduler._state.queue.backlog._bands[0]._waiting["acme"].values()
    assert len(line._heap) == line.length == 3
    assert served(scheduler, "runs", 3) == ["r0", "r99", "last"]


def test_what_was_given_back_while_nobody_waited_buys_no_turns() -> None:
    scheduler = a_scheduler(places=9)
    told(scheduler, at(0), *(arrived(f"early{number}", "acme") for number in range(8)))
    for number in range(8):
        told(scheduler, at(0.2), first_token(f"early{number}"), completed(f"early{number}", tokens=1))
    told(scheduler, at(0.4), joined("e1", places=1), arrived("runs", "acme"))
    told(scheduler, at(0.4), *(arrived(f"{who}{turn}", who) for turn in range(3) for who in ("acme", "bolt")))

    assert served(scheduler, "runs", 6) == ["bolt0", "acme0", "bolt1", "acme1", "bolt2", "acme2"]
