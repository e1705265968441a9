"""Operator overrides: effect and expiry."""

import time
from dataclasses import replace

from headgate.core.commands import Command, Dispatch
from headgate.core.events import PolicyChanged, TimerFired
from headgate.core.overrides import stricter
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits
from headgate.model.outcome import Outcome
from headgate.model.overrides import DrainEndpoint, HoldClass, OperatorOverride, PinDegradation, Throttle
from headgate.model.policy import Policy
from headgate.model.units import ClassName, EndpointId, PoolName, TenantId
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    a_tenant,
    abort,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    completed,
    endpoint_summary,
    first_token,
    joined,
    only_end,
    policy_changed,
    readied,
)

_LOST = "an operator took the endpoint out of service"
BOTH_IN_ONE_BAND = (a_class("interactive", band=0), a_class("batch", band=0))


def with_orders(scheduler: Scheduler, *orders: OperatorOverride, policy: Policy | None = None, now: float = 0) -> None:
    scheduler.handle(PolicyChanged(replace(policy or a_policy(), overrides=orders), "ordered"), at(now))


def hold(name: str = "batch", *, until: float = 10) -> HoldClass:
    return HoldClass(ClassName(name), at(until))


def drain(name: str = "e1", *, until: float = 10, interrupt: bool = False) -> DrainEndpoint:
    return DrainEndpoint(EndpointId(name), at(until), interrupt=interrupt)


def pin(level: int, *, until: float = 10, pool: str = "p") -> PinDegradation:
    return PinDegradation(PoolName(pool), level, at(until))


def throttle(tenant: str, limits: Limits, *, until: float = 10) -> Throttle:
    return Throttle(TenantId(tenant), limits, at(until))


def sent(commands: list[Command]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


# Overrides: hold a class


def test_held_class_waits_until_override_ends() -> None:
    scheduler = a_scheduler(places=4)
    with_orders(scheduler, hold("batch"))

    assert sent(scheduler.handle(arrived("b", service_class="batch"), at(1))) == []
    assert sent(scheduler.handle(arrived("i"), at(2))) == ["i"]
    assert scheduler.next_wakeup() == at(10)
    assert sent(scheduler.handle(TimerFired(), at(10))) == ["b"]


def test_held_class_does_not_block_other_class_in_same_band() -> None:
    policy = a_policy(classes=BOTH_IN_ONE_BAND)
    scheduler = a_scheduler(policy=policy, places=1)
    commands_for(scheduler, at(0), arrived("first"), arrived("b", service_class="batch"), arrived("i"))
    with_orders(scheduler, hold("batch"), policy=policy, now=1)

    assert sent(scheduler.handle(completed("first"), at(2))) == ["i"]


def test_held_class_is_released_when_override_is_removed() -> None:
    scheduler = a_scheduler(places=4)
    with_orders(scheduler, hold("batch"))
    scheduler.handle(arrived("b", service_class="batch"), at(1))

    assert sent(scheduler.handle(PolicyChanged(a_policy(), "without"), at(2))) == ["b"]


def test_expired_override_has_no_effect() -> None:
    scheduler = a_scheduler(places=4)
    with_orders(scheduler, hold("batch", until=1), now=2)

    assert sent(scheduler.handle(arrived("b", service_class="batch"), at(3))) == ["b"]


# Overrides: drain an endpoint


def test_drained_endpoint_gets_no_new_requests_but_finishes_running_ones() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=4))
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))
    with_orders(scheduler, drain("e1"), now=1)
    before = endpoint_summary(scheduler, "e1").in_flight

    commands = commands_for(scheduler, at(2), arrived("c"), arrived("d"))

    assert {each.endpoint_id for each in commands if isinstance(each, Dispatch)} == {"e2"}
    assert endpoint_summary(scheduler, "e1").drained
    assert endpoint_summary(scheduler, "e1").in_flight == before
    commands_for(scheduler, at(10), TimerFired())
    assert not endpoint_summary(scheduler, "e1").drained


def test_interrupting_drain_aborts_running_attempts_once_and_retries_them_elsewhere() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=4))
    commands_for(scheduler, at(0), arrived("a"))
    policy = replace(a_policy(), overrides=(drain("e1", interrupt=True),))

    assert scheduler.handle(policy_changed(policy), at(1)) == [abort("a", "e1", reason=_LOST)]
    assert scheduler.handle(policy_changed(policy, "again"), at(1)) == []
    [retry] = scheduler.handle(aborted("a"), at(2))

    assert isinstance(retry, Dispatch)
    assert (retry.endpoint_id, retry.attempt) == ("e2", 2)


