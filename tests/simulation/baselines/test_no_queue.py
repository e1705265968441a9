"""Where do balancers without a queue send what comes?"""

from headgate.simulation.baselines.no_queue import LeastOutstanding, RoundRobin
from testing.builders import arrived, at, completed, told, unreadied
from tests.simulation.baselines.arranged import sent, with_endpoints


def test_endpoints_take_turns_however_full_they_are() -> None:
    balancer = with_endpoints(RoundRobin(), "e1", "e2")

    assert told(balancer, at(0), *(arrived(name) for name in "abc")) == [
        sent("a", "e1", "its turn"),
        sent("b", "e2", "its turn"),
        sent("c", "e1", "its turn"),
    ]


def test_an_endpoint_that_cannot_serve_loses_its_turn() -> None:
    balancer = with_endpoints(RoundRobin(), "e1", "e2")
    told(balancer, at(0), unreadied("e1"))

    assert told(balancer, at(0), arrived("a"), arrived("b")) == [
        sent("a", "e2", "its turn"),
        sent("b", "e2", "its turn"),
    ]


def test_the_fewest_in_flight_goes_first_and_nothing_is_held_back() -> None:
    balancer = with_endpoints(LeastOutstanding(), "e1", "e2")
    told(balancer, at(0), *(arrived(name) for name in "abcd"), completed("b"), completed("d"))

    assert told(balancer, at(1), *(arrived(name) for name in "efg")) == [
        sent("e", "e2", "least outstanding, 0 in flight before it"),
        sent("f", "e2", "least outstanding, 1 in flight before it"),
        sent("g", "e1", "least outstanding, 2 in flight before it"),
    ]
