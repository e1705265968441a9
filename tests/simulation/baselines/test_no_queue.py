"""Tests for load balancers without a queue."""

from headgate.simulation.baselines.no_queue import LeastOutstanding, RoundRobin
from testing.builders import arrived, at, commands_for, completed, unreadied
from tests.simulation.baselines.arranged import sent, with_endpoints


def test_round_robin_ignores_load() -> None:
    balancer = with_endpoints(RoundRobin(), "e1", "e2")

    assert commands_for(balancer, at(0), *(arrived(name) for name in "abc")) == [
        sent("a", "e1", "next in turn"),
        sent("b", "e2", "next in turn"),
        sent("c", "e1", "next in turn"),
    ]


def test_round_robin_skips_unready_endpoints() -> None:
    balancer = with_endpoints(RoundRobin(), "e1", "e2")
    commands_for(balancer, at(0), unreadied("e1"))

    assert commands_for(balancer, at(0), arrived("a"), arrived("b")) == [
        sent("a", "e2", "next in turn"),
        sent("b", "e2", "next in turn"),
    ]


def test_least_outstanding_sends_to_the_endpoint_with_fewest_requests_in_flight() -> None:
    balancer = with_endpoints(LeastOutstanding(), "e1", "e2")
    commands_for(balancer, at(0), *(arrived(name) for name in "abcd"), completed("b"), completed("d"))

    assert commands_for(balancer, at(1), *(arrived(name) for name in "efg")) == [
        sent("e", "e2", "least outstanding: 0 in flight"),
        sent("f", "e2", "least outstanding: 1 in flight"),
        sent("g", "e1", "least outstanding: 2 in flight"),
    ]
