"""Tests for endpoints that leave or rejoin."""

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
    client_disconnected,
    commands_for,
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
)


def test_leaving_endpoint_gets_no_new_requests_but_finishes_running_ones() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("a"))

    assert scheduler.handle(leaving("e1"), at(1)) == []
    assert commands_for(scheduler, at(1), arrived("b"), arrived("c")) == [dispatch("b", "e2")]
    assert endpoint_summary(scheduler, "e1").leaving


def test_leaving_endpoint_is_removed_after_its_last_attempt() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), leaving("e1"), completed("a"))
    assert endpoint_summary(scheduler, "e1").in_flight == 1

    assert scheduler.handle(completed("b"), at(1)) == [end("b", Outcome.COMPLETED, attempts=1)]
    assert scheduler.summary().endpoints == ()


def test_idle_leaving_endpoint_is_removed_immediately() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))

    commands_for(scheduler, at(0), leaving("e1"))

    assert [each.id for each in scheduler.summary().endpoints] == ["e2"]


def test_leaving_endpoint_is_kept_while_a_cancelled_request_holds_its_slot() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("a"), client_disconnected("a"), leaving("e1"))
    assert endpoint_summary(scheduler, "e1").in_flight == 1

    commands_for(scheduler, at(1), completed("a"))
    assert scheduler.summary().endpoints == ()


def test_leaving_endpoint_keeps_its_state_if_it_joins_again() -> None:
    scheduler = a_scheduler(places=1)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), leaving("e1"))

    assert scheduler.handle(joined("e1", places=2), at(1)) == [dispatch("b", place="2 of 2", waited=1)]
    commands_for(scheduler, at(2), completed("a"), completed("b"))
    assert not endpoint_summary(scheduler, "e1").leaving


def test_removed_endpoint_warms_up_first_if_it_joins_again() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), leaving("e1"), joined("e1"), arrived("a"))
    assert endpoint_summary(scheduler, "e1").state is EndpointState.WARMING

    assert scheduler.handle(readied("e1"), at(1)) == [
        readmit("e1", "the engine reports that it is ready"),
        dispatch("a", waited=1),
    ]


def test_new_endpoint_serves_the_queue_of_an_empty_pool() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), leaving("e1"), completed("a"))

    assert commands_for(scheduler, at(1), joined("e2"), readied("e2"))[-1] == dispatch("b", "e2", waited=1)


def test_idle_ejected_endpoint_is_removed_with_its_timer_when_it_leaves() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    commands_for(scheduler, at(0), arrived("a"), client_disconnected("a"), failed("a"), leaving("e1"))

    assert scheduler.next_wakeup() is None
    assert scheduler.handle(TimerFired(), at(10)) == []
    assert scheduler.summary().endpoints == ()


def test_ejected_endpoint_gets_no_trial_request_when_it_leaves() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)), places=2)
    commands_for(scheduler, at(0), arrived("old", stream=False), arrived("a"), client_disconnected("a"), failed("a"))
    commands_for(scheduler, at(1), arrived("b"), leaving("e1"))

    assert scheduler.handle(TimerFired(), at(10)) == []
    assert scheduler.handle(completed("old"), at(11))[-1] == end("old", Outcome.COMPLETED, attempts=1)
    assert scheduler.summary().endpoints == ()


def test_leaving_endpoint_on_trial_waits_for_its_trial_request() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    commands_for(scheduler, at(0), arrived("a"), client_disconnected("a"), failed("a"))
    commands_for(scheduler, at(10), arrived("b"), leaving("e1"))
    assert endpoint_summary(scheduler, "e1").state is EndpointState.TRIAL

    commands_for(scheduler, at(11), first_token("b"), completed("b"))
    assert scheduler.summary().endpoints == ()
    assert scheduler.next_wakeup() is None


def test_leaving_endpoint_is_removed_with_its_ejection_if_its_last_attempt_fails() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    commands_for(scheduler, at(0), arrived("a"), first_token("a"), leaving("e1"))

    commands_for(scheduler, at(1), failed("a"))

    assert scheduler.summary().endpoints == ()
    assert scheduler.next_wakeup() is None


def test_endpoint_changing_its_pool_raises_an_internal_error() -> None:
    scheduler = a_scheduler()

    with pytest.raises(AssertionError, match="endpoint e1 changed its pool"):
        scheduler.handle(joined("e1", pool="q"), at(1))
