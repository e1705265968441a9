"""Settings that an operator has set for a while."""

from dataclasses import replace

from headgate.core.commands import Command, Dispatch
from headgate.core.events import PolicyChanged, TimerFired
from headgate.core.policy_share import share_of
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits
from headgate.model.overrides import HoldClass, OperatorOverride, SetSetting
from headgate.model.policy import Policy
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    a_tenant,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    endpoint_summary,
    joined,
    only_end,
    readied,
)

IN_FLIGHT = "pools.p.in_flight_max"


def with_overrides(
    scheduler: Scheduler, *orders: OperatorOverride, policy: Policy | None = None, now: float = 0
) -> None:
    scheduler.handle(PolicyChanged(replace(policy or a_policy(), overrides=orders), "ordered"), at(now))


def in_flight(value: int, *, before: int = 1, until: float = 10) -> SetSetting:
    return SetSetting(IN_FLIGHT, before, value, at(until))


def limit(scheduler: Scheduler, name: str = "e1") -> int:
    return endpoint_summary(scheduler, name).in_flight_max


def sent(commands: list[Command]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


def test_larger_in_flight_limit_sends_waiting_requests_at_once() -> None:
    scheduler = a_scheduler(places=1)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))
    commands = scheduler.handle(PolicyChanged(replace(a_policy(), overrides=(in_flight(2),)), "ordered"), at(1))

    assert sent(commands) == ["b"]
    assert limit(scheduler) == 2


def test_in_flight_limit_returns_when_the_override_expires() -> None:
    scheduler = a_scheduler(places=1)
    with_overrides(scheduler, in_flight(2))
    commands_for(scheduler, at(1), arrived("a"), arrived("b"), arrived("c"))
    assert scheduler.next_wakeup() == at(10)
    scheduler.handle(TimerFired(), at(10))

    assert limit(scheduler) == 1
    assert sent(scheduler.handle(completed("a"), at(11))) == [], "b still occupies the only slot"
    assert sent(scheduler.handle(completed("b"), at(12))) == ["c"]


def test_in_flight_limit_applies_only_to_endpoints_with_the_value_before() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=4), an_endpoint("e2", places=8))
    with_overrides(scheduler, in_flight(6, before=4))
    assert (limit(scheduler, "e1"), limit(scheduler, "e2")) == (6, 8)

    commands_for(scheduler, at(1), joined("e3", places=4), readied("e3"), joined("e1", places=5))
    assert (limit(scheduler, "e1"), limit(scheduler, "e3")) == (5, 6)


def test_setting_returns_when_the_override_expires_and_other_overrides_stay() -> None:
    policy = a_policy(classes=(a_class("interactive", queue_length_max=1), a_class("batch")))
    scheduler = a_scheduler(policy=policy, places=1)
    longer = SetSetting("classes.interactive.queue_length_max", 1, 2, at(10))
    with_overrides(scheduler, longer, HoldClass("batch", at(5)), HoldClass("batch", at(20)), policy=policy)
    commands_for(scheduler, at(1), arrived("runs"), arrived("waits"), arrived("too"))
    assert only_end(scheduler.handle(arrived("late"), at(2))).reason.startswith("class")
    scheduler.handle(TimerFired(), at(5))
    assert only_end(scheduler.handle(arrived("later"), at(6))) is not None
    scheduler.handle(completed("runs"), at(7))
    scheduler.handle(completed("waits"), at(8))
    scheduler.handle(TimerFired(), at(10))
    commands_for(scheduler, at(11), arrived("one"))

    assert only_end(scheduler.handle(arrived("two"), at(12))).reason.startswith("class")


def test_change_of_tenants_keeps_the_setting() -> None:
    policy = a_policy()
    scheduler = a_scheduler(policy=policy, places=1)
    with_overrides(scheduler, in_flight(2), policy=policy)
    changed = replace(policy, tenants=(a_tenant("acme"), replace(a_tenant("new"), limits=Limits(1))))
    with_overrides(scheduler, in_flight(2), policy=changed, now=1)

    assert limit(scheduler) == 2
    scheduler.handle(TimerFired(), at(10))
    assert limit(scheduler) == 1


def test_isolated_members_use_the_configured_value() -> None:
    policy = replace(a_policy(), overrides=(in_flight(2), HoldClass("batch", at(5))))

    assert share_of(policy, 2).overrides == (HoldClass("batch", at(5)),)
    assert share_of(policy, 1).overrides == policy.overrides
