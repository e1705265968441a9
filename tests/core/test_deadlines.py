"""Tests for caller deadlines."""

import pytest

from headgate.core.events import TimerFired
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    a_scheduler_without_endpoints,
    abort,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    dispatch,
    end,
    endpoint_summary,
    engine_rejected,
    failed,
    first_token,
    joined,
    only_end,
    policy_changed,
    progressed,
    readied,
    timed_out,
)
from testing.scheduler_sizes import scheduler_sizes

PASSED = "the caller's deadline has passed"
LESS = "allow more time or send a smaller request"


def over(allowed: str, how: str, goal: str = "the complete response") -> str:
    return f"the caller's deadline of {allowed} for {goal} passed {how}; {LESS}"


# Queued requests


@pytest.mark.parametrize(
    ("limits", "goal"),
    [({"complete_within": 5}, "the complete response"), ({"first_token_within": 5}, "the first token")],
)
def test_queued_request_ends_when_its_deadline_passes(limits: dict[str, float], goal: str) -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", stream=False))
    commands_for(scheduler, at(1), arrived("waits", **limits))

    assert scheduler.next_wakeup() == at(6)
    assert scheduler.handle(TimerFired(), at(5.999)) == []
    assert scheduler.handle(TimerFired(), at(6)) == [
        end(
            "waits",
            Outcome.DEADLINE_EXCEEDED,
            over("5 s", 'while the request waited in class "interactive"', goal),
            waited=5,
        )
    ]
    assert scheduler.next_wakeup() is None
    assert scheduler.summary().queued["interactive"] == 0


def test_request_with_a_passed_deadline_is_not_sent_even_if_the_timer_is_late() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", stream=False), arrived("dead", complete_within=5), arrived("alive"))

    assert scheduler.handle(completed("runs"), at(5)) == [
        end(
            "dead", Outcome.DEADLINE_EXCEEDED, over("5 s", 'while the request waited in class "interactive"'), waited=5
        ),
        end("runs", Outcome.COMPLETED, attempts=1),
        dispatch("alive", waited=5),
    ]


@pytest.mark.parametrize(
    ("allowed", "outcome"),
    [(29.999, Outcome.DEADLINE_EXCEEDED), (30, Outcome.DEADLINE_EXCEEDED), (30.001, Outcome.QUEUE_TIMEOUT)],
)
def test_earlier_of_queue_timeout_and_deadline_applies(allowed: float, outcome: Outcome) -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", stream=False), arrived("waits", complete_within=allowed))
    commands_for(scheduler, at(1), TimerFired())

    assert scheduler.next_wakeup() == at(min(allowed, 30))
    # The result is the same if the timer fires late.
    assert only_end(scheduler.handle(TimerFired(), at(40))).outcome is outcome
    assert scheduler.next_wakeup() is None


def test_passed_deadline_is_reported_even_if_no_endpoint_is_available() -> None:
    scheduler = a_scheduler_without_endpoints()
    commands_for(scheduler, at(0), joined("e1"), arrived("r", complete_within=3))

    assert only_end(scheduler.handle(TimerFired(), at(3))).outcome is Outcome.DEADLINE_EXCEEDED


@pytest.mark.parametrize("left", [0, -3])
@pytest.mark.parametrize("which", ["complete_within", "first_token_within"])
def test_request_with_a_passed_deadline_is_rejected_on_arrival(which: str, left: float) -> None:
    scheduler = a_scheduler()
    goal = "the complete response" if which == "complete_within" else "the first token"

    assert scheduler.handle(arrived("r", **{which: left}), at(1)) == [
        end(
            "r",
            Outcome.DEADLINE_EXCEEDED,
            f"the caller's deadline for {goal} had passed before the request arrived; allow more time",
        )
    ]
    assert (scheduler.summary().requests, scheduler.next_wakeup()) == (0, None)


def test_invalid_request_is_reported_before_a_passed_deadline() -> None:
    scheduler = a_scheduler()

    assert only_end(scheduler.handle(arrived("r", model="gpt", complete_within=0), at(1))).outcome is (
        Outcome.MODEL_NOT_FOUND
    )


