"""The scheduler tracks a response that its engine streams and its caller receives unstreamed."""

import pytest

from headgate.core.commands import Dispatch
from headgate.core.events import AttemptProgress, Event, Progressed, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.core.state import Attempt
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
    client_left,
    completed,
    dispatch,
    eject,
    end,
    endpoint_summary,
    failed,
    fell_silent,
    first_token,
    joined,
    lasting,
    progressed,
    readied,
    the_end,
    told,
)
from testing.inside import moments
from testing.reports import a_successor, runs

UNDELIVERED = first_token("r", delivered=False)


def progress(tokens: int) -> Progressed:
    return Progressed((AttemptProgress(RequestId("r"), 1, tokens),))


def attempt_of(scheduler: Scheduler) -> Attempt:
    return scheduler._state.attempts.by_number[RequestId("r"), 1]


@pytest.mark.parametrize("ending", [failed("r"), fell_silent("r")])
def test_an_undelivered_answer_is_retried_elsewhere_after_its_first_token(ending: Event) -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r", stream=False))
    told(scheduler, at(1), UNDELIVERED, progressed("r"))

    assert told(scheduler, at(2), ending) == [dispatch("r", "e2", attempt=2)]


def test_an_answer_that_is_being_delivered_is_not_retried() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r", stream=False), UNDELIVERED, progressed("r"), first_token("r"))

    assert the_end(told(scheduler, at(2), failed("r"))).reason == "after the first token: connection refused"


def test_an_undelivered_token_does_not_clear_the_failures_of_its_endpoint() -> None:
    scheduler = a_scheduler(policy=a_policy(health=HealthRules(failures_max=2)))
    commands = told(scheduler, at(0), arrived("r", stream=False), UNDELIVERED, failed("r"))
    assert [type(each) for each in commands] == [Dispatch, Dispatch]

    commands = told(scheduler, at(1), first_token("r", 2, delivered=False), failed("r", 2))

    assert eject("e1", until=at(11), reason="connection refused") in commands


def test_a_first_token_of_an_attempt_that_has_ended_changes_nothing() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", stream=False), completed("r"))

    assert told(scheduler, at(1), UNDELIVERED) == []


def test_prompt_counts_as_computed_at_its_first_token() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", stream=False, prompt_bytes=40_000))
    endpoint = attempt_of(scheduler).endpoint
    assert endpoint.pending_tokens == 10_000

    told(scheduler, at(0.01), UNDELIVERED)

    assert (endpoint.pending_tokens, attempt_of(scheduler).computed_at) == (0, at(0.01))
    told(scheduler, at(60), TimerFired())
    assert attempt_of(scheduler).computed_at == at(0.01)


def test_decode_speed_is_measured_from_the_first_token() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", stream=False))
    told(scheduler, at(5), UNDELIVERED)
    told(scheduler, at(6), progress(50))

    assert attempt_of(scheduler).endpoint.itl_ns == lasting(1) // 50


def test_a_caller_that_leaves_is_charged_for_the_tokens_that_were_reported() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", stream=False, prompt_bytes=4_000), UNDELIVERED)
    told(scheduler, at(1), progress(7))
    attempt = attempt_of(scheduler)

    told(scheduler, at(9), client_left("r"), aborted("r"))

    assert attempt.used == (1_000, 0, 7)


def test_a_failed_attempt_is_settled_with_its_prompt_and_its_tokens() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r", stream=False, prompt_bytes=4_000), UNDELIVERED, progress(7))
    attempt = attempt_of(scheduler)

    told(scheduler, at(1), failed("r"))

    assert attempt.used == (1_000, 0, 7)


def test_undelivered_responses_of_a_stalled_endpoint_are_retried_elsewhere() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r", stream=False), UNDELIVERED)

    assert told(scheduler, at(30), TimerFired()) == [
        eject("e1", until=at(40), reason="no sign of life for 30 s; streams in flight: 1"),
        abort("r", reason="its endpoint shows no sign of life"),
    ]
    assert told(scheduler, at(31), aborted("r")) == [dispatch("r", "e2", attempt=2)]


def test_responses_without_reported_tokens_are_not_aborted_when_streams_stall() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2))
    told(scheduler, at(0), arrived("r", stream=False), arrived("s"), first_token("s"))

    assert abort("r", reason="its endpoint shows no sign of life") not in told(scheduler, at(30), TimerFired())


def test_successor_tracks_an_undelivered_response_and_may_retry_it() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), joined("e2"))
    told(scheduler, at(0), runs("r", stream=False, tokens=9, prompt_bytes=40_000, sent_ago=0.1), readied("e2"))
    attempt = attempt_of(scheduler)

    assert list(moments(scheduler._state.attempts.prefills)) == []
    assert (attempt.endpoint.pending_tokens, attempt.endpoint.streams) == (0, 1)
    assert told(scheduler, at(1), failed("r")) == [dispatch("r", "e2", attempt=2)]
    assert attempt.used == (10_000, 0, 9)


def test_complete_response_ends_its_request_as_completed() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", stream=False), UNDELIVERED, progress(3), first_token("r"))

    assert told(scheduler, at(1), completed("r", tokens=3)) == [end("r", Outcome.COMPLETED, attempts=1)]
    assert endpoint_summary(scheduler, "e1").in_flight == 0
