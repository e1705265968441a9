"""Requests that wait for a slot of their own pools and for one of the provider at the same time."""

import re
from dataclasses import replace
from typing import Any

import pytest

from headgate.core.commands import Command, Dispatch, End, Hold
from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps
from headgate.model.endpoint import Endpoint
from headgate.model.money import Budget, NanoUsd, Period
from headgate.model.outcome import Outcome
from headgate.model.overrides import HoldClass, PinDegradation
from headgate.model.policy import (
    DegradationStep,
    Model,
    OptimizationGoal,
    Policy,
    Pool,
)
from headgate.model.tenant import Tenant
from headgate.model.units import ClassName, ModelName, PoolName, RequestId, TenantId
from testing.builders import (
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    dispatch,
    duration,
    first_token,
    joined,
    policy_changed,
    readied,
    unreadied,
)
from testing.overflow_builders import (
    CLOUD,
    DOLLAR,
    OWN,
    PRICE,
    an_overflow_policy,
    an_overflow_scheduler,
    endpoints,
    fire,
)
from testing.takeover_reports import a_successor, waiting_report
from tests.core.test_budgets import it_is

POOR = Tenant(TenantId("poor"), budgets=(Budget(Period.DAY, NanoUsd(1_500_000), hard=True),))
"""Its budget covers one request at the provider, which costs at most 825,000 nano-dollars."""


def overflowed(
    request: str, waited: float, why: str = "", *, place: str = "1 of 1", service_class: str = "interactive"
) -> Dispatch:
    """The dispatch to the provider."""
    command = dispatch(request, "e-cloud", pool="cloud", waited=waited, place=place, service_class=service_class)
    return replace(command, reason=f"{command.reason}; overflow: {why or f'the request has waited {waited:g} s'}")


def stayed(request: str, waited: float, obstacle: str) -> Dispatch:
    """The dispatch to the own engine of a request that could have overflowed after 2 s."""
    command = dispatch(request, "e-own", pool="own", waited=waited)
    return replace(command, reason=f"{command.reason}; no overflow although the request has waited 2 s: {obstacle}")


def without_end(commands: list[Command], ended: str) -> list[Command]:
    """The commands after the end of this request."""
    assert commands[0].request_id == RequestId(ended)  # type: ignore[union-attr]
    return commands[1:]


def a_full_scheduler(policy: Policy | None = None) -> Scheduler:
    """The own slot and the only slot of the provider are occupied by "own" and "x"."""
    scheduler = an_overflow_scheduler(policy, cloud_places=1)
    assert commands_for(scheduler, at(0), arrived("own"), arrived("x")) == [dispatch("own", "e-own", pool="own")]
    assert fire(scheduler, 2) == [overflowed("x", 2)]
    return scheduler


# Order of service


def test_slot_of_the_provider_goes_to_the_highest_priority_band() -> None:
    scheduler = a_full_scheduler()
    commands_for(scheduler, at(2), arrived("low", service_class="batch"))
    commands_for(scheduler, at(3), arrived("high"))
    assert fire(scheduler, 6) == []

    assert without_end(scheduler.handle(completed("x"), at(6)), "x") == [overflowed("high", 3)]
    assert without_end(scheduler.handle(completed("high"), at(7)), "high") == [
        overflowed("low", 5, service_class="batch")
    ]


def test_slots_of_the_provider_are_shared_fairly_among_tenants() -> None:
    scheduler = a_full_scheduler()
    commands_for(scheduler, at(2), arrived("a1"), arrived("a2"), arrived("a3"))
    commands_for(scheduler, at(3), arrived("b1", "bolt"), arrived("b2", "bolt"))
    assert fire(scheduler, 6) == []

    sent = [scheduler.handle(completed(each), at(6))[1:] for each in ("x", "b1", "a1", "b2", "a2")]

    assert sent == [
        [overflowed(each, waited)] for each, waited in (("b1", 3), ("a1", 4), ("b2", 3), ("a2", 4), ("a3", 4))
    ]


