"""What does a fixed limit let through?"""

from dataclasses import replace

from headgate.model.outcome import Outcome
from headgate.simulation.baselines.static_cap import StaticCap
from testing.builders import (
    a_class,
    a_policy,
    arrived,
    at,
    client_left,
    completed,
    end,
    failed,
    lasting,
    policy_changed,
    told,
)
from tests.simulation.baselines.arranged import sent, with_endpoints


def test_beyond_the_cap_a_request_is_refused_at_once() -> None:
    cap = with_endpoints(StaticCap(1), "e1", "e2")

    assert told(cap, at(0), arrived("a"), arrived("b"), arrived("c")) == [
        sent("a", "e1", "least outstanding, 0 of 1 before it"),
        sent("b", "e2", "least outstanding, 0 of 1 before it"),
        end("c", Outcome.QUEUE_FULL, "1 requests are in flight at every endpoint and 0 wait", retry_after=1),
    ]


def test_the_end_of_an_attempt_makes_a_place() -> None:
    cap = with_endpoints(StaticCap(1), "e1")
    told(cap, at(0), arrived("a"))

    assert told(cap, at(1), failed("a"), arrived("b")) == [
        end("a", Outcome.ENGINE_FAILED, "connection refused", attempts=1),
        sent("b", "e1", "least outstanding, 0 of 1 before it"),
    ]


def test_those_who_may_wait_go_in_the_order_in_which_they_came() -> None:
    cap = with_endpoints(StaticCap(1, waiting_max=3), "e1")
    told(cap, at(0), arrived("a"), arrived("b", service_class="batch"), arrived("c"), arrived("d"))

    assert told(cap, at(1), client_left("c"), completed("a"), completed("b")) == [
        end("c", Outcome.CANCELLED, "the client left", waited=1),
        end("a", Outcome.COMPLETED, attempts=1),
        sent("b", "e1", "least outstanding, 0 of 1 before it", service_class="batch", waited=1),
        end("b", Outcome.COMPLETED, attempts=1, service_class="batch", waited=1),
        sent("d", "e1", "least outstanding, 0 of 1 before it", waited=1),
    ]


def test_a_full_line_refuses() -> None:
    cap = with_endpoints(StaticCap(1, waiting_max=1), "e1")

    assert told(cap, at(0), arrived("a"), arrived("b"), arrived("c"))[1:] == [
        end("c", Outcome.QUEUE_FULL, "1 requests are in flight at every endpoint and 1 wait", retry_after=1),
    ]


def test_a_line_that_drops_who_is_late_serves_those_behind() -> None:
    cap = with_endpoints(StaticCap(1, waiting_max=3, drops_late=True), "e1")
    hurried = replace(a_class(), ttft_ns=lasting(2))
    told(cap, at(0), policy_changed(a_policy(classes=(hurried, a_class("batch")))))
    told(cap, at(0), arrived("a"), arrived("late"), arrived("easy", service_class="batch"))

    assert told(cap, at(3), completed("a")) == [
        end("a", Outcome.COMPLETED, attempts=1),
        end("late", Outcome.EXPIRED, "its first token cannot come in time", waited=3, retry_after=1),
        sent("easy", "e1", "least outstanding, 0 of 1 before it", service_class="batch", waited=3),
    ]
