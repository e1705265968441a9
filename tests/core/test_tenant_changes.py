"""A policy that differs from the one in force only in some tenants: only those and their requests are visited."""

from dataclasses import replace

from headgate.core.commands import Dispatch
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits
from headgate.model.money import Budget, NanoUsd, Period
from headgate.model.outcome import Outcome
from headgate.model.overrides import Throttle
from headgate.model.policy import Policy
from headgate.model.tenant import Tenant, TenantTable, tenant_table
from headgate.model.units import ClassName, TenantId
from testing.builders import (
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    only_end,
    policy_changed,
)
from testing.executed_lines import count_executed_lines

VISITED = (
    "headgate.core.policy_update",
    "headgate.core.rules",
    "headgate.core.retry_budget",
    "headgate.core.admission.limits",
    "headgate.core.admission.budgets",
    "headgate.core.admission.budget_tallies",
)
"""Modules that apply changed tenants."""


def a_table(count: int) -> TenantTable:
    return tenant_table(
        [
            Tenant(
                TenantId(f"org{number // 10}/key{number}"),
                limits=Limits(requests_per_minute=60, concurrency=8),
                budgets=(Budget(Period.DAY, NanoUsd(10**9), hard=True),),
            )
            for number in range(count)
        ]
    )


def changed(policy: Policy, *tenants: Tenant, removed: str = "") -> Policy:
    """The policy with these tenants added or replaced."""
    changes: dict[TenantId, Tenant | None] = {each.id: each for each in tenants}
    if removed:
        changes[TenantId(removed)] = None
    return replace(policy, tenants=TenantTable(tenant_table(policy.tenants).by_id.updated(changes)))


def test_lines_executed_for_one_changed_tenant_do_not_depend_on_the_number_of_tenants() -> None:
    def lines(count: int) -> list[int]:
        policy = replace(a_policy(), tenants=a_table(count))
        scheduler = a_scheduler(policy=policy)
        counted: list[int] = []
        name = TenantId("org3/key33")
        for number, tenant in enumerate(
            (
                Tenant(name, limits=Limits(concurrency=4)),
                Tenant(name, budgets=(Budget(Period.DAY, NanoUsd(5), hard=False),)),
                Tenant(TenantId("org3"), limits=Limits(requests_per_minute=5)),
                Tenant(TenantId("new")),
            )
        ):
            policy = changed(policy, tenant)
            event = policy_changed(policy, f"h{number}")
            counted.append(count_executed_lines(lambda event=event: scheduler.handle(event, at(1)), *VISITED))  # type: ignore[misc]
        return counted

    few, many = lines(500), lines(5_000)
    assert few == many
    assert all(count > 10 for count in few)


def test_requests_of_other_tenants_keep_their_place_and_charges() -> None:
    """The backlog is not rebuilt, so a tenant that has been served more than others does not get a fresh start."""
    policy = a_policy()
    scheduler = a_scheduler(policy=policy)
    commands_for(scheduler, at(0), arrived("a1"), arrived("a2"), arrived("a3"), arrived("b1", "bolt"))
    commands_for(scheduler, at(1), completed("a1"))

    changes = policy_changed(changed(policy, Tenant(TenantId("coil"), weight=300)), "h2")
    assert scheduler.handle(changes, at(1)) == []
    assert scheduler.summary().policy_hash == "h2"
    assert sent_after(scheduler, 2, "b1") == ["a2"]
    assert sent_after(scheduler, 3, "a2") == ["a3"]


def test_queued_request_of_a_changed_tenant_is_checked_again() -> None:
    policy = a_policy()
    scheduler = a_scheduler(policy=policy)
    commands_for(scheduler, at(0), arrived("runs"), arrived("stays", "bolt"), arrived("waits", "coil"))

    commands = scheduler.handle(policy_changed(changed(policy, removed="coil"), "h2"), at(2))
    assert only_end(commands).outcome is Outcome.UNAUTHORIZED

    moved = Tenant(TenantId("bolt"), classes=(ClassName("batch"),))
    assert scheduler.handle(policy_changed(changed(policy, moved, removed="coil"), "h3"), at(2)) == []
    assert scheduler.summary().queued == {"interactive": 0, "batch": 1}
    assert sent_after(scheduler, 3, "runs") == ["stays"]


def test_change_of_a_level_applies_to_open_requests_below_it() -> None:
    policy = replace(a_policy(), tenants=a_table(20))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)
    commands_for(
        scheduler, at(0), arrived("one", "org0/key1"), arrived("two", "org0/key2"), arrived("far", "org1/key10")
    )

    policy = changed(policy, Tenant(TenantId("org0"), limits=Limits(concurrency=3)))
    commands_for(scheduler, at(1), policy_changed(policy, "h2"), arrived("three", "org0/key3"))
    refused = only_end(scheduler.handle(arrived("four", "org0/key1"), at(1)))
    assert refused.outcome is Outcome.RATE_LIMITED
    assert "org0" in refused.reason

    commands_for(scheduler, at(2), completed("one"), arrived("five", "org0/key1"))
    assert only_end(scheduler.handle(arrived("six", "org0/key1"), at(2))).outcome is Outcome.RATE_LIMITED
    policy = changed(policy, removed="org0")
    commands_for(scheduler, at(3), policy_changed(policy, "h3"), arrived("seven", "org0/key4"))
    # A removed tenant's open request no longer counts against its own limits, but it still ends.
    commands_for(scheduler, at(3), policy_changed(changed(policy, removed="org0/key2"), "h4"))
    commands_for(scheduler, at(4), *(completed(name) for name in ("two", "three", "far", "five", "seven")))
    assert is_empty(scheduler)


def test_throttle_of_a_level_without_tenant_survives_a_tenant_change() -> None:
    throttle = Throttle(TenantId("org1"), Limits(concurrency=1), at(60))
    policy = replace(a_policy(), tenants=a_table(20), overrides=(throttle,))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)
    commands_for(scheduler, at(0), arrived("one", "org1/key10"))

    commands_for(scheduler, at(1), policy_changed(changed(policy, Tenant(TenantId("org1/new"))), "h2"))
    for name in ("org1/key11", "org1/new"):
        assert only_end(scheduler.handle(arrived(name, name), at(1))).outcome is Outcome.RATE_LIMITED
    commands_for(scheduler, at(61), completed("one"), arrived("two", "org1/new"), arrived("three", "org1/key11"))
    assert scheduler.summary().requests == 2


def sent_after(scheduler: Scheduler, seconds: float, name: str) -> list[str]:
    """The requests sent when a request has completed."""
    commands = commands_for(scheduler, at(seconds), completed(name))
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


def is_empty(scheduler: Scheduler) -> bool:
    return scheduler.summary().requests == 0
