"""Overflow: requests that would wait too long for the model's own pools go to a hosted provider."""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, End
from headgate.core.events import TimerFired
from headgate.model.money import Budget, NanoUsd, Period
from headgate.model.overrides import HoldClass
from headgate.model.policy import Model, OptimizationGoal, Pool
from headgate.model.provider_limits import ProviderLimits
from headgate.model.routes import ModelRoute
from headgate.model.tenant import DataResidency, Tenant
from headgate.model.units import ClassName, Duration, ModelName, TenantId
from testing.builders import (
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    duration,
    failed,
    first_token,
    policy_changed,
    readied,
    unreadied,
)
from testing.overflow_builders import (
    CLOUD,
    OWN,
    an_overflow_policy,
    an_overflow_scheduler,
    endpoints,
    fire,
    only_dispatch,
)


def test_own_engines_serve_while_they_have_a_slot() -> None:
    scheduler = an_overflow_scheduler()

    dispatch = only_dispatch(scheduler.handle(arrived("a"), at(0)))

    assert (dispatch.endpoint_id, dispatch.reason) == ("e-own", "least loaded, 1 of 1 requests in flight")


def test_request_overflows_once_it_has_waited_for_the_bound() -> None:
    scheduler = an_overflow_scheduler()
    commands_for(scheduler, at(0), arrived("a"))
    assert scheduler.handle(arrived("b"), at(0)) == []

    assert fire(scheduler, 1.9) == []
    dispatch = only_dispatch(fire(scheduler, 2))

    assert (dispatch.endpoint_id, dispatch.pool, dispatch.model, dispatch.waited_ns) == (
        "e-cloud",
        "cloud",
        None,
        duration(2),
    )
    assert dispatch.reason.endswith("; overflow: the request has waited 2 s")


def test_request_overflows_on_arrival_if_its_estimated_wait_exceeds_the_bound() -> None:
    scheduler = an_overflow_scheduler(cloud_places=9)
    # Four attempts of 10 s each establish how long a slot stays occupied.
    for number in range(40):
        commands_for(scheduler, at(10 * number), arrived(f"a{number}"))
        commands_for(scheduler, at(10 * number + 9), completed(f"a{number}", tokens=50))
    commands_for(scheduler, at(400), arrived("runs"))
    for number in range(9):
        scheduler.handle(arrived(f"w{number}"), at(401))
    dispatch = scheduler.handle(arrived("b", "bolt"), at(401))

    reasons = [each.reason for each in dispatch if isinstance(each, Dispatch)]
    assert scheduler.summary().queued[ClassName("interactive")] < 9
    assert all("; overflow: the estimated wait of " in each for each in reasons)


def test_request_goes_to_the_provider_at_once_if_no_own_endpoint_is_available() -> None:
    scheduler = an_overflow_scheduler()
    commands_for(scheduler, at(0), unreadied("e-own"))

    dispatch = only_dispatch(scheduler.handle(arrived("a"), at(1)))

    assert dispatch.endpoint_id == "e-cloud"
    assert dispatch.reason.endswith("; overflow: no endpoint in pool own is available")


def test_request_keeps_waiting_for_its_own_engine_while_the_provider_is_full() -> None:
    scheduler = an_overflow_scheduler(cloud_places=1)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), arrived("c"))
    assert endpoints(fire(scheduler, 3)) == ["e-cloud"]

    dispatch = only_dispatch(scheduler.handle(completed("a"), at(3)))

    assert dispatch.endpoint_id == "e-own"
    assert "; no overflow although the request has waited " in dispatch.reason
    assert dispatch.reason.endswith(": it got no slot of pool cloud")


def test_queued_request_without_overflow_still_ends_at_its_wait_limit() -> None:
    scheduler = an_overflow_scheduler(cloud_places=1)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"), arrived("c"))
    commands_for(scheduler, at(2), TimerFired())

    outcomes = [(each.request_id, each.outcome.value) for each in fire(scheduler, 40) if isinstance(each, End)]

    assert outcomes == [("c", "queue_timeout")]