def test_requests_that_may_overflow_from_the_same_moment_compete_for_the_slot() -> None:
    scheduler = an_overflow_scheduler(cloud_places=1)
    commands_for(scheduler, at(0), arrived("own"), arrived("low", service_class="batch"), arrived("high"))

    assert fire(scheduler, 4) == [overflowed("high", 2)]


def test_waiting_for_the_provider_needs_no_timer() -> None:
    scheduler = a_full_scheduler()
    commands_for(scheduler, at(2), arrived("a"))
    assert fire(scheduler, 5) == []

    # The end of the maximum wait.
    assert scheduler.next_wakeup() == at(32)


def test_request_keeps_its_place_in_the_queue_of_its_own_pool() -> None:
    scheduler = a_full_scheduler()
    commands_for(scheduler, at(2), arrived("first"))
    commands_for(scheduler, at(4), arrived("second"))
    assert fire(scheduler, 5) == []

    own = without_end(scheduler.handle(completed("own"), at(5)), "own")
    own += without_end(scheduler.handle(completed("first"), at(5)), "first")

    assert own == [
        stayed("first", 3, "it got no slot of pool cloud"),
        dispatch("second", "e-own", pool="own", waited=1),
    ]


def test_own_slot_is_preferred_if_the_provider_has_one_too() -> None:
    policy = an_overflow_policy()
    held = replace(policy, overrides=(HoldClass(ClassName("interactive"), at(4)),))
    scheduler = an_overflow_scheduler(held, cloud_places=1)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))

    assert fire(scheduler, 4) == [stayed("a", 4, "it got no slot of pool cloud"), overflowed("b", 4)]


def test_request_that_leaves_the_queue_no_longer_waits_for_the_provider() -> None:
    scheduler = a_full_scheduler()
    commands_for(scheduler, at(2), arrived("gone"), arrived("next"))
    assert fire(scheduler, 5) == []
    commands_for(scheduler, at(5), client_disconnected("gone"))

    assert without_end(scheduler.handle(completed("x"), at(6)), "x") == [overflowed("next", 4)]
    assert scheduler._state.queue.backlog.is_waited_for(CLOUD) is False


def test_provider_with_several_pools_on_one_address_serves_waiting_requests() -> None:
    policy = an_overflow_policy()
    other = PoolName("other")
    policy = replace(
        policy,
        pools=(*policy.pools, Pool(other, hosted=True)),
        models=(*policy.models, Model(ModelName("n"), (other,))),
    )

    def at_provider(name: str, pool: str) -> Endpoint:
        return replace(an_endpoint(name, pool=pool), engine="https://api.example.com")

    scheduler = a_scheduler(
        an_endpoint("e-own", pool="own"),
        at_provider("e-cloud", "cloud"),
        at_provider("e-other", "other"),
        policy=policy,
    )
    commands_for(scheduler, at(0), arrived("own"), arrived("x", model="n"), arrived("a"))
    assert fire(scheduler, 4) == []

    assert without_end(scheduler.handle(completed("x"), at(4)), "x") == [overflowed("a", 4)]


def test_request_overflows_within_a_group_of_pools_that_share_engines() -> None:
    policy = an_overflow_policy()
    shared = PoolName("shared")
    policy = replace(
        policy,
        pools=(*policy.pools, Pool(shared)),
        models=(*policy.models, Model(ModelName("n"), (shared,))),
    )

    def on_engine(name: str, pool: str, engine: str) -> Endpoint:
        return replace(an_endpoint(name, pool=pool), engine=engine)

    # The pool "shared" has an endpoint on the engine of each of the other two.
    scheduler = a_scheduler(
        on_engine("e-own", "own", "x"),
        on_engine("e-shared-1", "shared", "x"),
        on_engine("e-cloud", "cloud", "y"),
        on_engine("e-shared-2", "shared", "y"),
        policy=policy,
    )
    commands_for(scheduler, at(0), arrived("own"), arrived("a"), arrived("b"))

    assert fire(scheduler, 2) == [overflowed("a", 2)]
    assert without_end(scheduler.handle(completed("own"), at(3)), "own") == [
        stayed("b", 3, "it got no slot of pool cloud")
    ]


