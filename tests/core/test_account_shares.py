"""Shares of limits and budgets, if several cells serve the same tenants."""

import random
from dataclasses import replace

import pytest

from headgate.core.admission.leaky_bucket import LeakyBucket
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    BudgetSpent,
    BudgetsSynced,
    RequestArrived,
    SharesAssigned,
    TenantShare,
    TimerFired,
)
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits, LimitShare
from headgate.model.money import NANO_USD_PER_USD, Budget, NanoUsd, Period, Price
from headgate.model.outcome import Outcome
from headgate.model.overrides import Throttle
from headgate.model.tenant import Tenant
from headgate.model.units import MINUTE, Instant, RequestId, TenantId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    a_class,
    a_policy,
    a_pool,
    a_scheduler,
    an_endpoint,
    arrived,
    at,
    commands_for,
    only_end,
    policy_changed,
)
from testing.tenant_shares import shares_assigned

WHOLE = 1_000_000


def a_limited(name: str = "acme", limits: Limits | None = None) -> Tenant:
    return Tenant(TenantId(name), limits=limits or Limits(100))


def limited(*tenants: Tenant) -> Scheduler:
    return a_scheduler(an_endpoint(places=1_000), policy=a_policy(tenants=(*(tenants or (a_limited(),)), "bolt")))


def assigned(floor: int = WHOLE, until: float = 15, **shares: int) -> SharesAssigned:
    return shares_assigned(
        floor, *(TenantShare(TenantId(name), LimitShare(ppm, ppm), at(until)) for name, ppm in shares.items())
    )


def admitted(scheduler: Scheduler, now: float, count: int, tenant: str = "acme") -> int:
    """Returns how many of `count` requests are admitted."""
    found, known = 0, scheduler.summary().requests
    for number in range(count):
        event = arrived(f"{tenant} {now} {number} after {known}", tenant)
        ended = [each.request_id for each in scheduler.handle(event, at(now)) if isinstance(each, End)]
        found += event.ticket.request_id not in ended
    return found


def test_limits_are_divided_by_the_share_of_the_account() -> None:
    scheduler = limited(a_limited(), a_limited("acme/web", Limits(20)), a_limited("cord", Limits(100)))
    scheduler.handle(assigned(acme=300_000), at(0))
    assert admitted(scheduler, 0, 100, "acme/web") == 6
    assert admitted(scheduler, 0, 100) == 24
    assert admitted(scheduler, 0, 100, "cord") == 100


def test_all_kinds_of_limits_are_divided() -> None:
    scheduler = limited(a_limited("acme", Limits(None, None, 10)), a_limited("cord", Limits(None, 10_000)))
    scheduler.handle(assigned(acme=500_000, cord=500_000), at(0))
    assert admitted(scheduler, 0, 10) == 5
    big = arrived("big", "cord", prompt_bytes=4 * 6_000)
    refused = only_end(scheduler.handle(big, at(0)))
    assert (refused.outcome, refused.reason) == (
        Outcome.RATE_LIMITED,
        (
            "the prompt has about 6000 tokens, but this gateway may use only 5000 of the 10000 tokens per minute of "
            'tenant "cord" (with 50 % of its limits in this cell); retry in 10 s'
        ),
    )


def test_token_limits_have_a_separate_share() -> None:
    scheduler = limited(a_limited("acme", Limits(100, 10_000, 10)))
    lease = TenantShare(TenantId("acme"), LimitShare(500_000, 250_000), at(15))
    scheduler.handle(shares_assigned(WHOLE, lease), at(0))
    refused = only_end(scheduler.handle(arrived("big", prompt_bytes=4 * 3_000), at(0)))
    assert "may use only 2500 of the 10000 tokens per minute" in refused.reason
    assert "(with 25 % of its limits in this cell)" in refused.reason
    assert admitted(scheduler, 0, 10) == 5

    scheduler.handle(shares_assigned(WHOLE, replace(lease, share=LimitShare(250_000, 500_000))), at(0))
    assert "(with 25 % of its limits" in only_end(scheduler.handle(arrived("sixth"), at(0))).reason


def test_budgets_use_the_token_share() -> None:
    scheduler = spending(Budget(Period.DAY, usd(100)))
    lease = TenantShare(TenantId("acme"), LimitShare(750_000, 250_000), at(15))
    commands_for(scheduler, at(0), synced(), shares_assigned(WHOLE, lease))
    assert spend(scheduler, 0, 10)[0] == 2


def test_share_is_at_least_one_unit_unless_it_is_zero() -> None:
    scheduler = limited(a_limited("acme", Limits(2)), a_limited("cord", Limits(2)), a_limited("dent", Limits(0)))
    scheduler.handle(assigned(acme=1, cord=0, dent=500_000), at(0))
    assert admitted(scheduler, 0, 5) == 1
    assert admitted(scheduler, 0, 5, "cord") == 0
    assert admitted(scheduler, 0, 5, "dent") == 0


