"""The scheduler applies changed shares to the affected tenants only, in slices, with the same result as all at once."""

import random
from dataclasses import replace

import pytest

from headgate.core.commands import Command, End
from headgate.core.events import RequestRejected, SharesAssigned, TenantShare, TimerFired
from headgate.core.scheduler import Scheduler
from headgate.core.share_update import SLICE_TENANTS_MAX
from headgate.model.limits import WHOLE_PPM, Limits, LimitShare
from headgate.model.money import Budget, NanoUsd, Period
from headgate.model.overrides import Throttle
from headgate.model.persistent_map import PersistentMap
from headgate.model.tenant import Tenant, TenantTable, tenant_table
from headgate.model.units import Instant, TenantId
from testing.builders import (
    a_policy,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    only_end,
    policy_changed,
)
from testing.executed_lines import count_executed_lines
from testing.tenant_shares import shares_assigned

FLOOR = 250_000
VISITED = (
    "headgate.core.share_update",
    "headgate.core.account_shares",
    "headgate.core.policy_update",
    "headgate.core.admission.limits",
    "headgate.core.admission.budgets",
    "headgate.core.admission.budget_tallies",
)
"""Modules that apply shares."""


def tenants(accounts: int, *, each: int = 2, limits: Limits | None = None) -> TenantTable:
    """Accounts `org0000` and so on, with a limit at their own level and at the levels below."""
    limits = limits or Limits(requests_per_minute=100)
    budgets = (Budget(Period.DAY, NanoUsd(10**9)),)
    names = [f"org{number:05}" for number in range(accounts)]
    names += [f"org{number:05}/key{key:04}" for number in range(accounts) for key in range(each - 1)]
    return tenant_table([Tenant(TenantId(name), limits=limits, budgets=budgets) for name in names])


def divided(table: TenantTable) -> Scheduler:
    scheduler = a_scheduler(an_endpoint(places=1_000), policy=replace(a_policy(), tenants=table))
    scheduler.handle(SharesAssigned(FLOOR), at(0))
    return scheduler


def share(name: str, ppm: int, until: float = 15) -> TenantShare:
    return TenantShare(TenantId(name), LimitShare(ppm, ppm), at(until))


def admitted(scheduler: Scheduler, now: float, tenant: str, count: int = 100) -> int:
    found = 0
    for number in range(count):
        name = f"{tenant} {now} {number}"
        found += not any(isinstance(each, End) for each in scheduler.handle(arrived(name, tenant), at(now)))
    return found


def timers(scheduler: Scheduler, now: float) -> int:
    """Fires timers until no pending change is left. Returns their number."""
    fired = 0
    while scheduler._share_update.pending:
        wakeup = scheduler.next_wakeup()
        assert wakeup is not None
        assert wakeup <= at(now)
        scheduler.handle(TimerFired(), at(now))
        fired += 1
    return fired


# Work


def test_lines_executed_for_a_changed_share_do_not_depend_on_the_number_of_tenants() -> None:
    def lines(accounts: int) -> list[int]:
        scheduler = divided(tenants(accounts))
        every = {TenantId(f"org{number:05}"): share(f"org{number:05}", 500_000) for number in range(100)}
        listed = PersistentMap(every)
        scheduler.handle(SharesAssigned(FLOOR, listed), at(0))
        counted: list[int] = []
        for ppm, until in ((400_000, 15), (400_000, 17), (600_000, 17)):
            listed = listed.updated({TenantId("org00042"): share("org00042", ppm, until)})
            event = SharesAssigned(FLOOR, listed)
            counted.append(count_executed_lines(lambda event=event: scheduler.handle(event, at(1)), *VISITED))  # type: ignore[misc]
        counted.append(count_executed_lines(lambda: scheduler.handle(SharesAssigned(FLOOR, listed), at(2)), *VISITED))
        return counted

    few, many = lines(200), lines(4_000)
    assert few == many
    changed, renewed, _, same = few
    assert 20 < renewed < changed < 250
    assert same < 30


