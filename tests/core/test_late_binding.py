"""Where does a request go, and when is that decided?"""

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
    completed,
    dispatch,
    end,
    endpoint_summary,
    failed,
    joined,
    leaving,
    readied,
    readmit,
    told,
    unreadied,
)

TWO_POOLS = a_policy(pools=("p", "q"))


def test_a_request_is_given_to_an_endpoint_only_when_that_endpoint_has_room() -> None:
    scheduler = a_scheduler(places=2)

    assert told(scheduler, at(0), arrived("a"), arrived("b"), arrived("c")) == [
        dispatch("a", place="1 of 2"),
        dispatch("b", place="2 of 2"),
    ]
    assert scheduler.handle(completed("b"), at(3)) == [
        end("b", Outcome.COMPLETED, attempts=1),
        dispatch("c", place="2 of 2", waited=3),
    ]


def test_the_least_loaded_endpoint_takes_it_and_among_equals_the_one_that_has_stood_longest() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=2))

    assert told(scheduler, at(0), *[arrived(name) for name in "abcd"]) == [
        dispatch("a", "e1", place="1 of 2"),
        dispatch("b", "e2", place="1 of 2"),
        dispatch("c", "e1", place="2 of 2"),
        dispatch("d", "e2", place="2 of 2"),
    ]


def test_a_request_that_may_use_two_pools_goes_to_the_least_loaded_endpoint_of_both() -> None:
    scheduler = a_scheduler(
        an_endpoint("e1", pool="p", places=4), an_endpoint("e2", pool="q", places=4), policy=TWO_POOLS
    )

    assert told(scheduler, at(0), arrived("a"), arrived("b"), arrived("c")) == [
        dispatch("a", "e1", pool="p", place="1 of 4"),
        dispatch("b", "e2", pool="q", place="1 of 4"),
        dispatch("c", "e1", pool="p", place="2 of 4"),
    ]
    assert told(scheduler, at(0), completed("b"), arrived("d"))[-1] == dispatch("d", "e2", pool="q", place="1 of 4")


def test_a_request_that_may_use_two_pools_goes_to_whichever_has_room_first() -> None:
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=TWO_POOLS)
    told(scheduler, at(0), arrived("a"), arrived("b"), arrived("c"), arrived("d"))

    assert scheduler.handle(completed("b"), at(1))[-1] == dispatch("c", "e2", pool="q", waited=1)
    assert scheduler.handle(completed("a"), at(2))[-1] == dispatch("d", "e1", pool="p", waited=2)


def test_a_request_that_may_use_two_pools_of_which_one_has_no_endpoints_uses_the_other() -> None:
    scheduler = a_scheduler(an_endpoint("e2", pool="q"), policy=TWO_POOLS)

    assert scheduler.handle(arrived("a"), at(0)) == [dispatch("a", "e2", pool="q")]


def test_a_class_keeps_to_its_pools() -> None:
    classes = (a_class("interactive"), a_class("batch", band=1, pools=("q",)))
    policy = a_policy(classes=classes, pools=("p", "q"))
    scheduler = a_scheduler(an_endpoint("e1", pool="p"), an_endpoint("e2", pool="q"), policy=policy)

    assert told(scheduler, at(0), arrived("a", service_class="batch"), arrived("b", service_class="batch")) == [
        dispatch("a", "e2", pool="q", service_class="batch")
    ]


def test_an_endpoint_that_becomes_ready_takes_as_many_as_it_may() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), joined("e2", places=2), *[arrived(name) for name in "abcd"])

    assert scheduler.handle(readied("e2"), at(1)) == [
        readmit("e2", "the engine says it is ready"),
        dispatch("b", "e2", place="1 of 2", waited=1),
        dispatch("c", "e2", place="2 of 2", waited=1),
    ]


def test_raising_an_endpoints_limit_gives_its_new_places_away_at_once() -> None:
    scheduler = a_scheduler(places=1)
    told(scheduler, at(0), arrived("a"), arrived("b"))

    assert scheduler.handle(joined("e1", places=2), at(1)) == [dispatch("b", place="2 of 2", waited=1)]


def test_lowering_an_endpoints_limit_severs_nothing_and_gives_nothing_until_it_is_below() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("a"), arrived("b"), arrived("c"))

    assert scheduler.handle(joined("e1", places=1), at(1)) == []
    assert scheduler.handle(completed("a"), at(2)) == [end("a", Outcome.COMPLETED, attempts=1)]
    assert scheduler.handle(completed("b"), at(3))[-1] == dispatch("c", waited=3)


def test_an_endpoint_without_places_gets_nothing_not_even_on_trial() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    told(scheduler, at(0), arrived("a"), failed("a"), joined("e1", places=0))

    assert scheduler.handle(TimerFired(), at(10)) == []
    assert endpoint_summary(scheduler, "e1").state == "trial"


def test_an_endpoint_that_is_not_ready_any_more_gets_nothing_new() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("a"), unreadied("e1"))

    assert scheduler.handle(arrived("b"), at(0)) == []
    assert scheduler.handle(completed("a"), at(1)) == [end("a", Outcome.COMPLETED, attempts=1)]
    assert scheduler.handle(readied("e1"), at(2))[-1] == dispatch("b", place="1 of 2", waited=2)


def test_what_is_said_about_endpoints_that_nobody_knows_is_ignored() -> None:
    scheduler = a_scheduler()

    assert told(scheduler, at(0), readied("ghost"), unreadied("ghost"), leaving("ghost")) == []
    assert [each.id for each in scheduler.summary().endpoints] == ["e1"]
