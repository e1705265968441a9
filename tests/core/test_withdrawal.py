"""Requests withdrawn by a client disconnect or a gateway shutdown."""

import pytest

from headgate.core.events import Event
from headgate.model.outcome import Outcome
from testing.builders import (
    a_scheduler,
    abort,
    aborted,
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
    grace_over,
    progressed,
    timed_out,
)

GRACE_OVER = "the gateway is shutting down and its grace period has ended"


def test_disconnect_while_queued_cancels_request() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(client_disconnected("waits"), at(3)) == [
        end("waits", Outcome.CANCELLED, "the client disconnected", waited=3)
    ]
    assert scheduler.handle(completed("runs"), at(4)) == [end("runs", Outcome.COMPLETED, attempts=1)]
    assert scheduler.next_wakeup() is None


def test_disconnect_in_flight_cancels_request_and_aborts_attempt() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), first_token("runs"))

    assert scheduler.handle(client_disconnected("runs"), at(1)) == [
        abort("runs", reason="client_disconnected"),
        end("runs", Outcome.CANCELLED, "the client disconnected", attempts=1),
    ]


@pytest.mark.parametrize("ending", [aborted("runs"), completed("runs"), failed("runs"), timed_out("runs")])
def test_slot_for_a_cancelled_request_stays_occupied_until_attempt_ends(ending: Event) -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(client_disconnected("runs"), at(1))[-1] == end(
        "runs", Outcome.CANCELLED, "the client disconnected", attempts=1
    )
    assert endpoint_summary(scheduler, "e1").in_flight == 1
    assert scheduler.handle(ending, at(2)) == [dispatch("waits", waited=2)]


def test_running_request_is_evicted_when_grace_period_ends() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"))

    assert scheduler.handle(grace_over("runs"), at(1)) == [
        abort("runs", reason="shutdown"),
        end("runs", Outcome.EVICTED, GRACE_OVER, attempts=1, retry_after=1),
    ]


def test_queued_request_ends_as_draining_when_grace_period_ends() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(grace_over("waits"), at(1)) == [
        end("waits", Outcome.DRAINING, GRACE_OVER, waited=1, retry_after=1)
    ]


def test_withdrawing_an_ended_or_unknown_request_is_ignored() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), completed("r"))

    assert commands_for(scheduler, at(1), client_disconnected("r"), client_disconnected("ghost"), grace_over("r")) == []


@pytest.mark.parametrize(
    "late",
    [
        first_token("r"),
        progressed("r"),
        completed("r"),
        failed("r"),
        timed_out("r"),
        engine_rejected("r"),
        aborted("r"),
    ],
)
def test_late_or_repeated_event_for_ended_attempt_is_ignored(late: Event) -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), completed("r"))

    assert scheduler.handle(late, at(1)) == []
    assert endpoint_summary(scheduler, "e1").in_flight == 0
    assert scheduler.summary().requests == 0


@pytest.mark.parametrize("late", [first_token("r", 1), progressed("r", attempt=1), failed("r", 1), aborted("r", 1)])
def test_late_event_for_previous_attempt_does_not_affect_current_one(late: Event) -> None:
    scheduler = a_scheduler()
    assert commands_for(scheduler, at(0), arrived("r"), failed("r"))[-1] == dispatch("r", attempt=2)

    assert scheduler.handle(late, at(1)) == []
    assert endpoint_summary(scheduler, "e1").in_flight == 1
    # If the late first token had counted, this failure would end the request.
    assert scheduler.handle(failed("r", 2), at(2)) == [dispatch("r", attempt=3)]


def test_first_token_for_cancelled_request_clears_endpoint_failures() -> None:
    scheduler = a_scheduler(places=4)
    commands_for(
        scheduler, at(0), *[arrived(name) for name in "abcd"], failed("a"), failed("b"), client_disconnected("c")
    )

    assert scheduler.handle(first_token("c"), at(1)) == []
    assert scheduler.handle(failed("d"), at(1))[0] == dispatch("d", attempt=2, place="4 of 4")
    assert endpoint_summary(scheduler, "e1").state == "ready"
