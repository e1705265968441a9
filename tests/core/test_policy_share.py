"""Share of the policy that a cell member may use as an island."""

from dataclasses import replace

import pytest

from headgate.core.overrides import Overrides
from headgate.core.policy_share import share_of
from headgate.core.timers import TimerHeap
from headgate.model.limits import Limits
from headgate.model.overrides import DrainEndpoint, Throttle
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
    retry=RetryRules(pool_retries_min=10),
)


def test_limits_memory_and_extra_attempts_are_divided_and_rounded_down() -> None:
    part = share_of(POLICY, 4)

    assert [each.limits for each in part.tenants] == [Limits(25, 7_500, 2, 30_001, 10), Limits(1), Limits()]
    assert [each.kv_tokens for each in part.pools] == [250, None]
    assert part.retry.pool_retries_min == 2


def test_throttles_are_divided_like_configured_limits() -> None:
    until = at(60)
    throttle, drain = Throttle(TenantId("acme"), Limits(12, 4_000, 4), until), DrainEndpoint(EndpointId("e1"), until)
    part = share_of(replace(POLICY, overrides=(throttle, drain)), 4)

    assert part.overrides == (replace(throttle, limits=Limits(3, 1_000, 1, 4_000, 4)), drain)
    orders = Overrides(TimerHeap())
    orders.change(part.overrides, at(0))
    assert orders.throttles() == {"acme": Limits(3, 1_000, 1, 4_000, 4)}


def test_share_is_at_least_one_unless_limit_is_zero() -> None:
    part = share_of(replace(POLICY, retry=RetryRules(pool_retries_min=0)), 1_000)

    assert part.tenants[0].limits == Limits(1, 30, 1, 30_001, 10)
    assert part.pools[0].kv_tokens == 1
    assert part.retry.pool_retries_min == 0


def test_other_settings_are_not_divided_and_single_member_gets_everything() -> None:
    part = share_of(POLICY, 4)
    undivided = replace(part, tenants=POLICY.tenants, pools=POLICY.pools, retry=POLICY.retry)

    assert undivided == POLICY == share_of(POLICY, 1)
    assert part.tenants[0].weight == 7


@pytest.mark.parametrize("members", range(1, 30))
def test_sum_of_shares_does_not_exceed_limit_unless_members_outnumber_limit(members: int) -> None:
    limits = share_of(POLICY, members).tenants[0].limits
    whole = POLICY.tenants[0].limits

    assert limits.tokens_per_minute is not None
    assert whole.tokens_per_minute is not None
    assert members * limits.tokens_per_minute <= whole.tokens_per_minute
    assert limits.concurrency is not None
    assert whole.concurrency is not None
    assert members * limits.concurrency <= max(members, whole.concurrency)


def test_share_for_zero_members_fails_assertion() -> None:
    with pytest.raises(AssertionError, match="share of 0 members"):
        share_of(POLICY, 0)
