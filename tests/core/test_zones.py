"""Routing preference for endpoints in the gateway's zone."""

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
    commands_for,
    completed,
    first_token,
    leaving,
    readied,
)

FAR = Duration(5 * MILLISECOND)


def standing(zone: str, name: str, places: int = 100) -> Endpoint:
    return replace(an_endpoint(name, places=places), zone=zone)


def a_fleet(*endpoints: Endpoint, other_zone_ns: Duration = FAR) -> Scheduler:
    routing = RoutingRules(cross_zone_penalty_ns=other_zone_ns)
    return a_scheduler(*endpoints, policy=replace(a_policy(), routing=routing))


def asked(scheduler: Scheduler, request: str, zone: str, *, prompt: int = 25) -> str:
    """Sends a request from a gateway in this zone and returns its endpoint."""
    ticket = replace(arrived(request, prompt_bytes=4 * prompt).ticket, zone=zone)
    [command] = scheduler.handle(RequestArrived(ticket), at(0))
    assert isinstance(command, Dispatch)
    return command.endpoint_id


@pytest.mark.parametrize(("zone", "nearest"), [("a", "near"), ("b", "far"), ("", "far"), ("c", "far")])
def test_endpoint_in_same_zone_is_preferred_at_equal_load(zone: str, nearest: str) -> None:
    scheduler = a_fleet(standing("b", "far"), standing("a", "near"))

    assert asked(scheduler, "r", zone) == nearest


def test_endpoint_without_zone_has_no_distance() -> None:
    assert asked(a_fleet(standing("", "unknown"), standing("a", "near")), "r", "a") == "unknown"


def test_other_zone_is_used_if_load_exceeds_distance() -> None:
    scheduler = a_fleet(standing("a", "near"), standing("b", "far"))

    # At 30 us per token, the first prompt takes 6 ms. The zone distance is 5 ms.
    assert asked(scheduler, "first", "a", prompt=200) == "near"
    assert asked(scheduler, "second", "a") == "far"


def test_own_zone_is_used_if_load_is_below_distance() -> None:
    scheduler = a_fleet(standing("a", "near"), standing("b", "far"))

    assert asked(scheduler, "first", "a", prompt=100) == "near"
    assert asked(scheduler, "second", "a") == "near"


def test_zero_distance_makes_all_zones_equal() -> None:
    scheduler = a_fleet(standing("b", "far"), standing("a", "near"), other_zone_ns=Duration(0))

    assert asked(scheduler, "r", "a") == "far"


def test_other_zone_is_used_if_own_zone_is_full() -> None:
    scheduler = a_fleet(standing("a", "near", places=1), standing("b", "far"))

    assert [asked(scheduler, name, "a") for name in ("r1", "r2")] == ["near", "far"]


def test_only_endpoint_in_own_zone_is_found_among_many_others() -> None:
    others = [standing("b", f"far{number}") for number in range(50)]
    scheduler = a_fleet(*others, standing("a", "near"))

    assert asked(scheduler, "r", "a") == "near"


def test_gateways_use_endpoints_in_their_own_zone() -> None:
    endpoints = [standing(zone, f"{zone}{number}") for number in range(3) for zone in ("a", "b")]
    scheduler = a_fleet(*endpoints)

    for number in range(12):
        zone = "ab"[number % 2]
        assert asked(scheduler, f"r{number}", zone).startswith(zone)
        commands_for(scheduler, at(0), first_token(f"r{number}"))


def test_endpoint_zone_can_change() -> None:
    scheduler = a_fleet(standing("b", "far"), standing("a", "near"))
    commands_for(scheduler, at(0), EndpointJoined(standing("a", "far")), EndpointJoined(standing("b", "near")))

    assert asked(scheduler, "r", "a") == "far"


def test_zone_is_forgotten_when_its_last_endpoint_leaves() -> None:
    scheduler = a_fleet(standing("a", "e1"), standing("a", "e2"), standing("b", "e3"))
    asked(scheduler, "r", "a")
    pool = scheduler._state.fleet.pools[an_endpoint().pool]

    commands_for(scheduler, at(1), completed("r"), leaving("e3"), leaving("e2"))

    assert list(pool._heaps) == ["a"]
    commands_for(scheduler, at(2), EndpointJoined(standing("c", "e4")), readied("e4"))
    assert sorted(pool._heaps) == ["a", "c"]
