"""All members' shares add up to the total capacity."""

from dataclasses import replace

import pytest

from headgate.core.events import EndpointJoined
from headgate.hosts.cell.protocol.known_endpoints import KnownEndpoints
from headgate.hosts.cell.protocol.messages import Share
from headgate.hosts.cell.protocol.shares import (
    island_endpoint,
    island_policy,
    places_of,
    remaining_adapters,
    remaining_policy,
)
from headgate.model.limits import Limits
from headgate.model.overrides import DrainEndpoint, SetSetting, Throttle
from headgate.model.policy import Pool
from headgate.model.tenant import Tenant
from headgate.model.units import EndpointId, PoolName, TenantId
from testing.builders import a_policy, an_endpoint, at


@pytest.mark.parametrize("places", [0, 1, 3, 4, 7, 64])
@pytest.mark.parametrize("members", [1, 2, 3, 4, 5, 8])
def test_endpoint_shares_add_up_to_its_slots(places: int, members: int) -> None:
    shares = [places_of(Share(rank, members), EndpointId("e1"), places) for rank in range(members)]

    assert sum(shares) == places
    assert max(shares) - min(shares) <= 1


def test_every_member_gets_a_slot_if_endpoints_have_fewer_slots_than_members() -> None:
    names = [EndpointId(f"e{number}") for number in range(40)]

    for rank in range(4):
        assert any(places_of(Share(rank, 4), name, 1) for name in names)


@pytest.mark.parametrize("members", [2, 3, 5])
def test_islands_have_the_same_slots_on_all_endpoints_of_a_shared_engine(members: int) -> None:
    endpoints = [replace(an_endpoint(name, places=7), engine="host:1") for name in ("a/e", "b/e", "c/e")]
    shares = [[island_endpoint(Share(rank, members), each) for each in endpoints] for rank in range(members)]
    slots = [{0 if each is None else each.in_flight_max for each in share} for share in shares]

    assert all(len(each) == 1 for each in slots)
    assert sum(each.pop() for each in slots) == 7


def test_endpoints_of_a_shared_engine_are_found_together() -> None:
    known = KnownEndpoints()
    for name, engine in (("a/e", "x"), ("b/e", "x"), ("c/e", "y"), ("d/e", "")):
        known.apply_event(EndpointJoined(replace(an_endpoint(name), engine=engine)))

    assert known.sharing(EndpointId("b/e")) == ("a/e", "b/e")
    assert known.sharing(EndpointId("d/e")) == ("d/e",)
    assert known.sharing(EndpointId("unknown")) == ("unknown",)


def test_island_does_not_use_an_endpoint_without_a_slot_of_its_own() -> None:
    shares = [island_endpoint(Share(rank, 2), an_endpoint(places=1)) for rank in range(2)]

    assert sorted(each is None for each in shares) == [False, True]


def test_shares_of_absent_members_and_the_rest_add_up_to_the_total() -> None:
    limited = replace(
        a_policy(),
        tenants=(Tenant(TenantId("acme"), limits=Limits(requests_per_minute=10, concurrency=4)),),
        pools=(Pool(PoolName("p"), kv_tokens=1_000, max_lora=8),),
        overrides=(
            Throttle(TenantId("acme"), Limits(requests_per_minute=6), at(9)),
            DrainEndpoint(EndpointId("e1"), at(9)),
        ),
    )
    own, rest = island_policy(Share(0, 4), limited), remaining_policy(limited, taken=3, of=4)

    assert 3 * (own.pools[0].kv_tokens or 0) + (rest.pools[0].kv_tokens or 0) == 1_000
    assert 3 * (own.pools[0].max_lora or 0) + (rest.pools[0].max_lora or 0) == 8
    assert 3 * (own.tenants[0].limits.requests_per_minute or 0) + 4 == 10
    assert rest.tenants[0].limits == Limits(requests_per_minute=4, concurrency=1, total_concurrency=4)
    assert rest.overrides == (replace(limited.overrides[0], limits=Limits(requests_per_minute=3)), limited.overrides[1])


@pytest.mark.parametrize(("max_lora", "taken", "rest"), [(None, 1, None), (4, 0, 4), (4, 1, 3), (2, 1, 1), (1, 1, 1)])
def test_adapter_slots_of_absent_members_are_reserved(max_lora: int | None, taken: int, rest: int | None) -> None:
    assert remaining_adapters(max_lora, taken=taken, of=2 if max_lora == 2 else 4) == rest


def test_setting_in_force_stays_for_the_scheduler_while_members_are_absent() -> None:
    throttle = Throttle(TenantId("acme"), Limits(requests_per_minute=8), at(9))
    trial = SetSetting("pools.p.in_flight_max", 8, 6, at(9))
    policy = replace(a_policy(), overrides=(trial, throttle))

    assert island_policy(Share(0, 4), policy).overrides == (replace(throttle, limits=Limits(requests_per_minute=2)),)
    rest = remaining_policy(policy, taken=1, of=4).overrides
    assert rest == (trial, replace(throttle, limits=Limits(requests_per_minute=6)))


def test_policy_is_unchanged_without_absent_members() -> None:
    policy = a_policy()

    assert remaining_policy(policy, taken=0, of=4) is policy