def test_successor_lets_a_request_overflow_that_has_waited_long_enough() -> None:
    successor = a_successor(policy=an_overflow_policy())
    commands_for(successor, at(0), joined("e-cloud", pool="cloud"), readied("e-cloud"))
    commands_for(successor, at(0), waiting_report("a", waited=1), waiting_report("b", waited=5))

    assert fire(successor, 0) == [overflowed("b", 5)]
    assert successor.summary().requests == 2


def test_request_whose_deadline_comes_first_ends_without_overflow() -> None:
    scheduler = a_full_scheduler()
    commands_for(scheduler, at(2), arrived("a", first_token_within=1))

    assert scheduler.next_wakeup() == at(3)
    assert [type(each) for each in fire(scheduler, 10)] == [End]


def test_request_whose_deadline_has_passed_when_the_host_handles_its_timer_is_not_sent() -> None:
    scheduler = an_overflow_scheduler()
    commands_for(scheduler, at(0), arrived("own"), arrived("a", first_token_within=2.001))

    [end] = scheduler.handle(TimerFired(), at(2.005))

    assert isinstance(end, End)
    assert (end.request_id, end.outcome, end.attempts) == ("a", Outcome.DEADLINE_EXCEEDED, 0)


def test_waiting_request_that_fits_neither_its_own_engine_nor_the_provider_keeps_waiting() -> None:
    policy = an_overflow_policy()
    scheduler = a_scheduler(
        an_endpoint("e-own", pool="own", places=9),
        an_endpoint("e-cloud", pool="cloud"),
        policy=replace(policy, pools=(Pool(OWN, kv_tokens=4_000), Pool(CLOUD, hosted=True))),
    )
    commands_for(scheduler, at(0), arrived("a", prompt_bytes=8_000), first_token("a"))
    commands_for(scheduler, at(0), arrived("x", prompt_bytes=8_000), arrived("large", prompt_bytes=8_000))

    assert endpoints(fire(scheduler, 3)) == ["e-cloud"]
    assert endpoints(scheduler.handle(joined("e-own", pool="own", places=9), at(4))) == []
    assert endpoints(scheduler.handle(completed("a"), at(5))) == ["e-own"]


# Arrival


def test_request_that_gets_no_slot_on_arrival_waits_for_its_own_pools_too() -> None:
    policy = an_overflow_policy()
    classes = tuple(replace(each, optimize_for=OptimizationGoal.COST) for each in policy.classes)
    # At level 3, classes that optimise cost are limited to their minimum share, which is nothing here.
    pinned = replace(
        policy,
        classes=classes,
        models=(*policy.models, Model(ModelName("n"), (CLOUD,))),
        overrides=(PinDegradation(CLOUD, 3, at(1_000)),),
    )
    scheduler = an_overflow_scheduler(pinned)
    commands_for(scheduler, at(0), arrived("n", model="n"), unreadied("e-own"))
    assert commands_for(scheduler, at(1), arrived("a")) == []

    [sent] = [each for each in scheduler.handle(readied("e-own"), at(2)) if isinstance(each, Dispatch)]

    assert (sent.request_id, sent.endpoint_id, sent.waited_ns) == ("a", "e-own", duration(1))


def test_free_slot_that_the_priority_band_may_not_use_does_not_admit_a_request() -> None:
    policy = an_overflow_policy()
    goal = OptimizationGoal.COST
    classes = tuple(replace(each, optimize_for=goal, queue_length_max=1) for each in policy.classes)
    pinned = replace(
        policy,
        classes=classes,
        models=(*policy.models, Model(ModelName("n"), (CLOUD,))),
        overrides=(PinDegradation(CLOUD, 3, at(1_000)),),
    )
    scheduler = an_overflow_scheduler(pinned)
    commands_for(scheduler, at(0), arrived("n", model="n"), unreadied("e-own"))
    assert commands_for(scheduler, at(1), arrived("a")) == []

    [rejected] = scheduler.handle(arrived("b"), at(1))

    assert isinstance(rejected, End)
    assert rejected.outcome is Outcome.QUEUE_FULL