def test_earlier_of_two_deadlines_is_reported() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", stream=False))
    commands_for(scheduler, at(0), arrived("a", first_token_within=2, complete_within=9))
    commands_for(scheduler, at(0), arrived("b", first_token_within=9, complete_within=3))
    commands_for(scheduler, at(0), arrived("c", first_token_within=4, complete_within=4))

    reasons = [only_end(scheduler.handle(TimerFired(), at(moment))).reason for moment in (2, 3, 4)]

    where = 'while the request waited in class "interactive"'
    assert reasons == [over("2 s", where, "the first token"), over("3 s", where), over("4 s", where)]


# Running requests


def test_running_request_is_aborted_when_its_completion_deadline_passes() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", complete_within=5))
    commands_for(scheduler, at(1), first_token("r"))
    commands_for(scheduler, at(4), progressed("r"))

    assert scheduler.next_wakeup() == at(5)
    assert scheduler.handle(TimerFired(), at(5)) == [
        abort("r", reason=PASSED),
        end("r", Outcome.DEADLINE_EXCEEDED, over("5 s", "while attempt 1 was running"), attempts=1),
    ]


def test_running_request_is_aborted_if_no_first_token_arrives_in_time() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", first_token_within=2, complete_within=9))

    assert scheduler.handle(TimerFired(), at(2)) == [
        abort("r", reason=PASSED),
        end("r", Outcome.DEADLINE_EXCEEDED, over("2 s", "while attempt 1 was running", "the first token"), attempts=1),
    ]


def test_completion_deadline_applies_after_a_timely_first_token() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(stall_ns_max=10**12)))
    commands_for(scheduler, at(0), arrived("r", first_token_within=2, complete_within=9))
    commands_for(scheduler, at(1.999), first_token("r"))

    assert scheduler.next_wakeup() == at(9)
    assert scheduler.handle(TimerFired(), at(8.999)) == []
    assert scheduler.handle(TimerFired(), at(9))[0] == abort("r", reason=PASSED)


def test_timely_first_token_clears_the_first_token_deadline() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", first_token_within=2, stream=False))
    commands_for(scheduler, at(1), first_token("r"), first_token("r"))

    assert scheduler.next_wakeup() is None
    assert scheduler.handle(completed("r"), at(999)) == [end("r", Outcome.COMPLETED, attempts=1)]


def test_first_token_at_the_deadline_is_too_late() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", first_token_within=2))

    assert [type(each).__name__ for each in scheduler.handle(first_token("r"), at(2))] == ["Abort", "End"]


def test_slot_held_by_a_late_request_is_freed_when_its_attempt_ends() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", complete_within=5), arrived("next"))

    assert scheduler.handle(TimerFired(), at(5))[1:] == [
        end("r", Outcome.DEADLINE_EXCEEDED, over("5 s", "while attempt 1 was running"), attempts=1)
    ]
    assert endpoint_summary(scheduler, "e1").in_flight == 1
    assert scheduler.handle(aborted("r"), at(6)) == [dispatch("next", waited=6)]


def test_deadline_does_not_affect_endpoint_health() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=2)), places=2)
    commands_for(scheduler, at(0), arrived("x"), failed("x"))
    commands_for(scheduler, at(1), arrived("late", complete_within=1))
    commands_for(scheduler, at(2), aborted("late"))

    # There was already one failure. The deadline neither adds another nor resets the count.
    assert endpoint_summary(scheduler, "e1").state == "ready"
    commands = scheduler.handle(failed("x", attempt=2), at(3))
    assert [type(each).__name__ for each in commands] == ["Eject"]


def test_trial_ended_by_a_deadline_is_inconclusive() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=1)))
    commands_for(scheduler, at(0), arrived("x"), first_token("x"), failed("x"))
    commands_for(scheduler, at(10), arrived("late", complete_within=1))
    commands_for(scheduler, at(11), aborted("late"))

    assert endpoint_summary(scheduler, "e1").state == "trial"


# Events at the deadline


def test_response_completing_before_the_deadline_timer_fires_is_completed() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", complete_within=5))

    assert scheduler.handle(completed("r"), at(6)) == [end("r", Outcome.COMPLETED, attempts=1)]
    assert scheduler.next_wakeup() is None


