"""What part of a policy is one member's, when it decides by itself?"""

from dataclasses import replace

import pytest

from headgate.core.alarms import Agenda
from headgate.core.orders import Orders
from headgate.core.shares import share_of
from headgate.model.limits import Limits
from headgate.model.orders import DrainEndpoint, Throttle
from headgate.model.policy import RetryRules
from headgate.model.tenant import Tenant
from headgate.model.units import EndpointId, TenantId
from testing.builders import a_policy, a_pool, at

POLICY = a_policy(
    tenants=(
        Tenant(TenantId("acme"), limits=Limits(100, 30_001, concurrency=10), weight=7),
        Tenant(TenantId("bolt"), limits=Limits(requests_per_minute=3)),
        "coil",
    ),
    pools=(replace(a_pool("p"), kv_tokens=1_000), a_pool("q")),
    retry=RetryRules(pool_extra_min=10),
)


def test_limits_memory_and_extra_attempts_are_divided_and_rounded_down() -> None:
    part = share_of(POLICY, 4)

    assert [each.limits for each in part.tenants] == [Limits(25, 7_500, 2, 30_001, 10), Limits(1), Limits()]
    assert [each.kv_tokens for each in part.pools] == [250, None]
    assert part.retry.pool_extra_min == 2


def test_what_is_ordered_is_divided_as_what_is_declared() -> None:
    until = at(60)
    throttle, drain = Throttle(TenantId("acme"), Limits(12, 4_000, 4), until), DrainEndpoint(EndpointId("e1"), until)
    part = share_of(replace(POLICY, orders=(throttle, drain)), 4)

    assert part.orders == (replace(throttle, limits=Limits(3, 1_000, 1, 4_000, 4)), drain)
    orders = Orders(Agenda())
    orders.change(part.orders, at(0))
    [acme, *_] = orders.throttled(part.tenants)
    assert acme.limits == Limits(3, 1_000, 1, 4_000, 4)


def test_nothing_becomes_less_than_one_but_what_is_nothing_stays_so() -> None:
    part = share_of(replace(POLICY, retry=RetryRules(pool_extra_min=0)), 1_000)

    assert part.tenants[0].limits == Limits(1, 30, 1, 30_001, 10)
    assert part.pools[0].kv_tokens == 1
    assert part.retry.pool_extra_min == 0


def test_all_else_is_as_it_was_and_one_member_has_all() -> None:
    part = share_of(POLICY, 4)
    undivided = replace(part, tenants=POLICY.tenants, pools=POLICY.pools, retry=POLICY.retry)

    assert undivided == POLICY == share_of(POLICY, 1)
    assert part.tenants[0].weight == 7


@pytest.mark.parametrize("members", range(1, 30))
def test_all_shares_together_are_within_the_whole_unless_there_are_more_members_than_units(members: int) -> None:
    limits = share_of(POLICY, members).tenants[0].limits
    whole = POLICY.tenants[0].limits

    assert limits.tokens_per_minute is not None
    assert whole.tokens_per_minute is not None
    assert members * limits.tokens_per_minute <= whole.tokens_per_minute
    assert limits.concurrency is not None
    assert whole.concurrency is not None
    assert members * limits.concurrency <= max(members, whole.concurrency)


def test_whoever_asks_is_a_member() -> None:
    with pytest.raises(AssertionError, match="a share of 0 members"):
        share_of(POLICY, 0)