def test_request_is_held_for_its_own_pool_while_the_provider_is_full() -> None:
    policy = an_overflow_policy()
    classes = tuple(replace(each, cold_start_wait_ns_max=duration(100)) for each in policy.classes)
    own = Pool(OWN, hold_max=3, cold_start_ns=duration(40))
    scheduler = a_scheduler(
        an_endpoint("e-cloud", pool="cloud"),
        policy=replace(policy, classes=classes, pools=(own, policy.pools[1])),
    )
    commands_for(scheduler, at(0), arrived("x"))
    reason = "no endpoint in pool own is available"
    held = Hold(
        RequestId("a"), OWN, ClassName("interactive"), f"{reason}; held until the first endpoint in pool own starts"
    )
    assert scheduler.handle(arrived("a"), at(0)) == [held]

    sent = without_end(scheduler.handle(completed("x"), at(3)), "x")

    assert sent == [replace(overflowed("a", 3, reason), held_ns=duration(3))]
    assert scheduler.summary().held == {}


def test_time_on_hold_does_not_count_toward_the_bound_once_an_own_endpoint_is_ready() -> None:
    policy = an_overflow_policy(after=8)
    classes = tuple(replace(each, cold_start_wait_ns_max=duration(100)) for each in policy.classes)
    own = Pool(OWN, hold_max=3, cold_start_ns=duration(5))
    scheduler = a_scheduler(
        an_endpoint("e-cloud", pool="cloud"), policy=replace(policy, classes=classes, pools=(own, policy.pools[1]))
    )
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))
    ready = commands_for(scheduler, at(5), joined("e-own", pool="own"), readied("e-own"))
    assert ready[1:] == [replace(dispatch("a", "e-own", pool="own", waited=5), held_ns=duration(5))]

    assert fire(scheduler, 12.9) == []
    assert fire(scheduler, 13) == [replace(overflowed("b", 13), held_ns=duration(5))]


# Policy changes


def test_overflow_that_a_reload_adds_applies_to_queued_requests() -> None:
    policy = an_overflow_policy()
    plain = replace(policy, models=(Model(ModelName("m"), (OWN,)),))
    scheduler = an_overflow_scheduler(plain)
    commands_for(scheduler, at(0), arrived("own"), arrived("a"))
    commands_for(scheduler, at(4), arrived("b"))

    assert scheduler.handle(policy_changed(policy, "h2"), at(5)) == []

    assert fire(scheduler, 5) == [overflowed("a", 5, place="1 of 2")]
    assert fire(scheduler, 9) == [overflowed("b", 2, place="2 of 2")]


def test_overflow_that_a_reload_removes_no_longer_applies_to_queued_requests() -> None:
    policy = an_overflow_policy()
    scheduler = a_full_scheduler(policy)
    commands_for(scheduler, at(2), arrived("may overflow"))
    commands_for(scheduler, at(4), arrived("not yet"))
    assert fire(scheduler, 5) == []
    commands_for(scheduler, at(5), policy_changed(replace(policy, models=(Model(ModelName("m"), (OWN,)),)), "h2"))

    assert without_end(scheduler.handle(completed("x"), at(6)), "x") == []
    assert fire(scheduler, 20) == []
    assert without_end(scheduler.handle(completed("own"), at(20)), "own") == [
        dispatch("may overflow", "e-own", pool="own", waited=18)
    ]


def test_bound_that_a_reload_changes_applies_to_queued_requests() -> None:
    policy = an_overflow_policy(after=20)
    scheduler = an_overflow_scheduler(policy)
    commands_for(scheduler, at(0), arrived("own"), arrived("a"))
    commands_for(scheduler, at(1), policy_changed(an_overflow_policy(after=3), "h2"))

    assert fire(scheduler, 2.9) == []
    assert fire(scheduler, 3) == [overflowed("a", 3, place="1 of 2")]