def test_lines_executed_between_two_timers_are_bounded_when_all_shares_expire() -> None:
    accounts = 3 * SLICE_TENANTS_MAX
    scheduler = divided(tenants(accounts))
    every = {name: share(name, 500_000) for name in (TenantId(f"org{n:05}") for n in range(accounts))}
    scheduler.handle(SharesAssigned(FLOOR, PersistentMap(every)), at(0))
    timers(scheduler, 0)
    scheduler.handle(TimerFired(), at(15))
    lines: list[int] = []
    while scheduler._share_update.pending:
        lines.append(count_executed_lines(lambda: scheduler.handle(TimerFired(), at(15)), *VISITED))
    # Each account has two tenants, and the first slice has been applied.
    assert len(lines) == 2 * accounts // SLICE_TENANTS_MAX - 1
    assert max(lines) < 70 * SLICE_TENANTS_MAX
    assert admitted(scheduler, 15, "org00007") == 25


def test_account_with_many_tenants_is_visited_in_several_slices() -> None:
    scheduler = divided(tenants(1, each=3 * SLICE_TENANTS_MAX))
    scheduler.handle(shares_assigned(FLOOR, share("org00000", 500_000)), at(0))
    assert timers(scheduler, 0) == 2
    assert all(level.share.tokens_ppm == 500_000 for level in scheduler._state.limits._levels.values())


def test_renewal_of_a_share_does_not_apply_all_slices_of_its_account_at_once() -> None:
    scheduler = divided(tenants(1, each=10 * SLICE_TENANTS_MAX))
    scheduler.handle(shares_assigned(FLOOR, share("org00000", 500_000)), at(0))
    renewal = shares_assigned(FLOOR, share("org00000", 500_000, 17))
    assert count_executed_lines(lambda: scheduler.handle(renewal, at(1)), *VISITED) < 2 * 70 * SLICE_TENANTS_MAX
    # Of ten slices, one was applied at first, one when the timer fired, and one after the renewal.
    assert timers(scheduler, 1) == 7
    assert all(level.share.tokens_ppm == 500_000 for level in scheduler._state.limits._levels.values())


# Results


def test_request_gets_the_new_share_before_its_slice() -> None:
    scheduler = divided(tenants(1, each=4 * SLICE_TENANTS_MAX))
    last = f"org00000/key{4 * SLICE_TENANTS_MAX - 2:04}"
    scheduler.handle(shares_assigned(FLOOR, share("org00000", 100_000)), at(0))
    assert scheduler._share_update.pending
    assert admitted(scheduler, 0, last, 11) == 10
    scheduler.handle(RequestRejected(TenantId(last)), at(0))
    timers(scheduler, 0)
    refused = only_end(scheduler.handle(arrived("one more", last), at(0)))
    assert "with 10 % of its limits in this cell" in refused.reason


def test_usage_drains_at_the_new_rate_from_the_time_of_the_change() -> None:
    late = divided(tenants(1, each=3 * SLICE_TENANTS_MAX))
    at_once = divided(tenants(1, each=2))
    last = f"org00000/key{3 * SLICE_TENANTS_MAX - 2:04}"
    for scheduler, name in ((late, last), (at_once, "org00000/key0000")):
        assert admitted(scheduler, 0, name) == 25
        scheduler.handle(shares_assigned(FLOOR, share("org00000", 800_000, 600)), at(0))
    # The slices of the large account are late by twelve seconds.
    assert timers(late, 12) == 2
    assert admitted(late, 12, last) == admitted(at_once, 12, "org00000/key0000") == 16


def test_share_that_changes_again_before_its_slice_applies_in_both_steps() -> None:
    scheduler = divided(tenants(1, each=3 * SLICE_TENANTS_MAX))
    last = f"org00000/key{3 * SLICE_TENANTS_MAX - 2:04}"
    assert admitted(scheduler, 0, last) == 25
    scheduler.handle(shares_assigned(FLOOR, share("org00000", 800_000, 600)), at(0))
    scheduler.handle(shares_assigned(FLOOR, share("org00000", 100_000, 600)), at(0))
    timers(scheduler, 0)
    # Of the ten requests per minute that are left to this cell, one fits every six seconds.
    assert admitted(scheduler, 12, last) == 2


