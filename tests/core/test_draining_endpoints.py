"""How does an endpoint go, and what if it comes back?"""

import pytest

from headgate.core.events import TimerFired
from headgate.model.endpoint import EndpointState
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules
from testing.builders import (
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_left,
    completed,
    dispatch,
    end,
    endpoint_summary,
    failed,
    first_token,
    joined,
    leaving,
    readied,
    readmit,
    told,
)


def test_a_leaving_endpoint_takes_nothing_new_and_severs_nothing() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2"))
    told(scheduler, at(0), arrived("a"))

    assert scheduler.handle(leaving("e1"), at(1)) == []
    assert told(scheduler, at(1), arrived("b"), arrived("c")) == [dispatch("b", "e2")]
    assert endpoint_summary(scheduler, "e1").leaving


def test_a_leaving_endpoint_is_forgotten_when_its_last_attempt_has_ended() -> None:
    scheduler = a_scheduler(places=2)
    told(scheduler, at(0), arrived("a"), arrived("b"), leaving("e1"), completed("a"))
    assert endpoint_summary(scheduler, "e1").in_flight == 1

    assert scheduler.handle(completed("b"), at(1)) == [end("b", Outcome.COMPLETED, attempts=1)]
    assert scheduler.summary().endpoints == ()


def test_an_idle_endpoint_that_leaves_is_forgotten_at_once() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))

    told(scheduler, at(0), leaving("e1"))

    assert [each.id for each in scheduler.summary().endpoints] == ["e2"]


def test_the_place_of_a_cancelled_request_holds_a_leaving_endpoint() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("a"), client_left("a"), leaving("e1"))
    assert endpoint_summary(scheduler, "e1").in_flight == 1

    told(scheduler, at(1), completed("a"))
    assert scheduler.summary().endpoints == ()


def test_one_that_joins_again_while_leaving_stays_as_it_was() -> None:
    scheduler = a_scheduler(places=1)
    told(scheduler, at(0), arrived("a"), arrived("b"), leaving("e1"))

    assert scheduler.handle(joined("e1", places=2), at(1)) == [dispatch("b", place="2 of 2", waited=1)]
    told(scheduler, at(2), completed("a"), completed("b"))
    assert not endpoint_summary(scheduler, "e1").leaving


def test_one_that_joins_after_it_was_forgotten_warms_up_first() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), leaving("e1"), joined("e1"), arrived("a"))
    assert endpoint_summary(scheduler, "e1").state is EndpointState.WARMING

    assert scheduler.handle(readied("e1"), at(1)) == [
        readmit("e1", "the engine says it is ready"),
        dispatch("a", waited=1),
    ]


def test_the_pool_of_the_last_endpoint_that_leaves_can_be_joined_again() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("a"), arrived("b"), leaving("e1"), completed("a"))

    assert told(scheduler, at(1), joined("e2"), readied("e2"))[-1] == dispatch("b", "e2", waited=1)


def test_leaving_while_ejected_and_idle_leaves_nothing_behind() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    told(scheduler, at(0), arrived("a"), client_left("a"), failed("a"), leaving("e1"))

    assert scheduler.next_wakeup() is None
    assert scheduler.handle(TimerFired(), at(10)) == []
    assert scheduler.summary().endpoints == ()


def test_leaving_while_ejected_with_work_in_flight_gets_no_trial_request() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)), places=2)
    told(scheduler, at(0), arrived("old", stream=False), arrived("a"), client_left("a"), failed("a"))
    told(scheduler, at(1), arrived("b"), leaving("e1"))

    assert scheduler.handle(TimerFired(), at(10)) == []
    assert scheduler.handle(completed("old"), at(11))[-1] == end("old", Outcome.COMPLETED, attempts=1)
    assert scheduler.summary().endpoints == ()


def test_leaving_on_trial_waits_for_the_trial_request() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    told(scheduler, at(0), arrived("a"), client_left("a"), failed("a"))
    told(scheduler, at(10), arrived("b"), leaving("e1"))
    assert endpoint_summary(scheduler, "e1").state is EndpointState.TRIAL

    told(scheduler, at(11), first_token("b"), completed("b"))
    assert scheduler.summary().endpoints == ()
    assert scheduler.next_wakeup() is None


def test_a_leaving_endpoint_that_fails_its_last_attempt_is_forgotten_with_its_ejection() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=1)))
    told(scheduler, at(0), arrived("a"), first_token("a"), leaving("e1"))

    told(scheduler, at(1), failed("a"))

    assert scheduler.summary().endpoints == ()
    assert scheduler.next_wakeup() is None


def test_an_endpoint_that_changes_its_pool_is_our_own_mistake() -> None:
    scheduler = a_scheduler()

    with pytest.raises(AssertionError, match="endpoint e1 changed its pool"):
        scheduler.handle(joined("e1", pool="q"), at(1))