# Budgets, cost limits and degradation


def test_request_that_its_budget_keeps_from_the_provider_gives_the_budget_as_the_reason() -> None:
    poor = Tenant(TenantId("poor"), budgets=(Budget(Period.DAY, NanoUsd(100_000), hard=True),))
    scheduler = an_overflow_scheduler(an_overflow_policy(tenants=("acme", poor)))
    commands_for(scheduler, at(0), arrived("own"), arrived("a", "poor"))
    assert fire(scheduler, 3) == []

    sent = without_end(scheduler.handle(completed("own"), at(3)), "own")

    budget = 'tenant "poor" has spent $0.00 and reserved $0.00 of its budget of $0.0001 per day'
    advice = "and this request may cost up to $0.000825; raise the budget or wait until the day ends"
    assert sent == [stayed("a", 3, f"{budget}, {advice}")]


def test_request_that_a_cost_limit_keeps_from_the_provider_gives_the_limit_as_the_reason() -> None:
    policy = an_overflow_policy()
    capped = tuple(
        replace(each, optimize_for=OptimizationGoal.COST, cost_per_request_max=NanoUsd(100_000))
        for each in policy.classes
    )
    scheduler = an_overflow_scheduler(replace(policy, classes=capped))
    commands_for(scheduler, at(0), arrived("own"), arrived("a"))
    assert fire(scheduler, 3) == []

    sent = without_end(scheduler.handle(completed("own"), at(3)), "own")

    limit = 'class "interactive" allows at most $0.0001'
    assert sent == [stayed("a", 3, f"the request may cost up to $0.000825 there, but {limit}")]


def test_request_within_the_cost_limit_of_its_class_overflows() -> None:
    policy = an_overflow_policy()
    limit = NanoUsd(1_000_000)
    classes = tuple(
        replace(each, optimize_for=OptimizationGoal.COST, cost_per_request_max=limit) for each in policy.classes
    )
    scheduler = an_overflow_scheduler(replace(policy, classes=classes))
    commands_for(scheduler, at(0), arrived("own"), arrived("a"))

    [sent] = fire(scheduler, 2)

    # 25 prompt tokens cost 25,000 nano-dollars, and each output token costs 2,000.
    assert isinstance(sent, Dispatch)
    assert sent == replace(overflowed("a", 2, place="1 of 2"), caps=replace(sent.caps, output_tokens=487))


def test_budget_is_checked_without_the_degradation_of_the_own_pools() -> None:
    # It covers 64 output tokens at the provider, but not a response of the usual length.
    tenant = replace(POOR, budgets=(Budget(Period.DAY, NanoUsd(200_000), hard=True),))
    policy = an_overflow_policy(tenants=("acme", tenant))
    step = DegradationStep(2, Caps(output_tokens=64))
    policy = replace(
        policy,
        classes=tuple(replace(each, degradation_steps=(step,)) for each in policy.classes),
        overrides=(PinDegradation(OWN, 3, at(1_000)),),
    )
    scheduler = an_overflow_scheduler(policy)
    commands_for(scheduler, at(0), arrived("own"), arrived("queued", "poor"))
    assert fire(scheduler, 5) == []
    commands_for(scheduler, at(5), unreadied("e-own"))

    assert scheduler.handle(arrived("new", "poor"), at(6)) == []

    assert [each.reserved for each in scheduler.budget_status(at(6), TenantId("poor"))] == [0]