def test_floor_applies_without_a_share_and_after_it_has_expired() -> None:
    scheduler = limited(a_limited(), a_limited("cord"))
    scheduler.handle(assigned(100_000, acme=500_000), at(0))
    assert admitted(scheduler, 0, 100, "cord") == 10
    assert admitted(scheduler, 0, 10) == 10
    assert scheduler.next_wakeup() is not None

    scheduler.handle(TimerFired(), at(15))
    assert admitted(scheduler, 15, 100) == 10
    # The bucket of ten requests refills at ten requests per minute.
    assert admitted(scheduler, 45, 100) == 5


def test_share_that_has_expired_on_arrival_is_ignored() -> None:
    scheduler = limited()
    scheduler.handle(assigned(100_000, until=1, acme=500_000), at(2))
    assert admitted(scheduler, 2, 100) == 10


def test_renewed_share_expires_later() -> None:
    scheduler = limited()
    scheduler.handle(assigned(100_000, acme=500_000), at(0))
    scheduler.handle(assigned(100_000, until=30, acme=500_000), at(10))
    scheduler.handle(TimerFired(), at(16))
    assert admitted(scheduler, 16, 100) == 50


def test_raised_share_makes_room_only_gradually() -> None:
    scheduler = limited()
    scheduler.handle(assigned(until=600, acme=300_000), at(0))
    assert admitted(scheduler, 0, 100) == 30
    scheduler.handle(assigned(until=600, acme=900_000), at(0))
    assert admitted(scheduler, 0, 100) == 0
    assert admitted(scheduler, 20, 100) == 30


def test_lowered_share_leaves_no_debt() -> None:
    scheduler = limited()
    scheduler.handle(assigned(until=600, acme=900_000), at(0))
    assert admitted(scheduler, 0, 100) == 90
    scheduler.handle(assigned(until=600, acme=300_000), at(0))
    assert admitted(scheduler, 2, 100) == 1


