"""Is what is dealt out all there is, and no more?"""

from dataclasses import replace

import pytest

from headgate.hosts.cell.protocol.messages import Share
from headgate.hosts.cell.protocol.shares import own_endpoint, own_policy, places_of, rest_policy
from headgate.model.limits import Limits
from headgate.model.orders import DrainEndpoint, Throttle
from headgate.model.policy import Pool
from headgate.model.tenant import Tenant
from headgate.model.units import EndpointId, PoolName, TenantId
from testing.builders import a_policy, an_endpoint, at


@pytest.mark.parametrize("places", [0, 1, 3, 4, 7, 64])
@pytest.mark.parametrize("members", [1, 2, 3, 4, 5, 8])
def test_the_shares_of_an_endpoint_are_all_of_its_places(places: int, members: int) -> None:
    shares = [places_of(Share(rank, members), EndpointId("e1"), places) for rank in range(members)]

    assert sum(shares) == places
    assert max(shares) - min(shares) <= 1


def test_with_fewer_places_than_members_nobody_goes_without_everywhere() -> None:
    names = [EndpointId(f"e{number}") for number in range(40)]

    for rank in range(4):
        assert any(places_of(Share(rank, 4), name, 1) for name in names)


def test_an_endpoint_of_which_nothing_is_its_own_is_none_of_an_islands() -> None:
    shares = [own_endpoint(Share(rank, 2), an_endpoint(places=1)) for rank in range(2)]

    assert sorted(each is None for each in shares) == [False, True]


def test_what_the_absent_may_take_and_what_is_left_is_the_whole() -> None:
    limited = replace(
        a_policy(),
        tenants=(Tenant(TenantId("acme"), limits=Limits(requests_per_minute=10, concurrency=4)),),
        pools=(Pool(PoolName("p"), kv_tokens=1_000),),
        orders=(
            Throttle(TenantId("acme"), Limits(requests_per_minute=6), at(9)),
            DrainEndpoint(EndpointId("e1"), at(9)),
        ),
    )
    own, rest = own_policy(Share(0, 4), limited), rest_policy(limited, taken=3, of=4)

    assert 3 * (own.pools[0].kv_tokens or 0) + (rest.pools[0].kv_tokens or 0) == 1_000
    assert 3 * (own.tenants[0].limits.requests_per_minute or 0) + 4 == 10
    assert rest.tenants[0].limits == Limits(requests_per_minute=4, concurrency=1, concurrency_whole=4)
    assert rest.orders == (replace(limited.orders[0], limits=Limits(requests_per_minute=3)), limited.orders[1])


def test_with_nobody_absent_all_is_left() -> None:
    policy = a_policy()

    assert rest_policy(policy, taken=0, of=4) is policy