def test_slot_goes_to_the_next_request_if_the_budget_of_the_first_no_longer_covers_the_provider() -> None:
    scheduler = an_overflow_scheduler(an_overflow_policy(tenants=("acme", "bolt", POOR)), cloud_places=3)
    commands_for(scheduler, at(0), *(arrived(each, "bolt") for each in ("own", "x", "y", "z")))
    assert len(fire(scheduler, 2)) == 3
    for tenant in ("poor", "acme"):
        commands_for(scheduler, at(2), arrived(f"{tenant} 1", tenant), arrived(f"{tenant} 2", tenant))
    assert fire(scheduler, 6) == []

    sent = [scheduler.handle(completed(each), at(6))[1:] for each in ("x", "y", "z")]
    assert sent == [[overflowed(each, 4, place="3 of 3")] for each in ("poor 1", "acme 1", "acme 2")]

    # The end of the first request releases its reservation.
    assert without_end(scheduler.handle(completed("acme 1"), at(8)), "acme 1") == []
    assert without_end(scheduler.handle(completed("poor 1"), at(9)), "poor 1") == [
        overflowed("poor 2", 7, place="2 of 3")
    ]


def test_budget_that_does_not_cover_the_provider_is_checked_again() -> None:
    scheduler = an_overflow_scheduler(an_overflow_policy(after=0.5, tenants=("acme", POOR)))
    commands_for(scheduler, at(0), arrived("own"), arrived("first", "poor"))
    assert fire(scheduler, 1) == [overflowed("first", 0.5, place="1 of 2")]
    commands_for(scheduler, at(1), arrived("second", "poor"))
    assert fire(scheduler, 2) == []
    assert without_end(scheduler.handle(completed("first"), at(2)), "first") == []

    # The first check was at 1.5 s. Checks are at least a second apart.
    assert scheduler.next_wakeup() == at(2.5)
    assert fire(scheduler, 2.5) == [overflowed("second", 1.5, place="1 of 2")]


def test_budget_of_a_request_that_waits_for_the_provider_is_checked_again() -> None:
    scheduler = a_full_scheduler(an_overflow_policy(tenants=("acme", POOR)))
    commands_for(scheduler, at(2), it_is(0), arrived("a", "poor"))
    assert fire(scheduler, 5) == []
    commands_for(scheduler, at(5), it_is(0, ("tenant:poor", Period.DAY, 0.001)))
    assert without_end(scheduler.handle(completed("x"), at(6)), "x") == []

    # The slot is offered again, which does not postpone the next check. Then a new day begins.
    assert scheduler.handle(joined("e-cloud", pool="cloud"), at(6.5)) == []
    assert scheduler.handle(it_is(86_400), at(7)) == []

    assert scheduler.next_wakeup() == at(8)
    assert fire(scheduler, 8) == [overflowed("a", 6)]


def test_request_that_its_budget_has_kept_from_a_free_slot_ends_with_the_budget_in_the_reason() -> None:
    scheduler = a_full_scheduler(an_overflow_policy(tenants=("acme", POOR)))
    commands_for(scheduler, at(2), arrived("a", "poor"), arrived("b", "poor", first_token_within=20))
    assert fire(scheduler, 5) == []
    commands_for(scheduler, at(5), it_is(0, ("tenant:poor", Period.DAY, 0.001)))
    assert without_end(scheduler.handle(completed("x"), at(6)), "x") == []

    ended = [each for each in fire(scheduler, 32) if isinstance(each, End)]

    outcomes = {"a": Outcome.QUEUE_TIMEOUT, "b": Outcome.DEADLINE_EXCEEDED}
    assert {each.request_id: each.outcome for each in ended} == outcomes
    budget = 'tenant "poor" has spent $0.001 and reserved $0.00 of its budget of $0.0015 per day'
    found = [re.sub(r"has waited \d+ s", "has waited N s", each.reason) for each in ended]
    assert all(f"; no overflow although the request has waited N s: {budget}" in each for each in found), found