@pytest.mark.parametrize("seed", range(20))
def test_two_cells_never_admit_more_than_one_gateway_would(seed: int) -> None:
    dice, limit = random.Random(seed), 600
    buckets, shares = [LeakyBucket(limit // 2), LeakyBucket(limit // 2)], [WHOLE // 2, WHOLE // 2]
    now = used = 0
    for _ in range(3_000):
        now += dice.randrange(400_000_000)
        if dice.random() < 0.02:
            target = dice.randrange(100_000, 900_000)
            lower = 0 if target < shares[0] else 1
            for cell in (lower, 1 - lower):
                shares[cell] = target if cell == 0 else WHOLE - target
                buckets[cell].change_share(limit * shares[cell] // WHOLE, Instant(now))
        bucket = buckets[dice.random() < 0.7]
        while bucket.fits(1, Instant(now)) and dice.random() < 0.9:
            bucket.use(1, Instant(now))
            used += 1
        assert used <= limit + limit * now // MINUTE


def test_throttle_is_divided_too() -> None:
    scheduler = limited(Tenant(TenantId("acme")))
    scheduler.handle(assigned(acme=500_000), at(0))
    order = Throttle(TenantId("acme"), Limits(10), at(60))
    scheduler.handle(policy_changed(replace(a_policy(), overrides=(order,))), at(0))
    assert admitted(scheduler, 0, 10) == 5


def test_shares_survive_a_policy_change_and_end_with_the_last_assignment() -> None:
    scheduler = limited()
    scheduler.handle(assigned(acme=500_000), at(0))
    scheduler.handle(policy_changed(a_policy(tenants=(a_limited("acme", Limits(200)), "bolt"))), at(0))
    admitted(scheduler, 0, 100)
    refused = only_end(scheduler.handle(arrived("one more"), at(0)))
    assert refused.reason.startswith(
        'tenant "acme" (with 50 % of its limits in this cell) has reached its limit of 100 requests per minute'
    )
    scheduler.handle(SharesAssigned(WHOLE), at(0))
    assert admitted(scheduler, 60, 300) == 200


# Budgets

TOKENS = Price(input_per_1m_tokens=NanoUsd(1_000_000 * NANO_USD_PER_USD))
"""One dollar per prompt token."""


def usd(amount: float) -> NanoUsd:
    return NanoUsd(round(amount * NANO_USD_PER_USD))


def spending(*budgets: Budget, of_class: tuple[Budget, ...] = ()) -> Scheduler:
    policy = a_policy(
        tenants=(Tenant(TenantId("acme"), budgets=budgets),),
        pools=(replace(a_pool(), prices=(TOKENS,)),),
        classes=(replace(a_class(), budgets=of_class),),
    )
    return a_scheduler(an_endpoint(places=1_000), policy=policy)


def synced(spent: float = 0, *, day: int = 0, ledger_read: bool = False) -> BudgetsSynced:
    began, ends = Instant(day * 1_440 * MINUTE), Instant((day + 1) * 1_440 * MINUTE)
    amounts = (BudgetSpent("tenant:acme", Period.DAY, usd(spent)),) if spent else ()
    return BudgetsSynced(began, ends, Instant(0), Instant(31 * 1_440 * MINUTE), amounts, ledger_read)


def spend(scheduler: Scheduler, now: float, count: int) -> tuple[int, list[Command]]:
    """Sends requests that cost ten dollars each. Returns how many were admitted, and the last commands."""
    found, commands = 0, list[Command]()
    for number in range(count):
        name = f"{now} {number}"
        ticket = replace(arrived(name, prompt_bytes=40).ticket, output_tokens_max=1)
        commands = scheduler.handle(RequestArrived(ticket), at(now))
        if any(isinstance(each, Dispatch) for each in commands):
            found += 1
            usage = Usage(10, 1, 0, UsageSource.ENGINE)
            scheduler.handle(AttemptEnded(RequestId(name), 1, AttemptEnding.COMPLETED, usage=usage), at(now))
    return found, commands


def test_cell_spends_only_its_share_of_a_hard_budget() -> None:
    scheduler = spending(Budget(Period.DAY, usd(100)))
    commands_for(scheduler, at(0), synced(), assigned(250_000))
    count, commands = spend(scheduler, 0, 10)
    assert count == 2
    refused = only_end(commands)
    assert refused.outcome is Outcome.BUDGET_EXCEEDED
    assert "this cell may spend $5.00 of the remainder" in refused.reason


def test_higher_share_of_a_budget_applies_from_the_next_ledger_amount_on() -> None:
    scheduler = spending(Budget(Period.DAY, usd(100)))
    commands_for(scheduler, at(0), synced(), assigned(250_000, until=600, acme=250_000))
    assert spend(scheduler, 0, 10)[0] == 2
    scheduler.handle(assigned(250_000, until=600, acme=750_000), at(1))
    assert spend(scheduler, 1, 10)[0] == 0
    # Of the 60 dollars left, three quarters may be spent here, including 20 that the ledger already contains.
    scheduler.handle(synced(40), at(2))
    assert spend(scheduler, 2, 10)[0] == 4


@pytest.mark.parametrize(("spent", "before", "total"), [(60, 1, 3), (0, 2, 7)])
def test_raised_budget_share_applies_after_a_ledger_read_with_an_unchanged_amount(
    spent: float, before: int, total: int
) -> None:
    scheduler = spending(Budget(Period.DAY, usd(100)))
    commands_for(scheduler, at(0), assigned(250_000, until=600, acme=250_000), synced(spent, ledger_read=True))
    scheduler.handle(assigned(250_000, until=600, acme=750_000), at(1))
    # A report without a new read of the ledger raises no share.
    scheduler.handle(synced(spent), at(2))
    assert spend(scheduler, 2, 10)[0] == before
    scheduler.handle(synced(spent, ledger_read=True), at(3))
    assert spend(scheduler, 3, 10)[0] == total - before


def test_budget_share_that_is_lowered_before_the_next_ledger_read_stays_low() -> None:
    scheduler = spending(Budget(Period.DAY, usd(100)))
    commands_for(scheduler, at(0), assigned(250_000, until=600), synced(60, ledger_read=True))
    commands_for(scheduler, at(1), assigned(250_000, until=600, acme=750_000), assigned(250_000, until=600))
    scheduler.handle(synced(60, ledger_read=True), at(2))
    assert spend(scheduler, 2, 10)[0] == 1


def test_lower_share_of_a_budget_applies_at_once() -> None:
    scheduler = spending(Budget(Period.DAY, usd(100)))
    commands_for(scheduler, at(0), assigned(750_000), synced(), synced(20))
    scheduler.handle(assigned(250_000), at(1))
    assert spend(scheduler, 1, 10)[0] == 2


def test_new_period_starts_with_the_current_share() -> None:
    scheduler = spending(Budget(Period.DAY, usd(100)))
    commands_for(scheduler, at(0), synced(), assigned(200_000))
    scheduler.handle(assigned(500_000), at(1))
    assert spend(scheduler, 1, 10)[0] == 2
    scheduler.handle(synced(day=1), at(86_400))
    assert spend(scheduler, 86_400, 10)[0] == 5


def test_soft_budgets_and_budgets_of_classes_are_not_divided() -> None:
    scheduler = spending(Budget(Period.DAY, usd(10), hard=False), of_class=(Budget(Period.DAY, usd(40)),))
    commands_for(scheduler, at(0), synced(), assigned(100_000))
    count, commands = spend(scheduler, 0, 10)
    assert count == 4
    assert isinstance(commands[0], End)
