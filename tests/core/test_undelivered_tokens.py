"""Non-streaming responses that the engine nevertheless streams to the gateway."""

import pytest

from headgate.core.commands import Dispatch
from headgate.core.events import AttemptProgress, AttemptsProgressed, Event, TimerFired
from headgate.core.request_state import Attempt
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules
from headgate.model.units import RequestId
from testing.builders import (
    a_policy,
    a_scheduler,
    abort,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    dispatch,
    duration,
    eject,
    end,
    endpoint_summary,
    failed,
    first_token,
    joined,
    only_end,
    progressed,
    readied,
    timed_out,
)
from testing.scheduler_sizes import timer_instants
from testing.takeover_reports import a_successor, running_report

UNDELIVERED = first_token("r", delivered=False)


def progress(tokens: int) -> AttemptsProgressed:
    return AttemptsProgressed((AttemptProgress(RequestId("r"), 1, tokens),))


def attempt_of(scheduler: Scheduler) -> Attempt:
    return scheduler._state.attempts.by_number[RequestId("r"), 1]


@pytest.mark.parametrize("ending", [failed("r"), timed_out("r")])
def test_undelivered_response_is_retried_elsewhere_after_first_token(ending: Event) -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r", stream=False))
    commands_for(scheduler, at(1), UNDELIVERED, progressed("r"))

    assert commands_for(scheduler, at(2), ending) == [dispatch("r", "e2", attempt=2)]


def test_response_being_delivered_is_not_retried() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r", stream=False), UNDELIVERED, progressed("r"), first_token("r"))

    assert only_end(commands_for(scheduler, at(2), failed("r"))).reason == "after the first token: connection refused"


def test_undelivered_token_does_not_clear_endpoint_failures() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(consecutive_failures_max=2)))
    commands = commands_for(scheduler, at(0), arrived("r", stream=False), UNDELIVERED, failed("r"))
    assert [type(each) for each in commands] == [Dispatch, Dispatch]

    commands = commands_for(scheduler, at(1), first_token("r", 2, delivered=False), failed("r", 2))

    assert eject("e1", until=at(11), reason="connection refused") in commands


def test_first_token_from_ended_attempt_is_ignored() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", stream=False), completed("r"))

    assert commands_for(scheduler, at(1), UNDELIVERED) == []


def test_prompt_is_counted_as_computed_at_first_token() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", stream=False, prompt_bytes=40_000))
    endpoint = attempt_of(scheduler).endpoint
    assert endpoint.pending_tokens == 10_000

    commands_for(scheduler, at(0.01), UNDELIVERED)

    assert (endpoint.pending_tokens, attempt_of(scheduler).prefilled_at) == (0, at(0.01))
    commands_for(scheduler, at(60), TimerFired())
    assert attempt_of(scheduler).prefilled_at == at(0.01)


def test_decode_speed_is_measured_from_first_token() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", stream=False))
    commands_for(scheduler, at(5), UNDELIVERED)
    commands_for(scheduler, at(6), progress(50))

    assert attempt_of(scheduler).endpoint.itl_ns == duration(1) // 50


def test_disconnected_caller_is_charged_for_reported_tokens() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", stream=False, prompt_bytes=4_000), UNDELIVERED)
    commands_for(scheduler, at(1), progress(7))
    attempt = attempt_of(scheduler)

    commands_for(scheduler, at(9), client_disconnected("r"), aborted("r"))

    assert attempt.tokens_used == (1_000, 0, 7)


def test_failed_attempt_is_settled_with_prompt_and_reported_tokens() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r", stream=False, prompt_bytes=4_000), UNDELIVERED, progress(7))
    attempt = attempt_of(scheduler)

    commands_for(scheduler, at(1), failed("r"))

    assert attempt.tokens_used == (1_000, 0, 7)


def test_undelivered_response_from_stalled_endpoint_is_retried_elsewhere() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r", stream=False), UNDELIVERED)

    assert commands_for(scheduler, at(30), TimerFired()) == [
        eject("e1", until=at(40), reason="no activity for 30 s; streams in flight: 1"),
        abort("r", reason="the endpoint has stalled"),
    ]
    assert commands_for(scheduler, at(31), aborted("r")) == [dispatch("r", "e2", attempt=2)]


def test_response_without_reported_tokens_is_not_aborted_when_streams_stall() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2))
    commands_for(scheduler, at(0), arrived("r", stream=False), arrived("s"), first_token("s"))

    assert abort("r", reason="the endpoint has stalled") not in commands_for(scheduler, at(30), TimerFired())


def test_undelivered_response_is_tracked_and_retried_after_takeover() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), joined("e2"))
    commands_for(
        scheduler, at(0), running_report("r", stream=False, tokens=9, prompt_bytes=40_000, sent_ago=0.1), readied("e2")
    )
    attempt = attempt_of(scheduler)

    assert list(timer_instants(scheduler._state.attempts.prefill_timers)) == []
    assert (attempt.endpoint.pending_tokens, attempt.endpoint.streams) == (0, 1)
    assert commands_for(scheduler, at(1), failed("r")) == [dispatch("r", "e2", attempt=2)]
    assert attempt.tokens_used == (10_000, 0, 9)


def test_complete_response_ends_request_as_completed() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", stream=False), UNDELIVERED, progress(3), first_token("r"))

    assert commands_for(scheduler, at(1), completed("r", tokens=3)) == [end("r", Outcome.COMPLETED, attempts=1)]
    assert endpoint_summary(scheduler, "e1").in_flight == 0