def test_interrupting_drain_leaves_attempts_elsewhere_alone() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=1), an_endpoint("e2", places=1))
    [first, second] = commands_for(scheduler, at(0), arrived("a"), arrived("b"))
    assert isinstance(first, Dispatch)
    assert isinstance(second, Dispatch)
    assert {first.endpoint_id, second.endpoint_id} == {"e1", "e2"}
    drained = first.request_id if first.endpoint_id == "e1" else second.request_id

    policy = replace(a_policy(), overrides=(drain("e1", interrupt=True),))

    assert scheduler.handle(policy_changed(policy), at(1)) == [abort(drained, "e1", reason=_LOST)]


def test_interrupting_drain_ends_a_stream_that_has_started() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=4))
    commands_for(scheduler, at(0), arrived("a"), first_token("a"))
    with_orders(scheduler, drain("e1", interrupt=True), now=1)

    ended = only_end(scheduler.handle(aborted("a"), at(2)))

    assert (ended.outcome, ended.reason) == (Outcome.ENGINE_ERROR, f"after the first token: {_LOST}")


def test_plain_drain_can_become_an_interrupting_one() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2", places=4))
    commands_for(scheduler, at(0), arrived("a"))
    with_orders(scheduler, drain("e1"), now=1)

    policy = replace(a_policy(), overrides=(drain("e1", interrupt=True),))
    assert scheduler.handle(policy_changed(policy), at(2)) == [abort("a", "e1", reason=_LOST)]


def test_endpoint_joining_while_drained_gets_no_requests() -> None:
    scheduler = a_scheduler(an_endpoint("e2"))
    with_orders(scheduler, drain("e1"))
    commands_for(scheduler, at(1), joined("e1", places=4), readied("e1"), arrived("a"))

    commands = scheduler.handle(arrived("b"), at(2))

    assert sent(commands) == []
    assert sent(scheduler.handle(TimerFired(), at(10))) == ["b"]


def test_request_is_rejected_with_no_endpoints_if_all_are_drained() -> None:
    scheduler = a_scheduler()
    with_orders(scheduler, drain("e1"))

    end = only_end(scheduler.handle(arrived("a"), at(1)))

    assert end.outcome is Outcome.NO_ENDPOINTS


# Overrides: throttle a tenant


def test_throttled_tenant_is_limited_until_override_ends() -> None:
    scheduler = a_scheduler(places=8)
    with_orders(scheduler, throttle("acme", Limits(concurrency=1)))

    assert sent(commands_for(scheduler, at(1), arrived("a", tenant="acme"), arrived("b", tenant="bolt"))) == ["a", "b"]
    end = only_end(scheduler.handle(arrived("c", tenant="acme"), at(2)))
    assert end.outcome is Outcome.RATE_LIMITED
    assert sent(scheduler.handle(arrived("d", tenant="acme"), at(10))) == ["d"]


def test_throttle_on_undeclared_parent_applies_to_its_child_tenants() -> None:
    below = replace(a_policy().tenants[0], id=TenantId("whole/part"))
    policy = replace(a_policy(), tenants=(below,))
    scheduler = a_scheduler(policy=policy, places=8)
    with_orders(scheduler, throttle("whole", Limits(concurrency=1)), policy=policy)

    scheduler.handle(arrived("a", tenant="whole/part"), at(1))
    end = only_end(scheduler.handle(arrived("b", tenant="whole/part"), at(2)))

    assert 'tenant "whole"' in end.reason


def test_stricter_of_two_limits_applies() -> None:
    one, other = Limits(5, None, 3), Limits(7, 100, None)

    assert stricter(one, other) == Limits(5, 100, 3)


# Overrides: pin a degradation level


def levels(scheduler: Scheduler) -> list[int]:
    return [each.level for each in scheduler.summary().degradation]


