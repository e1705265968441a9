"""Is an endpoint in the gateway's own zone preferred, as far as its distance is worth?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch
from headgate.core.events import EndpointJoined, RequestArrived
from headgate.core.scheduler import Scheduler
from headgate.model.endpoint import Endpoint
from headgate.model.policy import RoutingRules
from headgate.model.units import MILLISECOND, Duration
from testing.builders import (
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    completed,
    first_token,
    leaving,
    readied,
    told,
)

FAR = Duration(5 * MILLISECOND)


def standing(zone: str, name: str, places: int = 100) -> Endpoint:
    return replace(an_endpoint(name, places=places), zone=zone)


def a_fleet(*endpoints: Endpoint, other_zone_ns: Duration = FAR) -> Scheduler:
    routing = RoutingRules(other_zone_ns=other_zone_ns)
    return a_scheduler(*endpoints, policy=replace(a_policy(), routing=routing))


def asked(scheduler: Scheduler, request: str, zone: str, *, prompt: int = 25) -> str:
    """Where it goes, asked of a gateway in this zone."""
    ticket = replace(arrived(request, prompt_bytes=4 * prompt).ticket, zone=zone)
    [command] = scheduler.handle(RequestArrived(ticket), at(0))
    assert isinstance(command, Dispatch)
    return command.endpoint_id


@pytest.mark.parametrize(("zone", "nearest"), [("a", "near"), ("b", "far"), ("", "far"), ("c", "far")])
def test_of_equals_the_one_in_the_same_zone_is_taken(zone: str, nearest: str) -> None:
    scheduler = a_fleet(standing("b", "far"), standing("a", "near"))

    assert asked(scheduler, "r", zone) == nearest


def test_an_endpoint_of_which_no_zone_is_known_is_no_further_than_another() -> None:
    assert asked(a_fleet(standing("", "unknown"), standing("a", "near")), "r", "a") == "unknown"


def test_more_load_than_the_distance_is_worth_sends_it_to_the_other_zone() -> None:
    scheduler = a_fleet(standing("a", "near"), standing("b", "far"))

    # At 30 us a token the first prompt takes 6 ms, and the distance is 5 ms.
    assert asked(scheduler, "first", "a", prompt=200) == "near"
    assert asked(scheduler, "second", "a") == "far"


def test_less_load_than_the_distance_is_worth_keeps_it_here() -> None:
    scheduler = a_fleet(standing("a", "near"), standing("b", "far"))

    assert asked(scheduler, "first", "a", prompt=100) == "near"
    assert asked(scheduler, "second", "a") == "near"


def test_a_distance_of_nothing_makes_all_zones_alike() -> None:
    scheduler = a_fleet(standing("b", "far"), standing("a", "near"), other_zone_ns=Duration(0))

    assert asked(scheduler, "r", "a") == "far"


def test_a_full_zone_sends_to_the_other() -> None:
    scheduler = a_fleet(standing("a", "near", places=1), standing("b", "far"))

    assert [asked(scheduler, name, "a") for name in ("r1", "r2")] == ["near", "far"]


def test_the_nearest_is_found_among_many_that_are_not() -> None:
    others = [standing("b", f"far{number}") for number in range(50)]
    scheduler = a_fleet(*others, standing("a", "near"))

    assert asked(scheduler, "r", "a") == "near"


def test_gateways_in_two_zones_each_use_their_own() -> None:
    endpoints = [standing(zone, f"{zone}{number}") for number in range(3) for zone in ("a", "b")]
    scheduler = a_fleet(*endpoints)

    for number in range(12):
        zone = "ab"[number % 2]
        assert asked(scheduler, f"r{number}", zone).startswith(zone)
        told(scheduler, at(0), first_token(f"r{number}"))


def test_an_endpoint_may_be_said_to_stand_elsewhere() -> None:
    scheduler = a_fleet(standing("b", "far"), standing("a", "near"))
    told(scheduler, at(0), EndpointJoined(standing("a", "far")), EndpointJoined(standing("b", "near")))

    assert asked(scheduler, "r", "a") == "far"


def test_a_zone_is_forgotten_with_its_last_endpoint() -> None:
    scheduler = a_fleet(standing("a", "e1"), standing("a", "e2"), standing("b", "e3"))
    asked(scheduler, "r", "a")
    pool = scheduler._state.fleet.pools[an_endpoint().pool]

    told(scheduler, at(1), completed("r"), leaving("e3"), leaving("e2"))

    assert list(pool._heaps) == ["a"]
    told(scheduler, at(2), EndpointJoined(standing("c", "e4")), readied("e4"))
    assert sorted(pool._heaps) == ["a", "c"]