def test_engine_rejection_received_at_the_deadline_is_kept() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", complete_within=5))

    assert only_end(scheduler.handle(engine_rejected("r"), at(5))).outcome is Outcome.ENGINE_REJECTED


@pytest.mark.parametrize("ends", [failed, timed_out])
def test_attempt_failing_at_the_deadline_is_not_retried(ends: type) -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r", complete_within=5))

    assert scheduler.handle(ends("r", detail="connection reset"), at(5)) == [
        end("r", Outcome.DEADLINE_EXCEEDED, over("5 s", "when attempt 1 ended: connection reset"), attempts=1)
    ]
    assert scheduler.next_wakeup() is None


def test_event_from_an_earlier_attempt_does_not_delay_the_deadline() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r", complete_within=5))
    commands_for(scheduler, at(1), failed("r"))

    assert scheduler.handle(failed("r", attempt=1), at(5)) == [
        abort("r", "e2", attempt=2, reason=PASSED),
        end("r", Outcome.DEADLINE_EXCEEDED, over("5 s", "while attempt 2 was running"), attempts=2),
    ]


def test_event_from_another_request_does_not_delay_the_deadline() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("r", complete_within=5), arrived("other"))

    commands = scheduler.handle(completed("other"), at(5))

    assert [each.request_id for each in commands] == ["r", "r", "other"]


def test_deadline_ends_a_request_on_a_stalled_endpoint() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(stall_ns_max=4 * 10**9)))
    commands_for(scheduler, at(0), arrived("r", complete_within=5), first_token("r"))
    commands_for(scheduler, at(4), TimerFired())

    assert scheduler.handle(TimerFired(), at(5))[-1] == end(
        "r", Outcome.DEADLINE_EXCEEDED, over("5 s", "while attempt 1 was running"), attempts=1
    )


# Retries, policy changes and cleanup


def test_retry_keeps_the_original_deadline() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("full", stream=False), arrived("r", "bolt", complete_within=5))
    commands_for(scheduler, at(3), failed("r"))

    # The request waits for the other endpoint. Its queue timeout would be 30 s.
    assert scheduler.next_wakeup() == at(5)
    assert scheduler.handle(TimerFired(), at(5)) == [
        end(
            "r",
            Outcome.DEADLINE_EXCEEDED,
            over("5 s", 'while the request waited in class "interactive"'),
            attempts=1,
            waited=2,
        )
    ]


def test_policy_change_keeps_deadlines() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs", complete_within=5), arrived("waits", first_token_within=7))
    commands_for(scheduler, at(1), policy_changed(a_policy(classes=(a_class("interactive", queue_wait=1),))))

    assert scheduler.next_wakeup() == at(5)
    assert [each.request_id for each in scheduler.handle(TimerFired(), at(5))] == ["runs", "runs"]
    assert only_end(scheduler.handle(TimerFired(), at(7))).request_id == "waits"


@pytest.mark.parametrize("last", [client_disconnected, completed])
def test_deadline_is_forgotten_with_its_request(last: type) -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", complete_within=5, first_token_within=1), last("r"))

    assert scheduler_sizes(scheduler).deadlines == 0
    assert scheduler.next_wakeup() is None


def test_deadline_is_not_kept_for_a_rejected_request() -> None:
    scheduler = a_scheduler(policy=a_policy(classes=(a_class(queue_length_max=1),)))
    commands_for(
        scheduler, at(0), arrived("runs", stream=False), arrived("waits"), arrived("rejected", complete_within=5)
    )

    assert scheduler_sizes(scheduler).deadlines == 0


def test_deadlines_expire_in_chronological_order() -> None:
    scheduler = a_scheduler(places=2)
    commands_for(scheduler, at(0), arrived("a", complete_within=3), arrived("b", complete_within=1))
    commands_for(scheduler, at(0), arrived("c", complete_within=2), readied("e1"))

    ended = [each.request_id for each in scheduler.handle(TimerFired(), at(9)) if type(each).__name__ == "End"]

    assert ended == ["b", "c", "a"]
