"""How long does a request wait, and what does it hear then?"""

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
    completed,
    dispatch,
    end,
    failed,
    first_token,
    joined,
    lasting,
    leaving,
    the_end,
    told,
    unreadied,
)


def test_a_request_expires_when_its_class_has_waited_long_enough() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", stream=False))
    told(scheduler, at(1), arrived("waits"))

    assert scheduler.next_wakeup() == at(31)
    assert scheduler.handle(TimerFired(), at(30.999)) == []
    assert scheduler.handle(TimerFired(), at(31)) == [
        end(
            "waits",
            Outcome.EXPIRED,
            'waited 30 s, as long as class "interactive" may wait',
            waited=30,
            retry_after=10,
        )
    ]


def test_who_can_no_longer_begin_in_time_is_told_so_and_not_that_it_waited_long_enough() -> None:
    hurried = replace(a_class(), ttft_ns=lasting(2))
    scheduler = a_scheduler(policy=a_policy(classes=(hurried,)))
    told(scheduler, at(0), arrived("runs"), arrived("waits"))

    ended = the_end(scheduler.handle(TimerFired(), at(2)))
    assert ended.outcome is Outcome.EXPIRED
    assert ended.reason == (
        'waited 2 s, and its answer could no longer begin within the 2 s that class "interactive" promises'
    )


def test_who_promises_a_first_token_and_waited_as_long_as_it_may_is_told_that() -> None:
    patient = replace(a_class(queue_wait=3), ttft_ns=lasting(60))
    scheduler = a_scheduler(policy=a_policy(classes=(patient,)))
    told(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert (
        the_end(scheduler.handle(TimerFired(), at(3))).reason == 'waited 3 s, as long as class "interactive" may wait'
    )


def test_whatever_happens_at_the_moment_of_expiry_comes_after_it() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", stream=False), arrived("waits"))

    expiry, completion = scheduler.handle(completed("runs"), at(30))

    assert the_end([expiry]).outcome is Outcome.EXPIRED
    assert completion == end("runs", Outcome.COMPLETED, attempts=1)


def test_classes_have_each_their_own_patience() -> None:
    classes = (a_class("interactive", queue_wait=2), a_class("batch", band=1, queue_wait=3_600))
    scheduler = a_scheduler(policy=a_policy(classes=classes))
    told(scheduler, at(0), arrived("runs", stream=False), arrived("b", service_class="batch"), arrived("i"))

    assert the_end(scheduler.handle(TimerFired(), at(3_599))).request_id == "i"
    assert scheduler.handle(TimerFired(), at(3_600)) == [
        end(
            "b",
            Outcome.EXPIRED,
            'waited 3600 s, as long as class "batch" may wait',
            service_class="batch",
            waited=3_600,
            retry_after=10,
        )
    ]


def test_a_request_that_was_given_a_place_in_time_does_not_expire() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", stream=False), arrived("waits"))
    told(scheduler, at(29), completed("runs"))

    assert scheduler.handle(TimerFired(), at(40)) == []


def test_expiry_says_no_endpoints_when_nothing_is_live() -> None:
    scheduler = a_scheduler_without_endpoints(a_policy(pools=(a_pool("p", warm_up=12),)))
    told(scheduler, at(0), joined("e1"), arrived("r"))

    assert scheduler.handle(TimerFired(), at(30)) == [
        end("r", Outcome.NO_ENDPOINTS, "no endpoint of pool p became ready in 30 s", waited=30, retry_after=12)
    ]


def test_a_request_whose_last_endpoint_left_while_it_waited_ends_by_expiry() -> None:
    scheduler = a_scheduler(policy=a_policy(pools=(a_pool("p", warm_up=20),)))
    told(scheduler, at(0), arrived("runs", stream=False), arrived("waits"), leaving("e1"))
    told(scheduler, at(1), completed("runs"))
    assert scheduler.summary().endpoints == ()

    assert scheduler.next_wakeup() == at(30)
    assert scheduler.handle(TimerFired(), at(30)) == [
        end("waits", Outcome.NO_ENDPOINTS, "no endpoint of pool p became ready in 30 s", waited=30, retry_after=20)
    ]
    assert scheduler.next_wakeup() is None


def test_retry_after_of_no_endpoints_is_the_soonest_return_where_one_is_known() -> None:
    policy = a_policy(classes=(a_class(queue_wait=4),), health=HealthRules(failures_max=1))
    scheduler = a_scheduler(policy=policy)
    told(scheduler, at(0), arrived("runs", stream=False), first_token("runs"), arrived("waits"), failed("runs"))

    assert scheduler.handle(TimerFired(), at(4)) == [
        end("waits", Outcome.NO_ENDPOINTS, "no endpoint of pool p became ready in 4 s", waited=4, retry_after=6)
    ]


def test_patience_is_one_for_all_attempts_together() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("x"), arrived("y", stream=False), arrived("r", "bolt"))
    assert scheduler.handle(completed("x"), at(20))[-1] == dispatch("r", "e1", waited=20)
    told(scheduler, at(21), failed("r"))

    # It has waited twenty seconds before, so ten remain.
    assert scheduler.next_wakeup() == at(31)
    assert scheduler.handle(TimerFired(), at(31)) == [
        end(
            "r",
            Outcome.EXPIRED,
            'waited 30 s, as long as class "interactive" may wait',
            attempts=1,
            waited=30,
            retry_after=10,
        )
    ]


def test_a_class_without_patience_is_served_at_once_or_never() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_wait=0),)))

    assert scheduler.handle(arrived("runs", stream=False), at(0)) == [dispatch("runs")]
    assert scheduler.handle(arrived("waits"), at(0)) == []
    assert scheduler.next_wakeup() == at(0)
    assert scheduler.handle(TimerFired(), at(0)) == [
        end("waits", Outcome.EXPIRED, 'waited 0 s, as long as class "interactive" may wait', retry_after=10)
    ]


def test_an_endpoint_that_goes_while_requests_wait_changes_what_they_hear() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs", stream=False), arrived("waits"), unreadied("e1"))

    assert the_end(scheduler.handle(TimerFired(), at(30))).outcome is Outcome.NO_ENDPOINTS
