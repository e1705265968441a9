"""Tests for the baseline with a fixed limit on requests in flight."""

from dataclasses import replace

from headgate.model.outcome import Outcome
from headgate.simulation.baselines.static_cap import StaticCap
from testing.builders import (
    a_class,
    a_policy,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    duration,
    end,
    failed,
    policy_changed,
)
from tests.simulation.baselines.arranged import sent, with_endpoints


def test_request_beyond_the_cap_is_rejected() -> None:
    cap = with_endpoints(StaticCap(1), "e1", "e2")

    assert commands_for(cap, at(0), arrived("a"), arrived("b"), arrived("c")) == [
        sent("a", "e1", "least outstanding: 0 of 1 in flight"),
        sent("b", "e2", "least outstanding: 0 of 1 in flight"),
        end("c", Outcome.QUEUE_FULL, "every endpoint is at its limit of 1 in flight; 0 waiting", retry_after=1),
    ]


def test_ending_an_attempt_frees_its_slot() -> None:
    cap = with_endpoints(StaticCap(1), "e1")
    commands_for(cap, at(0), arrived("a"))

    assert commands_for(cap, at(1), failed("a"), arrived("b")) == [
        end("a", Outcome.ENGINE_ERROR, "connection refused", attempts=1),
        sent("b", "e1", "least outstanding: 0 of 1 in flight"),
    ]


def test_queued_requests_are_sent_in_order_of_arrival() -> None:
    cap = with_endpoints(StaticCap(1, queue_length_max=3), "e1")
    commands_for(cap, at(0), arrived("a"), arrived("b", service_class="batch"), arrived("c"), arrived("d"))

    assert commands_for(cap, at(1), client_disconnected("c"), completed("a"), completed("b")) == [
        end("c", Outcome.CANCELLED, "the client disconnected", waited=1),
        end("a", Outcome.COMPLETED, attempts=1),
        sent("b", "e1", "least outstanding: 0 of 1 in flight", service_class="batch", waited=1),
        end("b", Outcome.COMPLETED, attempts=1, service_class="batch", waited=1),
        sent("d", "e1", "least outstanding: 0 of 1 in flight", waited=1),
    ]


def test_request_is_rejected_if_the_queue_is_full() -> None:
    cap = with_endpoints(StaticCap(1, queue_length_max=1), "e1")

    assert commands_for(cap, at(0), arrived("a"), arrived("b"), arrived("c"))[1:] == [
        end("c", Outcome.QUEUE_FULL, "every endpoint is at its limit of 1 in flight; 1 waiting", retry_after=1),
    ]


def test_expired_requests_are_dropped_from_the_queue() -> None:
    cap = with_endpoints(StaticCap(1, queue_length_max=3, expires_late=True), "e1")
    hurried = replace(a_class(), ttft_ns=duration(2))
    commands_for(cap, at(0), policy_changed(a_policy(classes=(hurried, a_class("batch")))))
    commands_for(cap, at(0), arrived("a"), arrived("late"), arrived("easy", service_class="batch"))

    assert commands_for(cap, at(3), completed("a")) == [
        end("a", Outcome.COMPLETED, attempts=1),
        end("late", Outcome.QUEUE_TIMEOUT, "the TTFT target has passed", waited=3, retry_after=1),
        sent("easy", "e1", "least outstanding: 0 of 1 in flight", service_class="batch", waited=3),
    ]