def test_pinned_level_stays_until_override_ends_and_then_falls() -> None:
    scheduler = a_scheduler(places=8)
    with_orders(scheduler, pin(2))
    scheduler.handle(arrived("a"), at(1))

    assert levels(scheduler) == [2]
    commands_for(scheduler, at(5), TimerFired())
    assert levels(scheduler) == [2]
    commands_for(scheduler, at(9.9), TimerFired())
    commands_for(scheduler, at(10), TimerFired())
    for second in range(11, 200):
        scheduler.handle(TimerFired(), at(second))
    assert levels(scheduler) == [0]


def test_pin_applies_to_pool_already_in_use_and_survives_policy_change() -> None:
    scheduler = a_scheduler(places=8)
    scheduler.handle(arrived("a"), at(0))
    with_orders(scheduler, pin(6), now=1)
    scheduler.handle(arrived("b"), at(1.5))
    with_orders(scheduler, pin(6), policy=a_policy(classes=(a_class(), a_class("batch", band=2))), now=2)

    end = only_end(scheduler.handle(arrived("c"), at(3)))

    assert levels(scheduler) == [6]
    assert end.outcome is Outcome.SHED


def test_pin_does_not_affect_other_pools() -> None:
    scheduler = a_scheduler(places=8)
    with_orders(scheduler, pin(6, pool="other"))

    assert sent(scheduler.handle(arrived("a"), at(1))) == ["a"]


# Incomplete list of tenants


def test_unknown_tenant_is_unverified_until_all_tenants_are_loaded() -> None:
    scheduler = a_scheduler(policy=replace(a_policy(), tenants_loaded=False))

    end = only_end(scheduler.handle(arrived("a", tenant="new"), at(1)))

    assert end.outcome is Outcome.KEY_UNVERIFIED
    assert end.retry_after_ns is not None


# Limit changes


def test_ended_request_with_running_attempt_is_not_counted_again() -> None:
    policy = a_policy(tenants=(replace(a_tenant(), limits=Limits(concurrency=1)),))
    scheduler = a_scheduler(policy=policy, places=4)
    commands_for(scheduler, at(1), arrived("a"), client_disconnected("a"))
    with_orders(scheduler, throttle("acme", Limits(requests_per_minute=9)), policy=policy, now=2)

    assert sent(scheduler.handle(arrived("b"), at(3))) == ["b"]


def test_changing_a_few_limits_keeps_the_count_of_open_requests() -> None:
    tenants = [replace(a_policy().tenants[0], id=TenantId(f"t{n}"), limits=Limits(concurrency=2)) for n in range(200)]
    tenants.append(replace(tenants[0], id=TenantId("t0/below"), limits=Limits()))
    policy = replace(a_policy(), tenants=tuple(tenants))
    scheduler = a_scheduler(policy=policy, places=8)
    commands_for(scheduler, at(1), arrived("a", tenant="t0/below"), arrived("b", tenant="t1"))

    tenants[1] = replace(tenants[1], limits=Limits())
    tenants[0] = replace(tenants[0], limits=Limits(concurrency=1))
    scheduler.handle(PolicyChanged(replace(policy, tenants=tuple(tenants[:-2] + tenants[-1:])), "few"), at(2))

    end = only_end(scheduler.handle(arrived("c", tenant="t0/below"), at(3)))
    assert end.outcome is Outcome.RATE_LIMITED
    assert sent(commands_for(scheduler, at(3), arrived("d", tenant="t1"), arrived("e", tenant="t1"))) == ["d", "e"]
    assert only_end(scheduler.handle(arrived("f", tenant="t199"), at(4))).outcome is Outcome.UNAUTHORIZED
    assert scheduler.limits_left(TenantId("t1"), at(4)) is None


def test_changing_one_tenant_costs_a_fraction_of_loading_thousands() -> None:
    limits = Limits(requests_per_minute=1000)
    tenants = [replace(a_tenant(), id=TenantId(f"o{n % 50}/p{n % 500}/k{n}"), limits=limits) for n in range(5_000)]
    scheduler = a_scheduler()

    def took_s() -> float:
        event = PolicyChanged(replace(a_policy(), tenants=tuple(tenants)), "many")
        began = time.process_time()
        scheduler.handle(event, at(1))
        return time.process_time() - began

    first = took_s()
    changes: list[float] = []
    for number in range(5):
        tenants[number] = replace(tenants[number], limits=Limits(requests_per_minute=number + 1))
        changes.append(took_s())

    assert min(changes) < first / 3
