"""Late binding: a request gets its endpoint only when that endpoint has a free slot."""

from headgate.core.events import TimerFired
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    dispatch,
    end,
    endpoint_summary,
    failed,
    joined,
    leaving,
    readied,
    readmit,
    unreadied,
)

TWO_POOLS = a_policy(pools=("p", "q"))


def test_request_is_sent_only_when_endpoint_has_free_slot() -> None:
    scheduler = a_scheduler(places=2)

    assert commands_for(scheduler, at(0), arrived("a"), arrived("b"), arrived("c")) == [
        dispatch("a", place="1 of 2"),
        dispatch("b", place="2 of 2"),
    ]
    assert scheduler.handle(completed("b"), at(3)) == [
        end("b", Outcome.COMPLETED, attempts=1),
        dispatch("c", place="2 of 2", waited=3),
    ]


def test_least_loaded_endpoint_is_selected_and_ties_go_to_longest_unchanged() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=2))

    assert commands_for(scheduler, at(0), *[arrived(name) for name in "abcd"]) == [
        dispatch("a", "e1", place="1 of 2"),
        dispatch("b", "e2", place="1 of 2"),
        dispatch("c", "e1", place="2 of 2"),
        dispatch("d", "e2", place="2 of 2"),
    ]


def test_request_with_two_pools_goes_to_least_loaded_endpoint_in_either() -> None:
    scheduler = a_scheduler(
        an_endpoint("e1", pool="p", places=4), an_endpoint("e2", pool="q", places=4), policy=TWO_POOLS
    )

    assert commands_for(scheduler, at(0), arrived("a"), arrived("b"), arrived("c")) == [
        dispatch("a", "e1", pool="p", place="1 of 4"),
        dispatch("b", "e2", pool="q", place="1 of 4"),
        dispatch("c", "e1", pool="p", place="2 of 4"),
    ]
    assert commands_for(scheduler, at(0), completed("b"), arrived("d"))[-1] == dispatch(
        "d", "e2", pool="q", place="1 of 4"
    )


def test_request_with_two_pools_goes_to_first_free_slot() -> None:
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=TWO_POOLS)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), arrived("c"), arrived("d"))

    assert scheduler.handle(completed("b"), at(1))[-1] == dispatch("c", "e2", pool="q", waited=1)
    assert scheduler.handle(completed("a"), at(2))[-1] == dispatch("d", "e1", pool="p", waited=2)


def test_request_with_two_pools_uses_the_pool_with_endpoints() -> None:
    scheduler = a_scheduler(an_endpoint("e2", pool="q"), policy=TWO_POOLS)

    assert scheduler.handle(arrived("a"), at(0)) == [dispatch("a", "e2", pool="q")]


def test_class_uses_only_its_own_pools() -> None:
    classes = (a_class("interactive"), a_class("batch", band=1, pools=("q",)))
    policy = a_policy(classes=classes, pools=("p", "q"))
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=policy)

    assert commands_for(scheduler, at(0), arrived("a", service_class="batch"), arrived("b", service_class="batch")) == [
        dispatch("a", "e2", pool="q", service_class="batch")
    ]


def test_endpoint_fills_its_slots_when_it_becomes_ready() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), joined("e2", places=2), *[arrived(name) for name in "abcd"])

    assert scheduler.handle(readied("e2"), at(1)) == [
        readmit("e2", "the engine reports that it is ready"),
        dispatch("b", "e2", place="1 of 2", waited=1),
        dispatch("c", "e2", place="2 of 2", waited=1),
    ]


def test_raised_endpoint_limit_takes_effect_immediately() -> None:
    scheduler = a_scheduler(places=1)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))

    assert scheduler.handle(joined("e1", places=2), at(1)) == [dispatch("b", place="2 of 2", waited=1)]


def test_lowered_endpoint_limit_aborts_nothing_but_blocks_new_requests() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), arrived("c"))

    assert scheduler.handle(joined("e1", places=1), at(1)) == []
    assert scheduler.handle(completed("a"), at(2)) == [end("a", Outcome.COMPLETED, attempts=1)]
    assert scheduler.handle(completed("b"), at(3))[-1] == dispatch("c", waited=3)


def test_endpoint_without_slots_gets_no_requests_even_on_trial() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    commands_for(scheduler, at(0), arrived("a"), failed("a"), joined("e1", places=0))

    assert scheduler.handle(TimerFired(), at(10)) == []
    assert endpoint_summary(scheduler, "e1").state == "trial"


def test_unready_endpoint_gets_no_new_requests() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("a"), unreadied("e1"))

    assert scheduler.handle(arrived("b"), at(0)) == []
    assert scheduler.handle(completed("a"), at(1)) == [end("a", Outcome.COMPLETED, attempts=1)]
    assert scheduler.handle(readied("e1"), at(2))[-1] == dispatch("b", place="1 of 2", waited=2)


def test_events_about_unknown_endpoints_are_ignored() -> None:
    scheduler = a_scheduler()

    assert commands_for(scheduler, at(0), readied("ghost"), unreadied("ghost"), leaving("ghost")) == []
    assert [each.id for each in scheduler.summary().endpoints] == ["e1"]
