"""Tests for queue timeouts and their reasons."""

from dataclasses import replace

from headgate.core.events import TimerFired
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules
from testing.builders import (
    a_class,
    a_policy,
    a_pool,
    a_scheduler,
    a_scheduler_without_endpoints,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    dispatch,
    duration,
    end,
    failed,
    first_token,
    joined,
    leaving,
    only_end,
    unreadied,
)


def test_request_expires_after_the_maximum_queue_wait_of_its_class() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", stream=False))
    commands_for(scheduler, at(1), arrived("waits"))

    assert scheduler.next_wakeup() == at(31)
    assert scheduler.handle(TimerFired(), at(30.999)) == []
    assert scheduler.handle(TimerFired(), at(31)) == [
        end(
            "waits",
            Outcome.QUEUE_TIMEOUT,
            'waited 30 s, the maximum in class "interactive"',
            waited=30,
            retry_after=10,
        )
    ]


def test_request_expires_with_that_reason_once_it_cannot_meet_its_ttft_target() -> None:
    hurried = replace(a_class(), ttft_ns=duration(2))
    scheduler = a_scheduler(policy=a_policy(classes=(hurried,)))
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))

    ended = only_end(scheduler.handle(TimerFired(), at(2)))
    assert ended.outcome is Outcome.QUEUE_TIMEOUT
    assert ended.reason == ('waited 2 s and can no longer meet the TTFT target of class "interactive" (2 s)')


def test_request_with_a_loose_ttft_target_expires_after_the_maximum_queue_wait() -> None:
    patient = replace(a_class(queue_wait=3), ttft_ns=duration(60))
    scheduler = a_scheduler(policy=a_policy(classes=(patient,)))
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert only_end(scheduler.handle(TimerFired(), at(3))).reason == 'waited 3 s, the maximum in class "interactive"'


def test_expiry_takes_effect_before_an_event_at_the_same_time() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", stream=False), arrived("waits"))

    expiry, completion = scheduler.handle(completed("runs"), at(30))

    assert only_end([expiry]).outcome is Outcome.QUEUE_TIMEOUT
    assert completion == end("runs", Outcome.COMPLETED, attempts=1)


def test_each_class_has_its_own_queue_timeout() -> None:
    classes = (a_class("interactive", queue_wait=2), a_class("batch", band=1, queue_wait=3_600))
    scheduler = a_scheduler(policy=a_policy(classes=classes))
    commands_for(scheduler, at(0), arrived("runs", stream=False), arrived("b", service_class="batch"), arrived("i"))

    assert only_end(scheduler.handle(TimerFired(), at(3_599))).request_id == "i"
    assert scheduler.handle(TimerFired(), at(3_600)) == [
        end(
            "b",
            Outcome.QUEUE_TIMEOUT,
            'waited 3600 s, the maximum in class "batch"',
            service_class="batch",
            waited=3_600,
            retry_after=10,
        )
    ]


def test_request_sent_in_time_does_not_expire() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", stream=False), arrived("waits"))
    commands_for(scheduler, at(29), completed("runs"))

    assert scheduler.handle(TimerFired(), at(40)) == []


def test_expiry_reports_no_endpoints_if_none_are_available() -> None:
    scheduler = a_scheduler_without_endpoints(a_policy(pools=(a_pool("p", warm_up=12),)))
    commands_for(scheduler, at(0), joined("e1"), arrived("r"))

    assert scheduler.handle(TimerFired(), at(30)) == [
        end("r", Outcome.NO_ENDPOINTS, "no endpoint in pool p became ready in 30 s", waited=30, retry_after=12)
    ]


def test_queued_request_expires_after_the_last_endpoint_has_left() -> None:
    scheduler = a_scheduler(policy=a_policy(pools=(a_pool("p", warm_up=20),)))
    commands_for(scheduler, at(0), arrived("runs", stream=False), arrived("waits"), leaving("e1"))
    commands_for(scheduler, at(1), completed("runs"))
    assert scheduler.summary().endpoints == ()

    assert scheduler.next_wakeup() == at(30)
    assert scheduler.handle(TimerFired(), at(30)) == [
        end("waits", Outcome.NO_ENDPOINTS, "no endpoint in pool p became ready in 30 s", waited=30, retry_after=20)
    ]
    assert scheduler.next_wakeup() is None


def test_retry_after_for_no_endpoints_is_the_earliest_known_return() -> None:
    policy = a_policy(classes=(a_class(queue_wait=4),), health=HealthRules(consecutive_failures_max=1))
    scheduler = a_scheduler(policy=policy)
    commands_for(scheduler, at(0), arrived("runs", stream=False), first_token("runs"), arrived("waits"), failed("runs"))

    assert scheduler.handle(TimerFired(), at(4)) == [
        end("waits", Outcome.NO_ENDPOINTS, "no endpoint in pool p became ready in 4 s", waited=4, retry_after=6)
    ]


def test_queue_timeout_covers_all_attempts() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("x"), arrived("y", stream=False), arrived("r", "bolt"))
    assert scheduler.handle(completed("x"), at(20))[-1] == dispatch("r", "e1", waited=20)
    commands_for(scheduler, at(21), failed("r"))

    # The request has already waited 20 s, so 10 s remain.
    assert scheduler.next_wakeup() == at(31)
    assert scheduler.handle(TimerFired(), at(31)) == [
        end(
            "r",
            Outcome.QUEUE_TIMEOUT,
            'waited 30 s, the maximum in class "interactive"',
            attempts=1,
            waited=30,
            retry_after=10,
        )
    ]


def test_request_in_a_class_with_zero_queue_wait_is_sent_immediately_or_expires() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_wait=0),)))

    assert scheduler.handle(arrived("runs", stream=False), at(0)) == [dispatch("runs")]
    assert scheduler.handle(arrived("waits"), at(0)) == []
    assert scheduler.next_wakeup() == at(0)
    assert scheduler.handle(TimerFired(), at(0)) == [
        end("waits", Outcome.QUEUE_TIMEOUT, 'waited 0 s, the maximum in class "interactive"', retry_after=10)
    ]


def test_expiry_reports_no_endpoints_if_the_last_one_became_unready() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", stream=False), arrived("waits"), unreadied("e1"))

    assert only_end(scheduler.handle(TimerFired(), at(30))).outcome is Outcome.NO_ENDPOINTS
