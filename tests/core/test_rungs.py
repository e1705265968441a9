"""Which pools serve a request, according to model tier rules and the pools' length ranges."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, RequestArrived
from headgate.core.routing.model_tiers import (
    allowed_pools,
    live_pools_for_size,
    next_lower_tier,
    pools_fitting_prompt,
    pools_for_size,
)
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, ModelTierRule, Policy, Pool
from headgate.model.tenant import Plan, Tenant
from headgate.model.units import ClassName, ModelName, PoolName, TenantId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    BATCH,
    INTERACTIVE,
    a_class,
    a_model,
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    end,
    failed,
    first_token,
    leaving,
    policy_changed,
    unreadied,
)

SMALL, MIDDLE, LARGE = PoolName("small"), PoolName("middle"), PoolName("large")
ALL = (SMALL, MIDDLE, LARGE)
TENANTS = (
    Tenant(TenantId("free"), plan=Plan.FREE),
    Tenant(TenantId("acme")),
    Tenant(TenantId("vip"), plan=Plan.CRITICAL),
)


def a_ladder(*rules: ModelTierRule) -> Model:
    return Model(ModelName("m"), ALL, tiers=rules)


def of_rungs(*rules: ModelTierRule, **changes: object) -> Policy:
    policy = a_policy(pools=ALL, models=(a_ladder(*rules),))
    return replace(policy, tenants=TENANTS, **changes)


def an_endpoint_each(policy: Policy) -> Scheduler:
    endpoints = [an_endpoint(f"e-{pool.name}", pool=pool.name, places=100) for pool in policy.pools]
    return a_scheduler(*endpoints, policy=policy)


def asked(request: str = "r", tenant: str = "acme", *, rung: str | None = None, **options: object) -> RequestArrived:
    event = arrived(request, tenant, **options)  # type: ignore[arg-type]
    return RequestArrived(replace(event.ticket, model_tier=rung))


def pool_of(scheduler: Scheduler, event: RequestArrived) -> str:
    [command] = scheduler.handle(event, at(0))
    assert isinstance(command, Dispatch), command
    return command.pool


def pools_of(scheduler: Scheduler, **options: object) -> set[str]:
    """Returns the pools used by twelve similar requests, sent while the load on all endpoints grows."""
    pools: set[str] = set()
    for number in range(12):
        pools.add(pool_of(scheduler, asked(f"r{number}", **options)))  # type: ignore[arg-type]
        commands_for(scheduler, at(0), first_token(f"r{number}"))
    return pools


# Tier rules


def test_all_of_a_models_pools_are_used_without_rules() -> None:
    assert pools_of(an_endpoint_each(of_rungs())) == set(ALL)


@pytest.mark.parametrize(
    ("rule", "fitting", "other"),
    [
        (ModelTierRule((LARGE,), classes=(ClassName("interactive"),)), {}, {"service_class": "batch"}),
        (ModelTierRule((LARGE,), plans=(Plan.CRITICAL,)), {"tenant": "vip"}, {"tenant": "free"}),
        (ModelTierRule((LARGE,), prompt_tokens_max=25), {"prompt_bytes": 103}, {"prompt_bytes": 104}),
    ],
)
def test_rule_applies_to_requests_that_meet_its_condition(
    rule: ModelTierRule, fitting: dict[str, object], other: dict[str, object]
) -> None:
    assert pools_of(an_endpoint_each(of_rungs(rule)), **fitting) == {LARGE}
    assert pools_of(an_endpoint_each(of_rungs(rule)), **other) == set(ALL)


def test_rule_applies_only_if_all_conditions_are_met() -> None:
    rule = ModelTierRule((LARGE,), classes=(ClassName("batch"),), plans=(Plan.CRITICAL,))
    scheduler = an_endpoint_each(of_rungs(rule))

    assert pools_of(scheduler, tenant="vip", service_class="batch") == {LARGE}
    scheduler = an_endpoint_each(of_rungs(rule))
    assert pools_of(scheduler, tenant="vip") == set(ALL)


def test_first_matching_rule_applies() -> None:
    rules = (ModelTierRule((SMALL,), prompt_tokens_max=25), ModelTierRule((MIDDLE, LARGE)))

    assert pools_of(an_endpoint_each(of_rungs(*rules))) == {SMALL}
    assert pools_of(an_endpoint_each(of_rungs(*rules)), prompt_bytes=1_000) == {MIDDLE, LARGE}


def test_rule_is_skipped_if_class_may_not_use_its_pools() -> None:
    classes = (a_class("interactive", pools=(SMALL, MIDDLE)),)
    rules = (ModelTierRule((LARGE,)), ModelTierRule((MIDDLE, LARGE), plans=(Plan.CRITICAL,)))

    assert pools_of(an_endpoint_each(of_rungs(*rules, classes=classes))) == {SMALL, MIDDLE}
    assert pools_of(an_endpoint_each(of_rungs(*rules, classes=classes)), tenant="vip") == {MIDDLE}


def test_request_is_forbidden_if_class_may_not_use_any_of_the_models_pools() -> None:
    scheduler = an_endpoint_each(
        of_rungs(ModelTierRule((LARGE,)), classes=(a_class("interactive", pools=("elsewhere",)),))
    )

    reason = 'no pool serves model "m" for class "interactive"; use another class'
    assert scheduler.handle(asked(), at(0)) == [end("r", Outcome.FORBIDDEN, reason)]


# Tier requested by the caller


NAMED = (ModelTierRule((LARGE,), name="best"), ModelTierRule((SMALL,), name="quick"), ModelTierRule((MIDDLE,)))


def test_caller_may_name_tier() -> None:
    assert pools_of(an_endpoint_each(of_rungs(*NAMED)), rung="best") == {LARGE}
    assert pools_of(an_endpoint_each(of_rungs(*NAMED)), rung="quick") == {SMALL}
    assert pools_of(an_endpoint_each(of_rungs(*NAMED))) == {MIDDLE}


def test_named_tier_is_ignored_if_caller_may_not_use_it() -> None:
    rules = (ModelTierRule((LARGE,), name="best", plans=(Plan.CRITICAL,)), ModelTierRule((SMALL,)))

    assert pools_of(an_endpoint_each(of_rungs(*rules)), tenant="vip", rung="best") == {LARGE}
    assert pools_of(an_endpoint_each(of_rungs(*rules)), tenant="free", rung="best") == {SMALL}


@pytest.mark.parametrize(("rules", "known"), [(NAMED, "best, quick"), ((), "none")])
def test_unknown_tier_is_rejected_with_list_of_tiers(rules: tuple[ModelTierRule, ...], known: str) -> None:
    scheduler = an_endpoint_each(of_rungs(*rules))

    reason = f'model "m" has no tier "huge"; available tiers: {known}'
    assert scheduler.handle(asked(rung="huge"), at(0)) == [end("r", Outcome.INVALID_REQUEST, reason)]


def test_named_tier_is_ignored_after_policy_change_removes_it() -> None:
    policy = of_rungs(*NAMED)
    endpoints = [an_endpoint(f"e-{pool}", pool=pool, places=1) for pool in ALL]
    scheduler = a_scheduler(*endpoints, policy=policy)
    commands_for(scheduler, at(0), asked("first", rung="best"), asked("second", rung="best"))

    [command] = scheduler.handle(policy_changed(of_rungs(NAMED[2])), at(1))

    assert isinstance(command, Dispatch)
    assert (command.request_id, command.pool) == ("second", MIDDLE)


# Lower tier


def test_lower_tier_is_next_smaller_pool_except_for_smallest() -> None:
    model = a_ladder(ModelTierRule((LARGE,)))

    assert next_lower_tier((LARGE,), model) == (MIDDLE,)
    assert next_lower_tier((MIDDLE,), model) == (SMALL,)
    assert next_lower_tier((SMALL,), model) == (SMALL,)
    assert next_lower_tier(ALL, model) == (SMALL, MIDDLE)
    assert next_lower_tier((PoolName("gone"),), model) == ("gone",)


def test_pools_without_rules_have_no_lower_tier() -> None:
    assert next_lower_tier(ALL, a_ladder()) == ALL


def test_class_uses_only_its_own_pools_in_lower_tier() -> None:
    assert allowed_pools((SMALL, MIDDLE), a_class(pools=(MIDDLE, LARGE))) == (MIDDLE,)
    assert allowed_pools((SMALL, MIDDLE), INTERACTIVE) == (SMALL, MIDDLE)


# Length ranges


SHORT = Pool(PoolName("short"), prompt_tokens_max=1_000)
LONG = Pool(PoolName("long"), prompt_tokens_min=1_001)
CHATTY = Pool(PoolName("chatty"), output_tokens_min=100)
CURT = Pool(PoolName("curt"), output_tokens_max=99)
PLAIN = Pool(PoolName("plain"))
DECLARED = {pool.name: pool for pool in (SHORT, LONG, CHATTY, CURT, PLAIN)}


@pytest.mark.parametrize(
    ("pools", "prompt", "output", "taking"),
    [
        ((SHORT, LONG), 1_000, 1, (SHORT,)),
        ((SHORT, LONG), 1_001, 1, (LONG,)),
        ((CURT, CHATTY), 1, 99, (CURT,)),
        ((CURT, CHATTY), 1, 100, (CHATTY,)),
        ((SHORT, PLAIN), 1, 1, (SHORT, PLAIN)),
        ((SHORT, PLAIN), 5_000, 1, (PLAIN,)),
        ((SHORT, CURT), 5_000, 500, (SHORT, CURT)),
    ],
)
def test_pools_with_matching_range_are_used_or_all_if_none_matches(
    pools: tuple[Pool, ...], prompt: int, output: int, taking: tuple[Pool, ...]
) -> None:
    names = tuple(pool.name for pool in pools)

    found = pools_for_size(names, DECLARED, prompt_tokens=prompt, output_tokens=output)

    assert found == tuple(pool.name for pool in taking)


def test_undeclared_pool_matches_any_length() -> None:
    unknown = PoolName("unknown")

    assert pools_for_size((SHORT.name, unknown), DECLARED, prompt_tokens=5_000, output_tokens=1) == (unknown,)
    assert pools_fitting_prompt((SHORT.name, unknown), DECLARED, prompt_tokens=5_000) == (unknown,)


def test_other_pools_are_used_if_matching_pools_are_down_and_prompt_fits() -> None:
    pools = (SHORT.name, LONG.name, CHATTY.name)

    def only(*live: Pool) -> Callable[[tuple[PoolName, ...]], int]:
        return lambda names: sum(pool.name in names for pool in live)

    def found(prompt: int, *live: Pool) -> tuple[PoolName, ...]:
        return live_pools_for_size(pools, DECLARED, only(*live), prompt_tokens=prompt, output_tokens=1)

    assert found(5_000, LONG) == (LONG.name,)
    assert found(5_000, SHORT, CHATTY) == (LONG.name, CHATTY.name)
    assert found(10, SHORT) == (SHORT.name,)
    assert found(10, LONG) == pools
    assert live_pools_for_size((LONG.name,), DECLARED, only(), prompt_tokens=10, output_tokens=1) == (LONG.name,)


def long_and_short() -> Scheduler:
    return an_endpoint_each(a_policy(pools=(SHORT, LONG), models=(a_model("m", "short", "long"),)))


def test_request_is_sent_only_to_pool_with_matching_range() -> None:
    assert pools_of(long_and_short(), prompt_bytes=400) == {"short"}
    assert pools_of(long_and_short(), prompt_bytes=40_000) == {"long"}


def test_predicted_output_is_limited_by_requested_maximum() -> None:
    scheduler = an_endpoint_each(a_policy(pools=(CURT, CHATTY), models=(a_model("m", "curt", "chatty"),)))
    ticket = arrived("b").ticket

    assert pool_of(scheduler, arrived("a")) == "chatty"
    assert pool_of(scheduler, RequestArrived(replace(ticket, output_tokens_max=50))) == "curt"
    several = replace(ticket, output_tokens_max=50, n=2)
    assert pool_of(scheduler, RequestArrived(replace(several, request_id=arrived("c").ticket.request_id))) == "chatty"


def test_prompt_too_long_for_available_pools_is_not_sent() -> None:
    scheduler = long_and_short()
    commands_for(scheduler, at(0), unreadied("e-long"))

    assert commands_for(scheduler, at(0), asked("waits", prompt_bytes=40_000)) == []
    assert pool_of(scheduler, asked("short", prompt_bytes=40)) == "short"
    [refusal] = commands_for(scheduler, at(0), leaving("e-long"), asked("late", prompt_bytes=40_000))
    assert isinstance(refusal, End)
    assert refusal.outcome is Outcome.NO_ENDPOINTS
    assert refusal.reason.startswith("no endpoint in pool long is available")


def test_retry_follows_tier_rules() -> None:
    policy = of_rungs(ModelTierRule((SMALL, LARGE)))
    scheduler = an_endpoint_each(policy)
    first = pool_of(scheduler, asked("r"))

    [command] = scheduler.handle(failed("r"), at(1))

    assert isinstance(command, Dispatch)
    assert {first, command.pool} == {SMALL, LARGE}
    [ended] = scheduler.handle(completed("r", 2), at(2))
    assert isinstance(ended, End)


def test_classes_can_use_different_tiers() -> None:
    rules = (ModelTierRule((SMALL,), classes=(BATCH.name,)), ModelTierRule((LARGE,)))
    scheduler = an_endpoint_each(of_rungs(*rules))

    assert pool_of(scheduler, asked("a", service_class="batch")) == SMALL
    assert pool_of(scheduler, asked("b")) == LARGE


def test_response_length_is_learned_per_choice() -> None:
    scheduler = an_endpoint_each(a_policy(pools=(CURT, CHATTY), models=(a_model("m", "curt", "chatty"),)))
    assert pool_of(scheduler, arrived("before")) == "chatty"
    for number in range(20):
        ticket = replace(arrived(f"r{number}").ticket, n=2)
        usage = Usage(10, 120, 0, UsageSource.ENGINE)
        commands_for(scheduler, at(0), RequestArrived(ticket))
        commands_for(scheduler, at(0), AttemptEnded(ticket.request_id, 1, AttemptEnding.COMPLETED, usage=usage))

    assert pool_of(scheduler, arrived("after")) == "curt"
