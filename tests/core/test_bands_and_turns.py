"""Tests for the order of service: priority bands, tenants and order of arrival."""

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
    client_disconnected,
    commands_for,
    completed,
    dispatch,
    failed,
    first_token,
    joined,
    leaving,
)


def served(scheduler: Scheduler, running: str, turns: int) -> list[str]:
    """Returns the requests that get the only slot, in order."""
    order: list[str] = []
    for _ in range(turns):
        [*_, last] = scheduler.handle(completed(running), at(1))
        assert isinstance(last, Dispatch)
        running = last.request_id
        order.append(running)
    return order


def dispatched(commands: list[Command]) -> list[str]:
    return [command.request_id for command in commands if isinstance(command, Dispatch)]


def test_interactive_request_is_sent_before_an_older_batch_request() -> None:
    scheduler = a_scheduler(places=1)
    commands_for(scheduler, at(0), arrived("runs"))
    scheduler.handle(arrived("b", service_class="batch"), at(0))
    scheduler.handle(arrived("i", service_class="interactive"), at(0.5))

    assert scheduler.handle(completed("runs"), at(1))[1:] == [dispatch("i", waited=0.5)]
    assert scheduler.handle(completed("i"), at(2))[1:] == [dispatch("b", service_class="batch", waited=2)]


def test_lowest_band_number_goes_first_regardless_of_policy_order() -> None:
    classes = (a_class("last", band=7), a_class("first", band=-1), a_class("middle", band=3))
    scheduler = a_scheduler(policy=a_policy(classes=classes))
    commands_for(scheduler, at(0), arrived("runs", service_class="last"))
    for name in ("last", "middle", "first"):
        commands_for(scheduler, at(0), arrived(name, service_class=name))

    assert served(scheduler, "runs", 3) == ["first", "middle", "last"]


def test_classes_in_the_same_band_are_served_in_order_of_arrival() -> None:
    classes = (a_class("code", band=0), a_class("chat", band=0))
    scheduler = a_scheduler(policy=a_policy(classes=classes))
    commands_for(scheduler, at(0), arrived("runs"))
    commands_for(scheduler, at(0), arrived("second", service_class="chat"), arrived("third", service_class="code"))

    assert served(scheduler, "runs", 2) == ["second", "third"]


def test_tenants_take_turns_regardless_of_their_queue_lengths() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), *[arrived(f"a{number}", "acme") for number in range(5)])
    commands_for(scheduler, at(0), *[arrived(f"b{number}", "bolt") for number in range(2)])
    commands_for(scheduler, at(0), arrived("c0", "coil"))

    assert served(scheduler, "a0", 7) == ["b0", "c0", "a1", "b1", "a2", "a3", "a4"]


def test_tenant_is_not_penalised_for_having_been_served_alone() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), *[arrived(f"a{number}", "acme") for number in range(20)])
    assert served(scheduler, "a0", 10)[-1] == "a10"
    commands_for(scheduler, at(1), *[arrived(f"b{number}", "bolt") for number in range(5)])

    assert served(scheduler, "a10", 6) == ["b0", "a11", "b1", "a12", "b2", "a13"]


def test_idle_tenant_does_not_accumulate_credit() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("b0", "bolt"), *[arrived(f"a{number}", "acme") for number in range(20)])
    assert served(scheduler, "b0", 10)[-1] == "a9"
    commands_for(scheduler, at(1), *[arrived(f"b{number}", "bolt") for number in range(1, 6)])

    assert served(scheduler, "a9", 6) == ["b1", "a10", "b2", "a11", "b3", "a12"]


def test_tenant_returning_before_its_turn_keeps_its_position() -> None:
    scheduler = a_scheduler()
    commands_for(
        scheduler, at(0), arrived("runs", "coil"), arrived("a0", "acme"), arrived("b0", "bolt"), arrived("b1", "bolt")
    )
    commands_for(scheduler, at(0), client_disconnected("a0"), arrived("a1", "acme"))

    assert served(scheduler, "runs", 3) == ["a1", "b0", "b1"]


def test_tenant_without_queued_requests_is_skipped() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", "coil"), arrived("a0", "acme"), arrived("b0", "bolt"))
    commands_for(scheduler, at(0), client_disconnected("a0"))

    assert served(scheduler, "runs", 1) == ["b0"]


def test_oldest_request_of_a_tenant_goes_first_across_pool_sets() -> None:
    policy = a_policy(classes=(a_class("one", pools=("p",)), a_class("two", pools=("p", "q"))), pools=("p", "q"))
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), policy=policy)
    commands_for(scheduler, at(0), arrived("runs", service_class="one"))
    commands_for(scheduler, at(0), arrived("x", service_class="two"), arrived("y", service_class="one"))

    assert served(scheduler, "runs", 2) == ["x", "y"]