def test_degradation_of_the_provider_shortens_responses_but_does_not_change_the_pool() -> None:
    policy = an_overflow_policy()
    small = PoolName("small")
    step = DegradationStep(2, Caps(output_tokens=64), ModelName("n"))
    policy = replace(
        policy,
        classes=tuple(replace(each, degradation_steps=(step,)) for each in policy.classes),
        pools=(*policy.pools, Pool(small)),
        models=(*policy.models, Model(ModelName("n"), (small,))),
        overrides=(PinDegradation(CLOUD, 3, at(1_000)),),
    )
    scheduler = a_scheduler(*(an_endpoint(f"e-{each}", pool=each) for each in ("own", "cloud", "small")), policy=policy)
    commands_for(scheduler, at(0), arrived("own"), arrived("a"))

    [sent] = fire(scheduler, 2)

    assert isinstance(sent, Dispatch)
    assert sent == replace(overflowed("a", 2), level=3, caps=replace(sent.caps, output_tokens=64))


# Several overflow pools


DEAR = PoolName("dear")
"""A provider at which a request costs ten times as much, and that is otherwise the better choice."""
DEAR_PRICE = replace(PRICE, input_per_1m_tokens=NanoUsd(10 * DOLLAR), output_per_1m_tokens=NanoUsd(20 * DOLLAR))


def a_scheduler_with_two_providers(*, shared_engine: bool = False, **changed: Any) -> Scheduler:
    policy = an_overflow_policy(tenants=("acme", POOR))
    [model] = policy.models
    assert model.overflow is not None
    overflow = replace(model.overflow, pools=(DEAR, CLOUD))
    policy = replace(
        policy,
        pools=(*policy.pools, Pool(DEAR, hosted=True, prices=(DEAR_PRICE,))),
        models=(replace(model, overflow=overflow),),
        **changed,
    )
    engine = "e-shared" if shared_engine else ""
    return a_scheduler(
        an_endpoint("e-own", pool="own"),
        replace(an_endpoint("e-cloud", pool="cloud", places=20), engine=engine),
        replace(an_endpoint("e-dear", pool="dear", places=20), engine=engine),
        policy=policy,
    )


@pytest.mark.parametrize("shared_engine", [False, True])
def test_request_that_cannot_pay_one_provider_goes_to_a_cheaper_one(*, shared_engine: bool) -> None:
    scheduler = a_scheduler_with_two_providers(shared_engine=shared_engine)
    commands_for(scheduler, at(0), arrived("own"), arrived("rich"), arrived("a", "poor"))

    sent = [each for each in fire(scheduler, 2) if isinstance(each, Dispatch)]

    assert {each.request_id: each.endpoint_id for each in sent} == {"rich": "e-dear", "a": "e-cloud"}


def test_request_that_cannot_pay_one_provider_goes_to_a_cheaper_one_on_arrival() -> None:
    scheduler = a_scheduler_with_two_providers()
    commands_for(scheduler, at(0), unreadied("e-own"))

    assert endpoints(scheduler.handle(arrived("rich"), at(1))) == ["e-dear"]
    assert endpoints(scheduler.handle(arrived("a", "poor"), at(1))) == ["e-cloud"]


def test_cost_limit_excludes_only_the_providers_that_exceed_it() -> None:
    [interactive, *others] = an_overflow_policy().classes
    capped = replace(interactive, optimize_for=OptimizationGoal.COST, cost_per_request_max=NanoUsd(1_000_000))
    scheduler = a_scheduler_with_two_providers(classes=(capped, *others))
    commands_for(scheduler, at(0), arrived("own"), arrived("a"))

    assert endpoints(fire(scheduler, 2)) == ["e-cloud"]


def test_request_that_can_pay_no_provider_gives_the_budget_as_the_reason() -> None:
    scheduler = a_scheduler_with_two_providers()
    commands_for(scheduler, at(0), it_is(0, ("tenant:poor", Period.DAY, 0.001)), arrived("own"), arrived("a", "poor"))
    assert fire(scheduler, 3) == []

    [sent] = without_end(scheduler.handle(completed("own"), at(3)), "own")

    assert isinstance(sent, Dispatch)
    assert (sent.endpoint_id, sent.reason.count('tenant "poor" has spent $0.001')) == ("e-own", 1)
