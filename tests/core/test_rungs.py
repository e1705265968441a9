"""Which of a model's pools serve a request, by the rules for its rungs and by the lengths that pools are meant for?"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, End
from headgate.core.events import AttemptEnded, AttemptEnding, RequestArrived
from headgate.core.routing.rungs import holding, lowered, meant, narrowed, usable
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import Model, Policy, Pool, RungRule
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
    completed,
    end,
    failed,
    first_token,
    leaving,
    policy_changed,
    told,
    unreadied,
)

SMALL, MIDDLE, LARGE = PoolName("small"), PoolName("middle"), PoolName("large")
ALL = (SMALL, MIDDLE, LARGE)
TENANTS = (
    Tenant(TenantId("free"), plan=Plan.FREE),
    Tenant(TenantId("acme")),
    Tenant(TenantId("vip"), plan=Plan.CRITICAL),
)


def a_ladder(*rules: RungRule) -> Model:
    return Model(ModelName("m"), ALL, rungs=rules)


def of_rungs(*rules: RungRule, **changes: object) -> Policy:
    policy = a_policy(pools=ALL, models=(a_ladder(*rules),))
    return replace(policy, tenants=TENANTS, **changes)


def an_endpoint_each(policy: Policy) -> Scheduler:
    endpoints = [an_endpoint(f"e-{pool.name}", pool=pool.name, places=100) for pool in policy.pools]
    return a_scheduler(*endpoints, policy=policy)


def asked(request: str = "r", tenant: str = "acme", *, rung: str | None = None, **options: object) -> RequestArrived:
    event = arrived(request, tenant, **options)  # type: ignore[arg-type]
    return RequestArrived(replace(event.ticket, rung=rung))


def pool_of(scheduler: Scheduler, event: RequestArrived) -> str:
    [command] = scheduler.handle(event, at(0))
    assert isinstance(command, Dispatch), command
    return command.pool


def pools_of(scheduler: Scheduler, **options: object) -> set[str]:
    """Where requests of one kind go while every endpoint gets more and more loaded."""
    pools: set[str] = set()
    for number in range(12):
        pools.add(pool_of(scheduler, asked(f"r{number}", **options)))  # type: ignore[arg-type]
        told(scheduler, at(0), first_token(f"r{number}"))
    return pools


# Rules


def test_without_rules_every_pool_of_the_model_serves() -> None:
    assert pools_of(an_endpoint_each(of_rungs())) == set(ALL)


@pytest.mark.parametrize(
    ("rule", "fitting", "other"),
    [
        (RungRule((LARGE,), classes=(ClassName("interactive"),)), {}, {"service_class": "batch"}),
        (RungRule((LARGE,), plans=(Plan.CRITICAL,)), {"tenant": "vip"}, {"tenant": "free"}),
        (RungRule((LARGE,), prompt_tokens_max=25), {"prompt_bytes": 103}, {"prompt_bytes": 104}),
    ],
)
def test_a_rule_takes_those_who_have_what_it_names(
    rule: RungRule, fitting: dict[str, object], other: dict[str, object]
) -> None:
    assert pools_of(an_endpoint_each(of_rungs(rule)), **fitting) == {LARGE}
    assert pools_of(an_endpoint_each(of_rungs(rule)), **other) == set(ALL)


def test_all_that_a_rule_names_must_fit() -> None:
    rule = RungRule((LARGE,), classes=(ClassName("batch"),), plans=(Plan.CRITICAL,))
    scheduler = an_endpoint_each(of_rungs(rule))

    assert pools_of(scheduler, tenant="vip", service_class="batch") == {LARGE}
    scheduler = an_endpoint_each(of_rungs(rule))
    assert pools_of(scheduler, tenant="vip") == set(ALL)


def test_the_first_rule_that_fits_chooses() -> None:
    rules = (RungRule((SMALL,), prompt_tokens_max=25), RungRule((MIDDLE, LARGE)))

    assert pools_of(an_endpoint_each(of_rungs(*rules))) == {SMALL}
    assert pools_of(an_endpoint_each(of_rungs(*rules)), prompt_bytes=1_000) == {MIDDLE, LARGE}


def test_a_rule_whose_pools_the_class_may_not_use_does_not_fit() -> None:
    classes = (a_class("interactive", pools=(SMALL, MIDDLE)),)
    rules = (RungRule((LARGE,)), RungRule((MIDDLE, LARGE), plans=(Plan.CRITICAL,)))

    assert pools_of(an_endpoint_each(of_rungs(*rules, classes=classes))) == {SMALL, MIDDLE}
    assert pools_of(an_endpoint_each(of_rungs(*rules, classes=classes)), tenant="vip") == {MIDDLE}


def test_a_class_that_may_use_none_of_the_model_s_pools_is_told_so() -> None:
    scheduler = an_endpoint_each(of_rungs(RungRule((LARGE,)), classes=(a_class("interactive", pools=("elsewhere",)),)))

    reason = 'no pool serves model "m" in class "interactive"; choose another class'
    assert scheduler.handle(asked(), at(0)) == [end("r", Outcome.FORBIDDEN, reason)]


# What the caller names


NAMED = (RungRule((LARGE,), named="best"), RungRule((SMALL,), named="quick"), RungRule((MIDDLE,)))


def test_a_caller_may_name_a_rung() -> None:
    assert pools_of(an_endpoint_each(of_rungs(*NAMED)), rung="best") == {LARGE}
    assert pools_of(an_endpoint_each(of_rungs(*NAMED)), rung="quick") == {SMALL}
    assert pools_of(an_endpoint_each(of_rungs(*NAMED))) == {MIDDLE}


def test_a_rung_that_is_not_for_this_caller_is_as_if_it_had_not_been_named() -> None:
    rules = (RungRule((LARGE,), named="best", plans=(Plan.CRITICAL,)), RungRule((SMALL,)))

    assert pools_of(an_endpoint_each(of_rungs(*rules)), tenant="vip", rung="best") == {LARGE}
    assert pools_of(an_endpoint_each(of_rungs(*rules)), tenant="free", rung="best") == {SMALL}


@pytest.mark.parametrize(("rules", "known"), [(NAMED, "best, quick"), ((), "none")])
def test_a_rung_that_no_rule_knows_is_an_error_with_the_list(rules: tuple[RungRule, ...], known: str) -> None:
    scheduler = an_endpoint_each(of_rungs(*rules))

    reason = f'model "m" has no rung "huge"; its rungs are: {known}'
    assert scheduler.handle(asked(rung="huge"), at(0)) == [end("r", Outcome.INVALID, reason)]


def test_a_rung_that_goes_while_a_request_waits_for_it_is_as_if_it_had_not_been_named() -> None:
    policy = of_rungs(*NAMED)
    endpoints = [an_endpoint(f"e-{pool}", pool=pool, places=1) for pool in ALL]
    scheduler = a_scheduler(*endpoints, policy=policy)
    told(scheduler, at(0), asked("first", rung="best"), asked("second", rung="best"))

    [command] = scheduler.handle(policy_changed(of_rungs(NAMED[2])), at(1))

    assert isinstance(command, Dispatch)
    assert (command.request_id, command.pool) == ("second", MIDDLE)


# A rung down


def test_a_rung_down_is_the_pool_below_and_the_smallest_stays() -> None:
    model = a_ladder(RungRule((LARGE,)))

    assert lowered((LARGE,), model) == (MIDDLE,)
    assert lowered((MIDDLE,), model) == (SMALL,)
    assert lowered((SMALL,), model) == (SMALL,)
    assert lowered(ALL, model) == (SMALL, MIDDLE)
    assert lowered((PoolName("gone"),), model) == ("gone",)


def test_pools_without_rules_are_alike_and_none_is_below_another() -> None:
    assert lowered(ALL, a_ladder()) == ALL


def test_a_class_uses_of_the_pools_below_those_that_it_may() -> None:
    assert usable((SMALL, MIDDLE), a_class(pools=(MIDDLE, LARGE))) == (MIDDLE,)
    assert usable((SMALL, MIDDLE), INTERACTIVE) == (SMALL, MIDDLE)


# Ranges


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
def test_pools_take_what_they_are_meant_for_and_all_of_them_what_none_is(
    pools: tuple[Pool, ...], prompt: int, output: int, taking: tuple[Pool, ...]
) -> None:
    names = tuple(pool.name for pool in pools)

    found = meant(names, DECLARED, prompt_tokens=prompt, output_tokens=output)

    assert found == tuple(pool.name for pool in taking)


def test_a_pool_that_the_policy_does_not_describe_is_meant_for_everything() -> None:
    unknown = PoolName("unknown")

    assert meant((SHORT.name, unknown), DECLARED, prompt_tokens=5_000, output_tokens=1) == (unknown,)
    assert holding((SHORT.name, unknown), DECLARED, prompt_tokens=5_000) == (unknown,)


def test_where_those_it_is_meant_for_are_down_others_take_it_unless_it_is_too_long_for_them() -> None:
    pools = (SHORT.name, LONG.name, CHATTY.name)

    def only(*live: Pool) -> Callable[[tuple[PoolName, ...]], int]:
        return lambda names: sum(pool.name in names for pool in live)

    def found(prompt: int, *live: Pool) -> tuple[PoolName, ...]:
        return narrowed(pools, DECLARED, only(*live), prompt_tokens=prompt, output_tokens=1)

    assert found(5_000, LONG) == (LONG.name,)
    assert found(5_000, SHORT, CHATTY) == (LONG.name, CHATTY.name)
    assert found(10, SHORT) == (SHORT.name,)
    assert found(10, LONG) == pools
    assert narrowed((LONG.name,), DECLARED, only(), prompt_tokens=10, output_tokens=1) == (LONG.name,)


def long_and_short() -> Scheduler:
    return an_endpoint_each(a_policy(pools=(SHORT, LONG), models=(a_model("m", "short", "long"),)))


def test_a_request_waits_for_the_pool_that_is_meant_for_it() -> None:
    assert pools_of(long_and_short(), prompt_bytes=400) == {"short"}
    assert pools_of(long_and_short(), prompt_bytes=40_000) == {"long"}


def test_the_length_of_an_answer_is_predicted_within_what_is_asked_for() -> None:
    scheduler = an_endpoint_each(a_policy(pools=(CURT, CHATTY), models=(a_model("m", "curt", "chatty"),)))
    ticket = arrived("b").ticket

    assert pool_of(scheduler, arrived("a")) == "chatty"
    assert pool_of(scheduler, RequestArrived(replace(ticket, output_tokens_max=50))) == "curt"
    several = replace(ticket, output_tokens_max=50, n=2)
    assert pool_of(scheduler, RequestArrived(replace(several, request_id=arrived("c").ticket.request_id))) == "chatty"


def test_a_prompt_that_is_too_long_for_all_that_is_up_is_sent_nowhere() -> None:
    scheduler = long_and_short()
    told(scheduler, at(0), unreadied("e-long"))

    assert told(scheduler, at(0), asked("waits", prompt_bytes=40_000)) == []
    assert pool_of(scheduler, asked("short", prompt_bytes=40)) == "short"
    [refusal] = told(scheduler, at(0), leaving("e-long"), asked("late", prompt_bytes=40_000))
    assert isinstance(refusal, End)
    assert refusal.outcome is Outcome.NO_ENDPOINTS
    assert refusal.reason.startswith("no endpoint of pool long can serve")


def test_another_attempt_goes_by_the_rules_as_well() -> None:
    policy = of_rungs(RungRule((SMALL, LARGE)))
    scheduler = an_endpoint_each(policy)
    first = pool_of(scheduler, asked("r"))

    [command] = scheduler.handle(failed("r"), at(1))

    assert isinstance(command, Dispatch)
    assert {first, command.pool} == {SMALL, LARGE}
    [ended] = scheduler.handle(completed("r", 2), at(2))
    assert isinstance(ended, End)


def test_batch_is_served_by_another_rung_than_interactive() -> None:
    rules = (RungRule((SMALL,), classes=(BATCH.name,)), RungRule((LARGE,)))
    scheduler = an_endpoint_each(of_rungs(*rules))

    assert pool_of(scheduler, asked("a", service_class="batch")) == SMALL
    assert pool_of(scheduler, asked("b")) == LARGE


def test_what_is_learned_of_answers_is_the_length_of_one() -> None:
    scheduler = an_endpoint_each(a_policy(pools=(CURT, CHATTY), models=(a_model("m", "curt", "chatty"),)))
    assert pool_of(scheduler, arrived("before")) == "chatty"
    for number in range(20):
        ticket = replace(arrived(f"r{number}").ticket, n=2)
        usage = Usage(10, 120, 0, UsageSource.ENGINE)
        told(scheduler, at(0), RequestArrived(ticket))
        told(scheduler, at(0), AttemptEnded(ticket.request_id, 1, AttemptEnding.COMPLETED, usage=usage))

    assert pool_of(scheduler, arrived("after")) == "curt"
