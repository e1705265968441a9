"""What happens when the caller, or the process that holds its request, goes away?"""

import pytest

from headgate.core.events import Event
from headgate.model.outcome import Outcome
from testing.builders import (
    a_scheduler,
    abort,
    aborted,
    arrived,
    at,
    client_left,
    completed,
    dispatch,
    end,
    endpoint_summary,
    failed,
    fell_silent,
    first_token,
    grace_over,
    progressed,
    refused,
    told,
)

GRACE_OVER = "this process is leaving and its grace time is over"


def test_a_client_that_leaves_while_queued_is_cancelled_and_nothing_was_sent() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(client_left("waits"), at(3)) == [
        end("waits", Outcome.CANCELLED, "the client left", waited=3)
    ]
    assert scheduler.handle(completed("runs"), at(4)) == [end("runs", Outcome.COMPLETED, attempts=1)]
    assert scheduler.next_wakeup() is None


def test_a_client_that_leaves_in_flight_is_cancelled_and_its_attempt_aborted() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), first_token("runs"))

    assert scheduler.handle(client_left("runs"), at(1)) == [
        abort("runs", reason="client_left"),
        end("runs", Outcome.CANCELLED, "the client left", attempts=1),
    ]


@pytest.mark.parametrize("ending", [aborted("runs"), completed("runs"), failed("runs"), fell_silent("runs")])
def test_the_place_of_a_cancelled_request_stays_taken_until_its_attempt_has_ended(ending: Event) -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(client_left("runs"), at(1))[-1] == end(
        "runs", Outcome.CANCELLED, "the client left", attempts=1
    )
    assert endpoint_summary(scheduler, "e1").in_flight == 1
    assert scheduler.handle(ending, at(2)) == [dispatch("waits", waited=2)]


def test_a_process_whose_grace_is_over_takes_its_request_back_from_the_endpoint() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"))

    assert scheduler.handle(grace_over("runs"), at(1)) == [
        abort("runs", reason="grace_over"),
        end("runs", Outcome.EVICTED, GRACE_OVER, attempts=1, retry_after=1),
    ]


def test_a_request_that_was_still_queued_when_the_grace_is_over_hears_that_the_process_leaves() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.handle(grace_over("waits"), at(1)) == [
        end("waits", Outcome.DRAINING, GRACE_OVER, waited=1, retry_after=1)
    ]


def test_a_withdrawal_of_what_has_ended_or_never_was_is_ignored() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), completed("r"))

    assert told(scheduler, at(1), client_left("r"), client_left("ghost"), grace_over("r")) == []


@pytest.mark.parametrize(
    "late",
    [first_token("r"), progressed("r"), completed("r"), failed("r"), fell_silent("r"), refused("r"), aborted("r")],
)
def test_what_is_said_late_or_twice_about_an_attempt_that_has_ended_is_ignored(late: Event) -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), completed("r"))

    assert scheduler.handle(late, at(1)) == []
    assert endpoint_summary(scheduler, "e1").in_flight == 0
    assert scheduler.summary().requests == 0


@pytest.mark.parametrize("late", [first_token("r", 1), progressed("r", attempt=1), failed("r", 1), aborted("r", 1)])
def test_what_is_said_late_about_the_attempt_before_does_not_touch_the_present_one(late: Event) -> None:
    scheduler = a_scheduler()
    assert told(scheduler, at(0), arrived("r"), failed("r"))[-1] == dispatch("r", attempt=2)

    assert scheduler.handle(late, at(1)) == []
    assert endpoint_summary(scheduler, "e1").in_flight == 1
    # Had the late word about a first token counted, this would be the end.
    assert scheduler.handle(failed("r", 2), at(2)) == [dispatch("r", attempt=3)]


def test_the_first_token_of_a_cancelled_request_still_speaks_for_its_endpoint() -> None:
    scheduler = a_scheduler(places=4)
    told(scheduler, at(0), *[arrived(name) for name in "abcd"], failed("a"), failed("b"), client_left("c"))

    assert scheduler.handle(first_token("c"), at(1)) == []
    assert scheduler.handle(failed("d"), at(1))[0] == dispatch("d", attempt=2, place="4 of 4")
    assert endpoint_summary(scheduler, "e1").state == "ready"