def test_only_the_listed_classes_overflow() -> None:
    scheduler = an_overflow_scheduler(an_overflow_policy(classes=("interactive",)))
    commands_for(scheduler, at(0), arrived("a"), arrived("batch", service_class="batch"), arrived("b"))

    sent = [each.request_id for each in fire(scheduler, 10) if isinstance(each, Dispatch)]

    assert sent == ["b"]


def test_local_tenant_does_not_overflow_and_its_explanation_gives_the_reason() -> None:
    bank = Tenant(TenantId("bank"), data_residency=DataResidency.LOCAL)
    scheduler = an_overflow_scheduler(an_overflow_policy(tenants=("acme", bank)))
    commands_for(scheduler, at(0), arrived("a", "bank"), arrived("b", "bank"))
    assert endpoints(fire(scheduler, 10)) == []

    dispatch = only_dispatch(scheduler.handle(completed("a"), at(10)))

    assert dispatch.endpoint_id == "e-own"
    assert "; no overflow although the request has waited " in dispatch.reason
    assert dispatch.reason.endswith(": data_residency: local excludes pool cloud")


def test_failed_attempt_at_the_provider_is_retried_on_the_own_engine() -> None:
    scheduler = an_overflow_scheduler()
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))
    assert endpoints(fire(scheduler, 2)) == ["e-cloud"]
    commands_for(scheduler, at(3), failed("b"))

    dispatch = only_dispatch(scheduler.handle(completed("a"), at(4)))

    assert (dispatch.request_id, dispatch.endpoint_id, dispatch.attempt) == ("b", "e-own", 2)
    assert "overflow" not in dispatch.reason


def test_request_stays_in_the_queue_if_its_budget_does_not_cover_the_provider() -> None:
    poor = Tenant(TenantId("poor"), budgets=(Budget(Period.DAY, NanoUsd(1), hard=True),))
    scheduler = an_overflow_scheduler(an_overflow_policy(tenants=("acme", poor)))
    commands_for(scheduler, at(0), arrived("a"), arrived("b", "poor"))

    assert endpoints(fire(scheduler, 10)) == []
    assert endpoints(scheduler.handle(completed("a"), at(10))) == ["e-own"]


def test_tokens_at_the_provider_are_billed_at_its_price() -> None:
    scheduler = an_overflow_scheduler()
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))
    fire(scheduler, 2)

    [end] = [each for each in scheduler.handle(completed("b", tokens=500), at(4)) if isinstance(each, End)]

    # One prompt token at 1 USD and 500 output tokens at 2 USD per million.
    [bill] = end.bills
    assert (bill.input_nano_usd, bill.output_nano_usd, bill.overhead_nano_usd) == (1_000, 1_000_000, 0)


def test_policy_without_overflow_keeps_queued_requests() -> None:
    policy = an_overflow_policy()
    scheduler = an_overflow_scheduler(policy)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))
    plain = replace(policy, models=(Model(ModelName("m"), (OWN,)),))
    commands_for(scheduler, at(1), policy_changed(plain, "h2"))

    assert endpoints(fire(scheduler, 10)) == []


def test_request_of_a_held_class_waits_until_the_operator_releases_it() -> None:
    policy = an_overflow_policy()
    scheduler = an_overflow_scheduler(policy)
    held = replace(policy, overrides=(HoldClass(ClassName("interactive"), at(3)),))
    commands_for(scheduler, at(0), arrived("a"), policy_changed(held, "h2"), arrived("b"), unreadied("e-own"))
    commands_for(scheduler, at(0), arrived("c"))

    assert endpoints(fire(scheduler, 2.9)) == []
    commands_for(scheduler, at(2.9), completed("a"), readied("e-own"))

    sent = [(each.request_id, each.endpoint_id) for each in fire(scheduler, 3) if isinstance(each, Dispatch)]
    assert sent == [("b", "e-own"), ("c", "e-cloud")]