def test_queue_keeps_order_of_arrival_after_a_cancellation() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("x"), arrived("y"), arrived("z"), client_disconnected("y"))

    assert served(scheduler, "runs", 2) == ["x", "z"]


def test_request_queued_for_one_pool_does_not_delay_another_pool() -> None:
    policy = a_policy(classes=(a_class("one", pools=("p",)), a_class("two", pools=("q",))), pools=("p", "q"))
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=policy)
    commands_for(scheduler, at(0), arrived("runs", service_class="one"), arrived("waits", service_class="one"))

    assert commands_for(scheduler, at(0), arrived("r", service_class="two")) == [
        dispatch("r", "e2", pool="q", service_class="two")
    ]


def test_lower_band_does_not_take_a_slot_from_a_higher_band_when_two_pools_recover_together() -> None:
    classes = (a_class("high", band=0, pools=("p",)), a_class("low", band=1, pools=("p", "q")))
    policy = a_policy(classes=classes, pools=("p", "q"), health=HealthRules(consecutive_failures_max=1))
    scheduler = a_scheduler(an_endpoint("e1", pool="q"), an_endpoint("e2", pool="p"), policy=policy)
    commands_for(scheduler, at(0), arrived("fills p", service_class="low"), arrived("fills q", service_class="low"))
    commands_for(scheduler, at(0), first_token("fills p"), first_token("fills q"), failed("fills q"), failed("fills p"))
    commands_for(scheduler, at(1), arrived("low", service_class="low"), arrived("high", service_class="high"))

    assert scheduler.handle(TimerFired(), at(10)) == [
        dispatch("low", "e1", pool="q", service_class="low", waited=9),
        dispatch("high", "e2", pool="p", service_class="high", waited=9),
    ]


def test_skipped_tenant_gets_one_early_turn_rather_than_all_missed_turns() -> None:
    """acme's retry avoids the endpoint where the request failed, and the other endpoint is full."""
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("a0", "acme"), arrived("long", "coil"))
    commands_for(scheduler, at(0), *[arrived(f"b{number}", "bolt") for number in range(20)])
    running = dispatched(scheduler.handle(failed("a0"), at(0)))
    assert running == ["b0"]
    for number in range(1, 10):
        assert dispatched(scheduler.handle(completed(f"b{number - 1}"), at(0))) == [f"b{number}"]
    commands_for(scheduler, at(0), *[arrived(f"a{number}", "acme") for number in range(1, 10)])

    order = [dispatched(scheduler.handle(completed("long"), at(1)))[0]]
    at_e1, at_e2 = "b9", order[0]
    for _ in range(3):
        order += dispatched(scheduler.handle(completed(at_e1), at(1)))
        at_e1 = order[-1]
        order += dispatched(scheduler.handle(completed(at_e2, attempt=2 if at_e2 == "a0" else 1), at(1)))
        at_e2 = order[-1]

    assert order == ["a0", "b10", "a1", "b11", "a2", "b12", "a3"]


def test_freed_slot_stays_free_if_the_queue_is_empty() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"))

    assert dispatched(scheduler.handle(completed("r"), at(1))) == []
    assert dispatched(scheduler.handle(leaving("nobody"), at(1))) == []


def test_cancelled_requests_are_removed_from_a_long_queue() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), *(arrived(f"r{number}") for number in range(100)))
    commands_for(scheduler, at(1), *(client_disconnected(f"r{number}") for number in range(1, 99)), arrived("last"))

    [line] = scheduler._state.queue.backlog._bands[0]._waiting["acme"].values()
    assert len(line._heap) == len(line.waiting) == 3
    assert served(scheduler, "runs", 3) == ["r0", "r99", "last"]


def test_refund_while_no_request_is_queued_gives_no_extra_turns() -> None:
    scheduler = a_scheduler(places=9)
    commands_for(scheduler, at(0), *(arrived(f"early{number}", "acme") for number in range(8)))
    for number in range(8):
        commands_for(scheduler, at(0.2), first_token(f"early{number}"), completed(f"early{number}", tokens=1))
    commands_for(scheduler, at(0.4), joined("e1", places=1), arrived("runs", "acme"))
    commands_for(scheduler, at(0.4), *(arrived(f"{who}{turn}", who) for turn in range(3) for who in ("acme", "bolt")))

    assert served(scheduler, "runs", 6) == ["bolt0", "acme0", "bolt1", "acme1", "bolt2", "acme2"]
