"""Does a stand-in keep its books as the scheduler does, whatever happens?"""

import pytest

from headgate.core.events import AttemptEnded
from headgate.model.outcome import Outcome
from headgate.simulation.baselines.no_queue import LeastOutstanding, RoundRobin
from headgate.simulation.baselines.static_cap import StaticCap
from testing.builders import (
    abort,
    aborted,
    arrived,
    at,
    client_left,
    completed,
    end,
    failed,
    fell_silent,
    first_token,
    grace_over,
    leaving,
    progressed,
    readied,
    refused,
    told,
    unreadied,
)
from tests.simulation.baselines.arranged import sent, with_endpoints


def test_a_request_that_no_policy_allows_is_refused_as_by_the_scheduler() -> None:
    stand_in = with_endpoints(RoundRobin(), "e1")

    [refusal] = told(stand_in, at(0), arrived("r", "nobody"))

    assert refusal == end(
        "r", Outcome.UNAUTHORIZED, 'tenant "nobody" is not known; check the API key', service_class=None
    )


def test_without_a_ready_endpoint_nobody_waits() -> None:
    stand_in = with_endpoints(RoundRobin(), "e1")
    told(stand_in, at(0), unreadied("e1"))

    refusal = told(stand_in, at(1), arrived("r"))

    assert refusal == [end("r", Outcome.NO_ENDPOINTS, "no endpoint is ready", retry_after=1)]
    assert told(stand_in, at(2), readied("e1"), arrived("s")) == [sent("s", "e1", "its turn")]


@pytest.mark.parametrize(
    ("ending", "outcome", "reason"),
    [
        (completed("r"), Outcome.COMPLETED, ""),
        (failed("r"), Outcome.ENGINE_FAILED, "connection refused"),
        (fell_silent("r"), Outcome.ENGINE_SILENT, "no token in time"),
        (refused("r"), Outcome.ENGINE_REFUSED, "context too long"),
    ],
)
def test_the_end_of_the_only_attempt_is_the_end(ending: AttemptEnded, outcome: Outcome, reason: str) -> None:
    stand_in = with_endpoints(RoundRobin(), "e1")
    told(stand_in, at(0), arrived("r"), first_token("r"), progressed("r"))

    assert told(stand_in, at(5), ending) == [end("r", outcome, reason, attempts=1)]


def test_who_leaves_frees_the_place_only_when_the_attempt_has_ended() -> None:
    stand_in = with_endpoints(LeastOutstanding(), "e1", "e2")
    told(stand_in, at(0), arrived("a"), arrived("b"))

    assert told(stand_in, at(1), client_left("a")) == [
        abort("a", "e1", reason="client_left"),
        end("a", Outcome.CANCELLED, "the client left", attempts=1),
    ]
    assert told(stand_in, at(1), completed("b"), arrived("c")) == [
        end("b", Outcome.COMPLETED, attempts=1),
        sent("c", "e2", "least outstanding, 0 in flight before it"),
    ]
    assert told(stand_in, at(1), aborted("a"), arrived("d")) == [
        sent("d", "e1", "least outstanding, 0 in flight before it")
    ]


def test_who_leaves_twice_ends_once() -> None:
    stand_in = with_endpoints(RoundRobin(), "e1")
    told(stand_in, at(0), arrived("r"), client_left("r"))

    assert told(stand_in, at(1), client_left("r"), aborted("r")) == []


def test_a_process_that_leaves_says_so() -> None:
    stand_in = with_endpoints(StaticCap(1, waiting_max=1), "e1")
    told(stand_in, at(0), arrived("sent"), arrived("waits"))

    assert told(stand_in, at(3), grace_over("waits"), grace_over("sent")) == [
        end("waits", Outcome.DRAINING, "this process is leaving", waited=3, retry_after=1),
        abort("sent", reason="grace_over"),
        end("sent", Outcome.EVICTED, "this process is leaving", attempts=1, retry_after=1),
    ]


def test_an_endpoint_that_leaves_gets_nothing_more() -> None:
    stand_in = with_endpoints(RoundRobin(), "e1", "e2")
    told(stand_in, at(0), arrived("a"), leaving("e1"), leaving("e2"))

    assert told(stand_in, at(1), arrived("b")) == [
        end("b", Outcome.NO_ENDPOINTS, "no endpoint is ready", retry_after=1)
    ]
    assert told(stand_in, at(2), completed("a")) == [end("a", Outcome.COMPLETED, attempts=1)]