@pytest.mark.parametrize(
    "targets", [{"queue_wait_ns_max": duration(3)}, {"ttft_ns": duration(3)}, {"e2e_ns": duration(6)}]
)
def test_request_that_may_wait_for_less_than_the_bound_overflows_before_it_would_end(
    targets: dict[str, Duration],
) -> None:
    policy = an_overflow_policy(after=60)
    classes = tuple(replace(each, **targets) for each in policy.classes)
    scheduler = an_overflow_scheduler(replace(policy, classes=classes))
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))

    commands = fire(scheduler, 6)

    assert endpoints(commands) == ["e-cloud"]
    assert not [each for each in commands if isinstance(each, End)]


def test_request_overflows_on_arrival_if_its_own_provider_is_rate_limited() -> None:
    policy = an_overflow_policy()
    policy = replace(policy, pools=(replace(policy.pools[0], hosted=True), policy.pools[1]))
    scheduler = an_overflow_scheduler(policy)
    commands_for(scheduler, at(0), arrived("a"))
    limits = ProviderLimits(blocked_ns=duration(300))
    commands_for(scheduler, at(1), replace(completed("a"), limits=limits))

    dispatch = only_dispatch(scheduler.handle(arrived("b"), at(2)))

    assert dispatch.endpoint_id == "e-cloud"
    assert dispatch.reason.endswith("; overflow: the provider of pool own accepts no requests for another 299 s")


def test_only_requests_that_stay_in_their_own_pools_have_a_route() -> None:
    policy = an_overflow_policy()
    model = replace(policy.models[0], routes=(ModelRoute("stable", (OWN,)),))
    scheduler = an_overflow_scheduler(replace(policy, models=(model,)))

    own = only_dispatch(commands_for(scheduler, at(0), arrived("a")))
    commands_for(scheduler, at(0), arrived("b"))
    other = only_dispatch(fire(scheduler, 2))
    commands_for(scheduler, at(3), failed("b"))
    retried = only_dispatch(scheduler.handle(completed("a"), at(4)))

    assert [(each.endpoint_id, each.route) for each in (own, other, retried)] == [
        ("e-own", "stable"),
        ("e-cloud", ""),
        ("e-own", "stable"),
    ]


def test_request_that_its_budget_keeps_from_the_provider_is_not_sent_there_on_arrival() -> None:
    poor = Tenant(TenantId("poor"), budgets=(Budget(Period.DAY, NanoUsd(1), hard=True),))
    scheduler = an_overflow_scheduler(an_overflow_policy(tenants=("acme", poor)))
    commands_for(scheduler, at(0), unreadied("e-own"))

    assert endpoints(scheduler.handle(arrived("a", "poor"), at(1))) == []
    assert endpoints(scheduler.handle(arrived("b"), at(1))) == ["e-cloud"]


def test_request_stays_in_the_queue_if_the_provider_exceeds_the_cost_limit_of_its_class() -> None:
    policy = an_overflow_policy()
    capped = tuple(
        replace(each, optimize_for=OptimizationGoal.COST, cost_per_request_max=NanoUsd(1)) for each in policy.classes
    )
    scheduler = an_overflow_scheduler(replace(policy, classes=capped))
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))

    assert endpoints(fire(scheduler, 10)) == []
    assert endpoints(scheduler.handle(completed("a"), at(10))) == ["e-own"]


def test_request_gets_an_own_slot_if_the_one_before_it_overflows_at_the_same_moment() -> None:
    policy = an_overflow_policy()
    scheduler = a_scheduler(
        an_endpoint("e-own", pool="own", places=9),
        an_endpoint("e-cloud", pool="cloud", places=1),
        policy=replace(policy, pools=(Pool(OWN, kv_tokens=4_000), Pool(CLOUD, hosted=True))),
    )
    commands_for(scheduler, at(0), arrived("a", prompt_bytes=8_000), first_token("a"))
    commands_for(scheduler, at(0), arrived("large", prompt_bytes=8_000))
    assert scheduler.handle(arrived("small"), at(0)) == []

    found = [(each.request_id, each.endpoint_id) for each in fire(scheduler, 2) if isinstance(each, Dispatch)]

    assert found == [("large", "e-cloud"), ("small", "e-own")]
