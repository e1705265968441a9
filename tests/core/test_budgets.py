"""Tests for budgets: reservations, spending, hard and soft limits, and per-class cost limits."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from headgate.core.admission.budgets import format_usd
from headgate.core.commands import BudgetCrossed, Command, Dispatch, End
from headgate.core.counters import BudgetCounter, Counters
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptReported,
    BudgetSpent,
    BudgetsSynced,
    CountedUpTo,
    RequestArrived,
    RequestReported,
    RequestSettled,
    TimerFired,
)
from headgate.core.policy_share import share_of
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps
from headgate.model.limits import Limits
from headgate.model.money import NANO_USD_PER_USD, Budget, BudgetStatus, NanoUsd, Period, Price
from headgate.model.outcome import Outcome
from headgate.model.policy import DegradationRules, DegradationStep, OptimizationGoal, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.ticket import Api
from headgate.model.units import ClassName, Duration, EndpointId, Instant, PoolName, RequestId, TenantId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    a_class,
    a_model,
    a_policy,
    a_pool,
    a_scheduler,
    a_scheduler_without_endpoints,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_disconnected,
    commands_for,
    duration,
    failed,
    joined,
    policy_changed,
    readied,
    unreadied,
)
from testing.takeover_reports import running_report

USD = NANO_USD_PER_USD
DAY = duration(86_400)
TOKENS = Price(input_per_1m_tokens=NanoUsd(1_000_000 * USD), output_per_1m_tokens=NanoUsd(2_000_000 * USD))
"""One dollar per prompt token and two dollars per output token."""


def usd(amount: float) -> NanoUsd:
    return NanoUsd(round(amount * USD))


def a_priced_pool(name: str = "p", price: Price = TOKENS) -> Pool:
    return replace(a_pool(name), prices=(price,))


def a_day(limit: float, *, hard: bool = True) -> Budget:
    return Budget(Period.DAY, usd(limit), hard)


def a_spender(name: str, *budgets: Budget) -> Tenant:
    return Tenant(TenantId(name), budgets=budgets)


def a_rich_policy(*tenants: str | Tenant, classes: tuple[ServiceClass, ...] | None = None) -> Policy:
    policy = a_policy(tenants=tenants or ("acme",), pools=(a_priced_pool(),))
    return policy if classes is None else replace(policy, classes=classes)


def spending(*tenants: str | Tenant, classes: tuple[ServiceClass, ...] | None = None) -> Scheduler:
    return a_scheduler(an_endpoint(places=2_000), policy=a_rich_policy(*tenants, classes=classes))


def asked(request: str, tenant: str = "acme", *, prompt: int = 10, most: int | None = 10, **changes: object) -> object:
    """Returns an arrival. With the default token counts, it may cost up to 30 dollars."""
    ticket = arrived(request, tenant, prompt_bytes=4 * prompt).ticket
    return RequestArrived(replace(ticket, output_tokens_max=most, **changes))


def ask(scheduler: Scheduler, now: float, request: str, tenant: str = "acme", **changes: object) -> list[Command]:
    event = asked(request, tenant, **changes)
    assert isinstance(event, RequestArrived)
    return scheduler.handle(event, at(now))


def used(request: str, prompt: int, output: int, *, cached: int = 0) -> AttemptEnded:
    usage = Usage(prompt, output, cached, UsageSource.ENGINE)
    return AttemptEnded(RequestId(request), 1, AttemptEnding.COMPLETED, usage=usage)


def it_is(
    day: float = 0, *spent: tuple[str, Period, float], month: float = 0, month_lasts: float = 30 * 86_400
) -> BudgetsSynced:
    return BudgetsSynced(
        at(day),
        at(day + 86_400),
        at(month),
        at(month + month_lasts),
        tuple(BudgetSpent(scope, period, usd(amount)) for scope, period, amount in spent),
    )


def stands(scheduler: Scheduler, tenant: str | None = None) -> list[tuple[str, float, float]]:
    """Returns the scope, spent amount and reserved amount of each budget, in dollars."""
    rows = scheduler.budget_status(at(99_999_999), None if tenant is None else TenantId(tenant))
    return [(each.scope, each.spent / USD, each.reserved / USD) for each in rows]


def crossed(commands: list[Command]) -> list[tuple[str, float, int]]:
    found = [each for each in commands if isinstance(each, BudgetCrossed)]
    return [(each.budget.scope, each.budget.limit / USD, each.percent) for each in found]


def sent(commands: list[Command]) -> Dispatch:
    [order] = [each for each in commands if isinstance(each, Dispatch)]
    return order


def ended(commands: list[Command]) -> End:
    [end] = [each for each in commands if isinstance(each, End)]
    return end


# Reserve, settle, refund


def test_maximum_cost_is_reserved_and_actual_cost_is_spent() -> None:
    scheduler = spending(a_spender("acme", a_day(100)))

    ask(scheduler, 0, "a")
    assert stands(scheduler) == [("tenant:acme", 0, 30)]

    end = ended(scheduler.handle(used("a", 10, 4), at(1)))
    assert end.reserved == usd(30)
    assert stands(scheduler) == [("tenant:acme", 18, 0)]


def test_concurrent_requests_are_admitted_while_the_budget_covers_their_maximum_cost() -> None:
    scheduler = spending(a_spender("acme", a_day(1_000)))

    ends = [ask(scheduler, 0, f"r{number}") for number in range(1_000)]
    refused = [each for each in ends if isinstance(each[0], End)]
    assert len(refused) == 1_000 - 33
    assert {ended(each).outcome for each in refused} == {Outcome.BUDGET_EXCEEDED}

    for number in range(33):
        scheduler.handle(used(f"r{number}", 10, 10), at(1))
    assert stands(scheduler) == [("tenant:acme", 990, 0)]
    assert ended(ask(scheduler, 2, "one more")).outcome is Outcome.BUDGET_EXCEEDED


def test_bill_above_its_reservation_overdraws_the_budget_by_the_difference() -> None:
    scheduler = spending(a_spender("acme", a_day(60)))

    ask(scheduler, 0, "a")
    ask(scheduler, 0, "b")
    scheduler.handle(used("a", 10, 25), at(1))
    scheduler.handle(used("b", 10, 10), at(1))

    assert stands(scheduler) == [("tenant:acme", 90, 0)]
    assert ended(ask(scheduler, 2, "c", prompt=1, most=0)).outcome is Outcome.BUDGET_EXCEEDED


def test_rejection_states_scope_period_amounts_and_next_step() -> None:
    scheduler = spending(a_spender("acme", a_day(40)))
    scheduler.handle(it_is(-3_600), at(0))
    ask(scheduler, 0, "a")
    scheduler.handle(used("a", 10, 0), at(0))

    ask(scheduler, 0, "b", most=5)
    end = ended(ask(scheduler, 0, "c"))

    assert end.outcome is Outcome.BUDGET_EXCEEDED
    assert end.retry_after_ns == duration(3_600), "the maximum Retry-After"
    assert end.reason == (
        'tenant "acme" has spent $10.00 and reserved $20.00 of its budget of $40.00 per day, and this request may cost '
        "up to $30.00; raise the budget or wait until the day ends in 23 h 0 min"
    )


def test_rejection_omits_the_end_of_the_period_while_the_date_is_unknown() -> None:
    scheduler = spending(a_spender("acme", a_day(1)))

    end = ended(ask(scheduler, 0, "a"))

    assert end.retry_after_ns is None
    assert end.reason.endswith("or wait until the day ends")
    assert scheduler.budget_status(at(0)) == (
        BudgetStatus("tenant:acme", Period.DAY, True, usd(1), NanoUsd(0), NanoUsd(0), None),
    )


@pytest.mark.parametrize(("left", "text"), [(90_000, "1 d 1 h"), (61, "2 min")])
def test_long_waits_are_shown_in_days_and_short_ones_in_minutes(left: float, text: str) -> None:
    scheduler = spending(a_spender("acme", Budget(Period.MONTH, usd(1))))
    scheduler.handle(it_is(month=-86_400, month_lasts=86_400 + left), at(0))

    assert f"until the month ends in {text}" in ended(ask(scheduler, 0, "a")).reason


def test_budgets_apply_at_every_level_of_the_path_and_for_the_class() -> None:
    classes = (
        replace(a_class("interactive"), budgets=(Budget(Period.MONTH, usd(95)),)),
        a_class("batch", band=1),
    )
    scheduler = spending(
        a_spender("acme", a_day(100)), a_spender("acme/x", a_day(70)), "acme/x/key", "bolt", classes=classes
    )

    ask(scheduler, 0, "a", "acme/x/key")
    ask(scheduler, 0, "b", "acme/x/key", requested_class="batch")
    assert stands(scheduler) == [("tenant:acme", 0, 60), ("tenant:acme/x", 0, 60), ("class:interactive", 0, 30)]
    assert ended(ask(scheduler, 0, "c", "acme/x/key")).reason.startswith('tenant "acme/x" has spent ')
    ask(scheduler, 0, "d", "bolt")
    ask(scheduler, 0, "e", "bolt")
    assert ended(ask(scheduler, 0, "f", "bolt")).reason.startswith('class "interactive" has spent ')
    assert stands(scheduler, "acme/x/key") == [("tenant:acme", 0, 60), ("tenant:acme/x", 0, 60)]
    assert stands(scheduler, "bolt") == []


def test_request_rejected_for_another_reason_reserves_nothing() -> None:
    policy = replace(a_rich_policy(a_spender("acme", a_day(100))), classes=(a_class(queue_length_max=0),))
    scheduler = a_scheduler(an_endpoint(places=1), policy=policy)

    ask(scheduler, 0, "a")
    assert ended(ask(scheduler, 0, "b")).outcome is Outcome.QUEUE_FULL
    assert stands(scheduler) == [("tenant:acme", 0, 30)]


def test_budget_is_charged_for_cancelled_requests_but_not_for_engine_failures() -> None:
    policy = a_rich_policy(a_spender("acme", a_day(100)))
    scheduler = a_scheduler(an_endpoint(places=9), policy=replace(policy, retry=replace(policy.retry, attempts_max=1)))

    ask(scheduler, 0, "a")
    ask(scheduler, 0, "b")
    scheduler.handle(failed("a"), at(1))
    assert stands(scheduler) == [("tenant:acme", 0, 30)]
    end = ended(scheduler.handle(client_disconnected("b"), at(2)))
    assert stands(scheduler) == [
        ("tenant:acme", sum(each.input_nano_usd + each.output_nano_usd for each in end.bills) / USD, 0)
    ]


def test_reservation_uses_the_most_expensive_pool_and_the_current_price() -> None:
    dear = replace(
        a_pool("dear"),
        prices=(Price(input_per_1m_tokens=usd(3_000_000)), Price(at(60), input_per_1m_tokens=usd(7_000_000))),
    )
    later = replace(a_pool("later"), prices=(Price(at(999), input_per_1m_tokens=usd(9_000_000)),))
    policy = a_policy(tenants=(a_spender("acme", a_day(1_000)),), pools=(a_priced_pool(), dear, later))
    scheduler = a_scheduler(
        an_endpoint(places=9), an_endpoint("e2", pool="dear"), an_endpoint("e3", pool="later"), policy=policy
    )

    ask(scheduler, 0, "a", most=0)
    ask(scheduler, 60, "b", most=0)

    assert stands(scheduler) == [("tenant:acme", 0, 30 + 70)]


def test_nothing_is_reserved_without_a_price() -> None:
    policy = a_policy(tenants=(a_spender("acme", a_day(0)),))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)

    assert sent(ask(scheduler, 0, "a"))
    assert stands(scheduler) == [("tenant:acme", 0, 0)]


def test_hourly_price_is_reserved_as_if_the_request_ran_alone() -> None:
    hourly = a_priced_pool(price=Price(per_hour=usd(3_600)))
    policy = a_policy(tenants=(a_spender("acme", a_day(1_000)),), pools=(hourly,))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)

    ask(scheduler, 0, "a", most=100)
    [(_, _, alone)] = stands(scheduler)
    assert 1.0 < alone < 1.1, "100 steps of 10 ms at one dollar per second, plus prefill and decoding"

    ask(scheduler, 0, "b", most=100, n=4)
    [(_, _, both)] = stands(scheduler)
    assert 1.0 < both - alone < 1.2, "four choices for one prompt share their steps"
    ask(scheduler, 0, "c", most=None)
    [(_, _, all_three)] = stands(scheduler)
    assert 4.0 < all_three - both < 4.4, "without a limit, the 90th percentile counts: 400 tokens"
    ask(scheduler, 0, "d", api=Api.EMBEDDINGS)
    [(_, _, with_embedding)] = stands(scheduler)
    assert with_embedding - all_three < 0.02


# Periods and the ledger


def test_new_day_resets_spending_and_keeps_reservations() -> None:
    month = Budget(Period.MONTH, usd(500))
    scheduler = spending(a_spender("acme", a_day(100), month))
    scheduler.handle(it_is(0), at(0))
    for name in ("a", "b"):
        ask(scheduler, 0, name)
    scheduler.handle(used("a", 10, 10), at(1))

    scheduler.handle(it_is(0), at(2))
    assert stands(scheduler) == [("tenant:acme", 30, 30), ("tenant:acme", 30, 30)]
    scheduler.handle(it_is(86_400), at(86_400))
    assert stands(scheduler) == [("tenant:acme", 0, 30), ("tenant:acme", 30, 30)]
    scheduler.handle(it_is(31 * 86_400, month=31 * 86_400), at(31 * 86_400))
    assert stands(scheduler) == [("tenant:acme", 0, 30), ("tenant:acme", 0, 30)]


def test_larger_of_local_and_ledger_spending_applies() -> None:
    scheduler = spending(a_spender("acme", a_day(100)))
    ask(scheduler, 0, "a")
    scheduler.handle(used("a", 10, 10), at(0))

    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 20), ("tenant:gone", Period.DAY, 7)), at(1))
    assert stands(scheduler) == [("tenant:acme", 30, 0)]
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 45)), at(2))
    assert stands(scheduler) == [("tenant:acme", 45, 0)]


def test_new_budget_starts_with_ledger_spending_and_current_reservations() -> None:
    scheduler = spending("acme")
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 60)), at(0))
    ask(scheduler, 0, "a")

    scheduler.handle(policy_changed(a_rich_policy(a_spender("acme", a_day(80)))), at(1))
    assert stands(scheduler) == [("tenant:acme", 60, 30)]
    scheduler.handle(policy_changed(a_rich_policy(a_spender("acme", a_day(200)))), at(2))
    assert sent(ask(scheduler, 3, "b"))
    scheduler.handle(used("a", 10, 10), at(4))
    assert stands(scheduler) == [("tenant:acme", 90, 30)]


def test_ledger_update_reports_the_highest_crossed_threshold_with_its_period() -> None:
    scheduler = spending(a_spender("acme", a_day(100), a_day(1_000, hard=False)), a_spender("other", a_day(1)))
    commands = scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 850), ("tenant:other", Period.DAY, 2)), at(86_401))

    assert crossed(commands) == [("tenant:acme", 100, 100), ("tenant:acme", 1_000, 80), ("tenant:other", 1, 100)]
    assert {each.began for each in commands if isinstance(each, BudgetCrossed)} == {at(0)}
    again = scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 1_000)), at(86_402))
    assert crossed(again) == [("tenant:acme", 1_000, 100)]


def test_thresholds_are_reported_once_per_limit_and_period() -> None:
    scheduler = spending(a_spender("acme", a_day(100), a_day(90, hard=False)))
    scheduler.handle(it_is(0), at(0))
    found: list[list[tuple[str, float, int]]] = []
    for number in range(4):
        ask(scheduler, number, f"r{number}", most=0, prompt=25)
        found.append(crossed(scheduler.handle(used(f"r{number}", 25, 0), at(number))))

    assert found == [
        [],
        [("tenant:acme", 100, 50), ("tenant:acme", 90, 50)],
        [("tenant:acme", 90, 80)],
        [("tenant:acme", 100, 80), ("tenant:acme", 100, 100), ("tenant:acme", 90, 100)],
    ]
    assert crossed(scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 500)), at(9))) == []
    [first, *_] = scheduler.handle(it_is(86_400, ("tenant:acme", Period.DAY, 50)), at(86_401))
    assert isinstance(first, BudgetCrossed)
    assert (first.percent, first.budget.reset_ns) == (50, DAY - duration(1))


# Soft budgets


def a_soft_policy(**variants: object) -> Policy:
    giving = replace(
        a_class(),
        degradation_steps=(
            DegradationStep(2, Caps(n=None, best_of=None, logprobs=None, prompt_logprobs=None, output_tokens=7)),
        ),
        **variants,
    )
    tenants = (a_spender("acme", a_day(40, hard=False)), "bolt")
    return replace(a_rich_policy(*tenants), classes=(giving,))


def test_soft_budget_degrades_requests_to_the_highest_level_without_rejecting_any() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_soft_policy())

    whole = sent(ask(scheduler, 0, "a"))
    also = sent(ask(scheduler, 0, "b"))
    less = sent(ask(scheduler, 0, "c"))
    other = sent(ask(scheduler, 0, "d", "bolt"))

    assert [each.level for each in (whole, also, less, other)] == [0, 0, DegradationRules().level_max, 0]
    assert [each.caps.output_tokens for each in (whole, also, less, other)] == [None, None, 7, None]
    for name in ("a", "b", "c"):
        scheduler.handle(used(name, 1, 0), at(1))
    assert sent(ask(scheduler, 1, "e")).level == 0


def test_quality_class_is_not_degraded_by_a_soft_budget() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_soft_policy(optimize_for=OptimizationGoal.QUALITY))
    for name in "abc":
        order = sent(ask(scheduler, 0, name))

    assert (order.level, order.caps.output_tokens) == (0, None)


def test_soft_class_budget_applies_to_all_requests_in_the_class() -> None:
    policy = a_soft_policy(budgets=(a_day(20, hard=False),))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)

    assert sent(ask(scheduler, 0, "a")).level == 0
    assert sent(ask(scheduler, 0, "b", "bolt")).level == 6


# Classes that optimize for cost


def a_cheap_class(*, cost: float | None = None, unit: float | None = None, **changes: object) -> ServiceClass:
    return replace(
        a_class(),
        optimize_for=OptimizationGoal.COST,
        cost_per_request_max=None if cost is None else usd(cost),
        cost_per_unit_max=None if unit is None else usd(unit),
        **changes,
    )


def a_cheap_policy(service_class: ServiceClass, *pools: Pool, unit_key: str | None = None) -> Policy:
    policy = a_policy(tenants=("acme", "bolt"), pools=pools or (a_priced_pool(),))
    return replace(policy, classes=(service_class,), unit_key=unit_key)


def test_cost_class_limits_output_tokens_by_its_maximum_cost() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(a_cheap_class(cost=50)))

    assert sent(ask(scheduler, 0, "a", most=None)).caps.output_tokens == 20
    assert sent(ask(scheduler, 0, "b", most=900, n=2)).caps.output_tokens == 10
    assert sent(ask(scheduler, 0, "c", prompt=49, most=None, api=Api.EMBEDDINGS)).caps.output_tokens is None


def test_stricter_class_output_cap_applies() -> None:
    service_class = a_cheap_class(cost=50, caps=Caps(output_tokens=5))
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(service_class))

    assert sent(ask(scheduler, 0, "a", most=None)).caps.output_tokens == 5


def test_free_response_is_not_shortened() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(a_cheap_class(cost=50), a_pool()))

    assert sent(ask(scheduler, 0, "a", most=None)).caps.output_tokens is None


def test_prompt_above_the_maximum_cost_is_rejected() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(a_cheap_class(cost=50)))

    end = ended(ask(scheduler, 0, "a", prompt=50))

    assert (end.outcome, end.retry_after_ns) == (Outcome.BUDGET_EXCEEDED, duration(3_600))
    assert end.reason == (
        'the prompt and one output token cost up to $52.00, but class "interactive" allows at most $50.00 per request; '
        "shorten the prompt or use another class"
    )


def test_cost_class_uses_the_cheapest_available_pool() -> None:
    cheap = a_priced_pool("cheap", Price(input_per_1m_tokens=usd(100_000)))
    policy = a_cheap_policy(a_cheap_class(cost=50), a_priced_pool(), cheap)
    both = a_scheduler(an_endpoint(places=9), an_endpoint("e2", pool="cheap", places=1), policy=policy)
    one = a_scheduler(an_endpoint(places=9), policy=policy)

    assert sent(ask(both, 0, "a")).pool == "cheap"
    assert ask(both, 0, "b") == [], "the request waits for the cheap pool although the other is free"
    assert sent(ask(one, 0, "a")).pool == "p"


def test_maximum_cost_does_not_apply_to_a_latency_class() -> None:
    policy = a_cheap_policy(replace(a_cheap_class(cost=50), optimize_for=OptimizationGoal.LATENCY))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)

    assert sent(ask(scheduler, 0, "a", most=900)).caps.output_tokens is None


def of_unit(scheduler: Scheduler, now: float, request: str, unit: str, tenant: str = "acme") -> list[Command]:
    return ask(scheduler, now, request, tenant, most=None, metadata=(("team", "x"), ("case", unit)))


def test_business_unit_cost_today_reduces_the_units_remaining_budget() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(a_cheap_class(unit=100), unit_key="case"))
    scheduler.handle(it_is(0), at(0))

    assert sent(of_unit(scheduler, 0, "a", "k")).caps.output_tokens == 45
    assert ended(of_unit(scheduler, 0, "b", "k")).reason == (
        'the prompt and one output token cost up to $12.00, but case "k" has $0.00 left today in class '
        '"interactive"; shorten the prompt or use another class'
    )
    assert sent(of_unit(scheduler, 0, "c", "other")).caps.output_tokens == 45
    assert sent(of_unit(scheduler, 0, "d", "k", "bolt")).caps.output_tokens == 45, "the same unit of another tenant"
    assert sent(ask(scheduler, 0, "e", most=None)).caps.output_tokens is None, "the request names no unit"
    scheduler.handle(used("a", 10, 25), at(1))
    assert sent(of_unit(scheduler, 2, "f", "k")).caps.output_tokens == 15
    scheduler.handle(used("f", 10, 15), at(3))
    scheduler.handle(it_is(86_400), at(86_400))
    assert sent(of_unit(scheduler, 86_401, "g", "k")).caps.output_tokens == 45


def test_retried_request_keeps_its_own_reservation() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(a_cheap_class(unit=100), unit_key="case"))
    of_unit(scheduler, 0, "a", "k")

    again = sent(scheduler.handle(failed("a"), at(1)))

    assert (again.attempt, again.caps.output_tokens) == (2, 45)


def test_least_recently_used_business_unit_is_forgotten_first() -> None:
    scheduler = a_scheduler(an_endpoint(places=99), policy=a_cheap_policy(a_cheap_class(unit=100), unit_key="case"))
    scheduler._state.budgets._units.units_max = 2
    for number, unit in enumerate(("k", "l", "k", "m")):
        of_unit(scheduler, number, f"r{number}", unit)

    assert sent(of_unit(scheduler, 9, "l again", "l")).caps.output_tokens == 45
    assert ended(of_unit(scheduler, 9, "m again", "m")).outcome is Outcome.BUDGET_EXCEEDED


# Takeover by a new scheduler


def successor(counters: Counters, *, policy: Policy | None = None, ahead: float = 0) -> Scheduler:
    scheduler = Scheduler()
    commands_for(scheduler, at(ahead), policy_changed(policy or a_rich_policy(a_spender("acme", a_day(100)))))
    scheduler.restore(counters, at(ahead))
    return scheduler


def test_spent_amounts_and_period_start_are_passed_to_a_new_scheduler() -> None:
    scheduler = spending(a_spender("acme", a_day(100)), "bolt")
    scheduler.handle(it_is(-100), at(0))
    ask(scheduler, 0, "a", prompt=60, most=0)
    scheduler.handle(used("a", 60, 0), at(1))
    counters = scheduler.counters(at(10))

    same, other = successor(counters, ahead=5), successor(counters, ahead=90_000)
    assert crossed(same.handle(it_is(-100), at(6))) == [], "the 50 % threshold was already reported"
    assert stands(same) == [("tenant:acme", 60, 0)]
    other.handle(it_is(86_300), at(90_001))
    assert stands(other) == [("tenant:acme", 0, 0)], "a new day began between the two schedulers"


def test_snapshot_from_a_past_day_is_ignored() -> None:
    scheduler = spending(a_spender("acme", a_day(100)))
    scheduler.handle(it_is(-100), at(0))
    ask(scheduler, 0, "a")
    scheduler.handle(used("a", 10, 10), at(1))
    counters = scheduler.counters(at(10))

    after = Scheduler()
    commands_for(after, at(86_400), policy_changed(a_rich_policy(a_spender("acme", a_day(100)))), it_is(86_300))
    after.restore(counters, at(86_400), snapshot_age_ns=duration(86_390))

    assert stands(after) == [("tenant:acme", 0, 0)]


def test_snapshot_without_a_date_is_treated_as_todays() -> None:
    scheduler = spending(a_spender("acme", a_day(100)))
    ask(scheduler, 0, "a")
    scheduler.handle(used("a", 10, 10), at(1))
    counters = scheduler.counters(at(10))

    assert stands(successor(counters)) == [("tenant:acme", 30, 0)]
    assert stands(successor(counters, policy=a_rich_policy("acme"))) == []


def test_adopted_requests_reserve_again_and_are_not_rejected() -> None:
    scheduler = successor(Counters(), policy=a_rich_policy(a_spender("acme", a_day(1))))
    first, second = asked("a"), asked("b")
    assert isinstance(first, RequestArrived)
    assert isinstance(second, RequestArrived)

    commands_for(
        scheduler,
        at(1),
        AttemptReported(
            first.ticket,
            1,
            EndpointId("e1"),
            Duration(0),
            True,
            0,
            Duration(0),
            PoolName("p"),
            ClassName("interactive"),
            Caps(),
        ),
        RequestReported(second.ticket, Duration(0)),
    )
    assert stands(scheduler) == [("tenant:acme", 0, 60)]
    scheduler.handle(used("a", 10, 10), at(2))
    assert stands(scheduler) == [("tenant:acme", 30, 30)]


def test_adopted_attempt_for_an_ended_request_reserves_nothing() -> None:
    scheduler = successor(Counters())
    event = asked("a")
    assert isinstance(event, RequestArrived)

    scheduler.handle(
        AttemptReported(
            event.ticket,
            1,
            EndpointId("e1"),
            Duration(0),
            True,
            0,
            Duration(0),
            PoolName("p"),
            ClassName("interactive"),
            Caps(),
            request_ended=True,
        ),
        at(1),
    )

    assert stands(scheduler) == [("tenant:acme", 0, 0)]


def test_request_settled_after_the_snapshot_is_charged_by_bill_or_estimate() -> None:
    hourly = a_policy(
        tenants=(a_spender("acme", a_day(100)),), pools=(a_priced_pool(price=Price(per_hour=usd(36_000))),)
    )
    usage = Usage(10, 10, 4, UsageSource.ENGINE)

    def after(policy: Policy | None, **told_of_it: object) -> float:
        scheduler = successor(Counters(), policy=policy)
        event = asked("a")
        assert isinstance(event, RequestArrived)
        settled = RequestSettled(event.ticket, 1, service_class=ClassName("interactive"), counted=CountedUpTo.SENT)
        scheduler.handle(replace(settled, **told_of_it), at(1))
        [(_, spent, reserved)] = stands(scheduler)
        assert reserved == 0
        return spent

    assert after(None, cost=usd(13), pool=PoolName("p")) == 13
    assert after(None, usage=usage, pool=PoolName("p")) == 26, "cached tokens are free"
    assert after(None, service_class=None) == 0
    assert 0 < after(hourly, usage=usage, pool=PoolName("p")) < 0.1
    assert after(None, usage=usage, pool=PoolName("gone")) == 0


def test_bill_already_in_the_ledger_is_not_counted_again() -> None:
    other = Budget(Period.MONTH, usd(100))
    scheduler = successor(Counters(), policy=a_rich_policy(a_spender("acme", a_day(100), other)))
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 15)), at(1))
    settled = RequestSettled(arrived("a").ticket, 1, PoolName("p"), ClassName("interactive"), cost=usd(15))

    scheduler.handle(settled, at(2))
    assert stands(scheduler) == [("tenant:acme", 15, 0), ("tenant:acme", 15, 0)], (
        "the ledger has not reported the month"
    )
    usage = Usage(1, 2, 0, UsageSource.ENGINE)
    scheduler.handle(replace(settled, cost=None, usage=usage), at(3))
    assert [each[1] for each in stands(scheduler)] == [20, 20], "a request without a bill is not in the ledger"


def test_request_counted_in_the_snapshot_without_its_cost_adds_only_its_cost() -> None:
    limited = replace(a_spender("acme", a_day(100)), limits=Limits(requests_per_minute=60))
    scheduler = successor(Counters(), policy=a_rich_policy(limited))
    settled = RequestSettled(arrived("a").ticket, 1, PoolName("p"), ClassName("interactive"), cost=usd(15))
    before = scheduler.limits_left(TenantId("acme"), at(0))

    scheduler.handle(replace(settled, counted=CountedUpTo.ENDED), at(0))
    assert stands(scheduler) == [("tenant:acme", 15, 0)]
    assert scheduler.limits_left(TenantId("acme"), at(0)) == before


@pytest.mark.parametrize(("cost", "spent"), [(usd(0), 0), (usd(25), 25), (None, 16)])
def test_ended_request_cost_is_adopted_with_its_running_attempt(cost: NanoUsd | None, spent: float) -> None:
    scheduler = successor(Counters())
    scheduler.handle(replace(running_report("a", prompt_bytes=40, tokens=3, over=True), cost=cost), at(1))
    commands_for(scheduler, at(2), aborted("a"))

    assert stands(scheduler) == [("tenant:acme", spent, 0)]


def test_snapshot_excludes_amounts_already_in_the_ledger() -> None:
    scheduler = spending(a_spender("acme", a_day(100)), a_spender("bolt", a_day(100)), a_spender("coil", a_day(100)))
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 9), ("tenant:bolt", Period.DAY, 9)), at(0))
    ask(scheduler, 1, "b", "bolt")
    scheduler.handle(used("b", 10, 1), at(2))

    assert scheduler.counters(at(3)).budgets == (BudgetCounter("tenant:bolt", Period.DAY, usd(21), at(0)),)


# Policy changes


def test_request_moved_to_another_class_reserves_and_spends_there() -> None:
    new = replace(a_class("new"), budgets=(a_day(100),))
    policy = a_rich_policy(classes=(a_class("old"), new))
    scheduler = a_scheduler(an_endpoint(places=1), policy=policy)
    for request in "xy":
        ask(scheduler, 0, request, requested_class=ClassName("old"))

    scheduler.handle(policy_changed(replace(policy, classes=(new,)), "other"), at(1))
    assert stands(scheduler) == [("class:new", 0, 30)], "the running request keeps its class"
    commands_for(scheduler, at(2), used("x", 10, 4), used("y", 10, 4))
    assert stands(scheduler) == [("class:new", 18, 0)]


def test_request_admitted_before_prices_existed_is_charged_by_its_bill() -> None:
    scheduler = a_scheduler(an_endpoint(places=5), policy=a_policy(tenants=("acme",)))
    ask(scheduler, 0, "x")
    scheduler.handle(policy_changed(a_rich_policy(a_spender("acme", a_day(100))), "other"), at(1))

    end = ended(scheduler.handle(used("x", 10, 40), at(2)))
    assert end.reserved == 0
    assert stands(scheduler) == [("tenant:acme", 90, 0)]


def test_lowered_limit_reports_its_crossed_threshold_immediately() -> None:
    scheduler = spending(a_spender("acme", a_day(100)))
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 40)), at(0))

    lower = policy_changed(a_rich_policy(a_spender("acme", a_day(40))), "lower")
    assert crossed(scheduler.handle(lower, at(1))) == [("tenant:acme", 40, 100)]
    assert crossed(scheduler.handle(replace(lower, hash="same"), at(2))) == []


def test_unchanged_ledger_totals_are_processed_faster() -> None:
    budgets = (a_day(5), Budget(Period.MONTH, usd(100)))
    many = [a_spender(f"org{number // 100}/{number}", *budgets) for number in range(5_000)]
    spent = [(f"tenant:{each.id}", period, 1) for each in many for period in Period]
    scheduler = spending(*many)
    first = took_s(lambda: scheduler.handle(it_is(0, *spent), at(0)))
    others = [it_is(0, *spent) for _ in range(3)]
    news = others[-1]

    again = min(took_s(partial(scheduler.handle, other, at(1))) for other in others)
    same = min(took_s(lambda: scheduler.handle(news, at(2))) for _ in range(3))
    assert scheduler.counters(at(3)).budgets == ()
    assert 4 * same < first
    assert again < first, "equal totals in new objects"
    later = it_is(86_400, *spent)
    scheduler.handle(later, at(86_400))
    assert {each.spent for each in scheduler.budget_status(at(86_400))} == {usd(1)}


def took_s(act: Callable[[], object]) -> float:
    """Returns the CPU time that a call takes, in seconds. Other processes do not affect it."""
    began = time.process_time()
    act()
    return time.process_time() - began


# No cheap pool available


CHEAP = Price(input_per_1m_tokens=NanoUsd(USD), output_per_1m_tokens=NanoUsd(USD))


def thrifty(*ready: str, starting: tuple[str, ...] = (), cost: float = 10**6) -> Scheduler:
    pools = (a_priced_pool("cheap", CHEAP), a_priced_pool("dear"))
    policy = a_cheap_policy(a_cheap_class(cost=cost), *pools)
    policy = replace(policy, models=(a_model("m", "cheap", "dear"),))
    scheduler = a_scheduler_without_endpoints(policy)
    for name in (*ready, *starting):
        scheduler.handle(joined(name, pool=name, places=1), at(0))
    for name in ready:
        scheduler.handle(readied(name), at(0))
    return scheduler


def test_new_scheduler_lets_a_cost_class_request_wait_for_a_starting_pool() -> None:
    scheduler = thrifty(starting=("dear",))
    event = asked("a")
    assert isinstance(event, RequestArrived)
    scheduler.handle(RequestReported(event.ticket, duration(1)), at(1))

    assert sent(scheduler.handle(readied("dear"), at(1.1))).pool == "dear"


def test_new_scheduler_without_endpoints_lets_a_request_wait_for_all_its_pools() -> None:
    event = asked("a")
    assert isinstance(event, RequestArrived)
    for cost, pool in ((10**6, "dear"), (0.001, "cheap")):
        scheduler = thrifty(cost=cost)
        scheduler.handle(RequestReported(event.ticket, duration(1)), at(1))
        commands_for(scheduler, at(1.1), *(joined(name, pool=name, places=1) for name in ("dear", "cheap")))
        assert sent(scheduler.handle(readied(pool), at(1.2))).pool == pool


def test_request_moves_to_an_expensive_pool_if_its_cheap_pool_is_unavailable() -> None:
    scheduler = thrifty("cheap", "dear")
    assert sent(ask(scheduler, 1, "a")).pool == "cheap"
    assert [each for each in ask(scheduler, 2, "b") if isinstance(each, End)] == []
    scheduler.handle(unreadied("cheap"), at(3))

    wakes = scheduler.next_wakeup()
    assert wakes is not None
    assert sent(scheduler.handle(TimerFired(), wakes)).pool == "dear"


def test_request_without_an_available_pool_expires() -> None:
    scheduler = thrifty("cheap")
    for request in "ab":
        ask(scheduler, 1, request)
    scheduler.handle(unreadied("cheap"), at(3))

    wakes = scheduler.next_wakeup()
    assert wakes is not None
    end = ended(scheduler.handle(TimerFired(), wakes))
    assert (end.request_id, end.outcome) == ("b", Outcome.NO_ENDPOINTS)


# Islands


def test_island_may_spend_its_share_of_the_remaining_budget() -> None:
    whole = a_rich_policy(a_spender("acme", a_day(1_000), a_day(10, hard=False)))
    scheduler = a_scheduler(an_endpoint(places=99), policy=a_rich_policy("acme"))
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 600)), at(0))
    scheduler.handle(policy_changed(share_of(whole, 4)), at(0))

    outcomes = [ask(scheduler, 1, f"r{number}") for number in range(5)]
    assert [isinstance(each[0], End) for each in outcomes] == [False] * 3 + [True] * 2
    reason = ended(outcomes[-1]).reason
    assert "while other gateways are unreachable, this gateway may spend $100.00 of the remainder" in reason

    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 900)), at(2))
    assert stands(scheduler)[0] == ("tenant:acme", 600, 90), "spending of other members does not count"
    scheduler.handle(it_is(86_400), at(86_400))
    assert [isinstance(ask(scheduler, 86_401, f"s{n}")[0], End) for n in range(6)] == [False] * 5 + [True]
    scheduler.handle(policy_changed(whole), at(86_402))
    assert sent(ask(scheduler, 86_403, "t"))


def test_island_share_follows_a_later_ledger_update() -> None:
    whole = a_rich_policy(a_spender("acme", a_day(1_000)))
    scheduler = a_scheduler(an_endpoint(places=99), policy=share_of(whole, 4))
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 900)), at(0))

    assert ended(ask(scheduler, 1, "a")).outcome is Outcome.BUDGET_EXCEEDED
    assert sent(ask(scheduler, 1, "b", most=7))


def test_remaining_budget_is_divided_once_despite_policy_changes() -> None:
    whole = a_rich_policy(a_spender("acme", a_day(1_000)))
    scheduler = a_scheduler(an_endpoint(places=99), policy=share_of(whole, 10))

    for number in range(5):
        scheduler.handle(policy_changed(share_of(whole, 10)), at(number))
        ask(scheduler, number, f"r{number}")
        scheduler.handle(used(f"r{number}", 10, 10), at(number))

    assert stands(scheduler) == [("tenant:acme", 90, 0)]
    # The new share applies to the same remaining budget. Once a tenth has been spent, nothing is left of a twentieth.
    scheduler.handle(policy_changed(share_of(whole, 20)), at(9))
    assert ended(ask(scheduler, 9, "s")).outcome is Outcome.BUDGET_EXCEEDED
    scheduler.handle(policy_changed(share_of(whole, 8)), at(9))
    assert sent(ask(scheduler, 9, "t"))


def test_island_share_applies_only_to_hard_budgets() -> None:
    service_class = replace(a_class(), budgets=(a_day(9),))
    policy = a_rich_policy(a_spender("acme", a_day(10), a_day(5, hard=False)), "bolt", classes=(service_class,))

    part = share_of(policy, 3)
    assert [each.share for each in part.tenants[0].budgets] == [(1, 3), (1, 1)]
    assert [each.share for each in part.classes[0].budgets] == [(1, 3)]
    assert share_of(policy, 1) == policy


# Formatting and prices


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "$0.00"), (usd(1_234.5), "$1,234.50"), (usd(0.25), "$0.25"), (123_456, "$0.000123")],
)
def test_amounts_are_formatted_in_dollars(amount: int, text: str) -> None:
    assert format_usd(amount) == text


def test_requests_before_the_first_price_cost_nothing() -> None:
    pool = replace(a_pool(), prices=(Price(at(10), input_per_1m_tokens=usd(1_000_000)),))
    policy = a_policy(tenants=(a_spender("acme", a_day(100)),), pools=(pool,), models=(a_model(),))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)

    ask(scheduler, 9, "a")
    assert stands(scheduler) == [("tenant:acme", 0, 0)]
    ask(scheduler, 10, "b")
    assert stands(scheduler) == [("tenant:acme", 0, 10)]
    assert scheduler.budget_status(Instant(0), TenantId("nobody")) == ()