def test_changed_floor_applies_to_all_tenants_without_a_share() -> None:
    scheduler = divided(tenants(3))
    scheduler.handle(shares_assigned(FLOOR, share("org00001", 500_000)), at(0))
    scheduler.handle(shares_assigned(100_000, share("org00001", 500_000)), at(0))
    assert admitted(scheduler, 0, "org00000") == 10
    # A raised share makes room only gradually.
    assert admitted(scheduler, 0, "org00001") == 25
    assert admitted(scheduler, 6, "org00001") == 5


def test_throttle_of_a_level_without_tenant_is_divided_by_changed_shares() -> None:
    throttle = Throttle(TenantId("org00000/team"), Limits(40), at(60))
    policy = replace(a_policy(), tenants=(*tenants(1), Tenant(TenantId("org00000/team/key"))), overrides=(throttle,))
    scheduler = a_scheduler(an_endpoint(places=1_000), policy=policy)
    commands_for(scheduler, at(0), shares_assigned(FLOOR, share("org00000", 500_000)))
    assert admitted(scheduler, 0, "org00000/team/key", 30) == 20
    scheduler.handle(SharesAssigned(FLOOR), at(0))
    assert admitted(scheduler, 30, "org00000/team/key", 30) == 5


def test_tenant_that_is_added_gets_the_share_in_force() -> None:
    table = tenants(2)
    scheduler = divided(table)
    scheduler.handle(shares_assigned(FLOOR, share("org00001", 500_000)), at(0))
    more = table.by_id.updated({TenantId("org00001/new"): Tenant(TenantId("org00001/new"), limits=Limits(20))})
    scheduler.handle(policy_changed(replace(a_policy(), tenants=TenantTable(more)), "h2"), at(0))
    assert admitted(scheduler, 0, "org00001/new", 30) == 10


@pytest.mark.parametrize("seed", range(10))
def test_incremental_shares_equal_shares_of_a_new_scheduler(seed: int) -> None:
    """A scheduler that starts with the latest policy and shares computes the same limits."""
    dice, table = random.Random(seed), tenants(30, each=3, limits=Limits(100, 1_000, 10))
    scheduler, listed = divided(table), PersistentMap[TenantId, TenantShare]()
    now, ppms = 0.0, (0, 100_000, FLOOR, 600_000)
    for step in range(60):
        now += dice.random()
        names = [TenantId(f"org{dice.randrange(30):05}") for _ in range(5)]
        if dice.random() < 0.8:
            until = at(now + dice.choice((1, 5)))
            changes = {
                name: TenantShare(name, LimitShare(dice.choice(ppms), dice.choice(ppms)), until) for name in names[:4]
            }
            listed = listed.updated({**changes, names[4]: None})
            scheduler.handle(SharesAssigned(FLOOR, listed), at(now))
        else:
            key = TenantId(f"{names[0]}/new{step}")
            table = TenantTable(
                table.by_id.updated({key: Tenant(key, limits=Limits(step)), TenantId(f"{names[1]}/key0000"): None})
            )
            scheduler.handle(policy_changed(replace(a_policy(), tenants=table), f"h{step}"), at(now))
        scheduler.handle(TimerFired(), at(now))

    fresh = a_scheduler(policy=replace(a_policy(), tenants=table))
    fresh.handle(SharesAssigned(FLOOR, listed), at(now))
    assert applied(scheduler, at(now)) == applied(fresh, at(now))


def applied(scheduler: Scheduler, now: Instant) -> dict[str, object]:
    assert scheduler.handle(TimerFired(), now) == list[Command]()
    levels = scheduler._state.limits._levels.values()
    limits = {
        each.tenant: (each.requests and each.requests.limit, each.tokens and each.tokens.limit, each.concurrency)
        for each in levels
    }
    budgets = {each.scope: each.next_share_ppm for each in scheduler._state.budgets._tallies._by_name.values()}
    assert set(budgets.values()) - {WHOLE_PPM}
    return {"limits": limits, "budgets": budgets}
