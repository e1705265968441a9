"""Tests for the baseline schedulers' common base: admission and how requests end."""

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
    client_disconnected,
    commands_for,
    completed,
    end,
    engine_rejected,
    failed,
    first_token,
    grace_over,
    leaving,
    progressed,
    readied,
    timed_out,
    unreadied,
)
from tests.simulation.baselines.arranged import sent, with_endpoints


def test_request_from_an_unknown_tenant_is_rejected() -> None:
    stand_in = with_endpoints(RoundRobin(), "e1")

    [refusal] = commands_for(stand_in, at(0), arrived("r", "nobody"))

    assert refusal == end("r", Outcome.UNAUTHORIZED, 'unknown tenant "nobody"; check the API key', service_class=None)


def test_request_is_rejected_if_no_endpoint_is_ready() -> None:
    stand_in = with_endpoints(RoundRobin(), "e1")
    commands_for(stand_in, at(0), unreadied("e1"))

    refusal = commands_for(stand_in, at(1), arrived("r"))

    assert refusal == [end("r", Outcome.NO_ENDPOINTS, "no endpoint is ready", retry_after=1)]
    assert commands_for(stand_in, at(2), readied("e1"), arrived("s")) == [sent("s", "e1", "next in turn")]


@pytest.mark.parametrize(
    ("ending", "outcome", "reason"),
    [
        (completed("r"), Outcome.COMPLETED, ""),
        (failed("r"), Outcome.ENGINE_ERROR, "connection refused"),
        (timed_out("r"), Outcome.ENGINE_TIMEOUT, "no token in time"),
        (engine_rejected("r"), Outcome.ENGINE_REJECTED, "context too long"),
    ],
)
def test_request_ends_with_its_only_attempt(ending: AttemptEnded, outcome: Outcome, reason: str) -> None:
    stand_in = with_endpoints(RoundRobin(), "e1")
    commands_for(stand_in, at(0), arrived("r"), first_token("r"), progressed("r"))

    assert commands_for(stand_in, at(5), ending) == [end("r", outcome, reason, attempts=1)]


def test_slot_is_freed_only_when_the_aborted_attempt_ends() -> None:
    stand_in = with_endpoints(LeastOutstanding(), "e1", "e2")
    commands_for(stand_in, at(0), arrived("a"), arrived("b"))

    assert commands_for(stand_in, at(1), client_disconnected("a")) == [
        abort("a", "e1", reason="client_disconnected"),
        end("a", Outcome.CANCELLED, "the client disconnected", attempts=1),
    ]
    assert commands_for(stand_in, at(1), completed("b"), arrived("c")) == [
        end("b", Outcome.COMPLETED, attempts=1),
        sent("c", "e2", "least outstanding: 0 in flight"),
    ]
    assert commands_for(stand_in, at(1), aborted("a"), arrived("d")) == [
        sent("d", "e1", "least outstanding: 0 in flight")
    ]


def test_request_ends_once_if_its_client_disconnects_twice() -> None:
    stand_in = with_endpoints(RoundRobin(), "e1")
    commands_for(stand_in, at(0), arrived("r"), client_disconnected("r"))

    assert commands_for(stand_in, at(1), client_disconnected("r"), aborted("r")) == []


def test_requests_end_with_a_shutdown_reason_after_the_grace_period() -> None:
    stand_in = with_endpoints(StaticCap(1, queue_length_max=1), "e1")
    commands_for(stand_in, at(0), arrived("sent"), arrived("waits"))

    assert commands_for(stand_in, at(3), grace_over("waits"), grace_over("sent")) == [
        end("waits", Outcome.DRAINING, "the gateway is shutting down", waited=3, retry_after=1),
        abort("sent", reason="shutdown"),
        end("sent", Outcome.EVICTED, "the gateway is shutting down", attempts=1, retry_after=1),
    ]


def test_leaving_endpoint_gets_no_new_requests() -> None:
    stand_in = with_endpoints(RoundRobin(), "e1", "e2")
    commands_for(stand_in, at(0), arrived("a"), leaving("e1"), leaving("e2"))

    assert commands_for(stand_in, at(1), arrived("b")) == [
        end("b", Outcome.NO_ENDPOINTS, "no endpoint is ready", retry_after=1)
    ]
    assert commands_for(stand_in, at(2), completed("a")) == [end("a", Outcome.COMPLETED, attempts=1)]
