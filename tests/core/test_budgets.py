"""How much may be spent in a day or a month, who is refused when it is, and who gives up quality instead?"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from headgate.core.admission.budgets import dollars
from headgate.core.commands import BudgetCrossed, Command, Dispatch, End
from headgate.core.counters import BudgetCounter, Counters
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptReported,
    BudgetsTold,
    Counted,
    RequestArrived,
    RequestReported,
    RequestSettled,
    Spent,
    TimerFired,
)
from headgate.core.scheduler import Scheduler
from headgate.core.shares import share_of
from headgate.model.caps import Caps
from headgate.model.limits import Limits
from headgate.model.money import NANO_USD_PER_USD, Budget, BudgetLeft, NanoUsd, Period, Price
from headgate.model.outcome import Outcome
from headgate.model.policy import LadderRules, Policy, Pool, Promise, ServiceClass, Variant
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
    client_left,
    failed,
    joined,
    lasting,
    policy_changed,
    readied,
    told,
    unreadied,
)
from testing.reports import runs

USD = NANO_USD_PER_USD
DAY = lasting(86_400)
TOKENS = Price(input_tokens=NanoUsd(1_000_000 * USD), output_tokens=NanoUsd(2_000_000 * USD))
"""A dollar for each prompt token, two for each token of the answer."""


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
    """With a prompt of so many tokens, and an answer of so many at most: by default 30 dollars."""
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
) -> BudgetsTold:
    return BudgetsTold(
        at(day),
        at(day + 86_400),
        at(month),
        at(month + month_lasts),
        tuple(Spent(scope, period, usd(amount)) for scope, period, amount in spent),
    )


def stands(scheduler: Scheduler, tenant: str | None = None) -> list[tuple[str, float, float]]:
    """Scope, spent and reserved of each budget, in dollars."""
    rows = scheduler.budgets_left(at(99_999_999), None if tenant is None else TenantId(tenant))
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


def test_what_a_request_may_cost_is_reserved_and_what_it_cost_is_spent() -> None:
    scheduler = spending(a_spender("acme", a_day(100)))

    ask(scheduler, 0, "a")
    assert stands(scheduler) == [("tenant:acme", 0, 30)]

    end = ended(scheduler.handle(used("a", 10, 4), at(1)))
    assert end.reserved == usd(30)
    assert stands(scheduler) == [("tenant:acme", 18, 0)]


def test_a_thousand_requests_at_once_are_let_in_as_far_as_the_budget_has_room_for_their_most() -> None:
    scheduler = spending(a_spender("acme", a_day(1_000)))

    ends = [ask(scheduler, 0, f"r{number}") for number in range(1_000)]
    refused = [each for each in ends if isinstance(each[0], End)]
    assert len(refused) == 1_000 - 33
    assert {ended(each).outcome for each in refused} == {Outcome.OVER_BUDGET}

    for number in range(33):
        scheduler.handle(used(f"r{number}", 10, 10), at(1))
    assert stands(scheduler) == [("tenant:acme", 990, 0)]
    assert ended(ask(scheduler, 2, "one more")).outcome is Outcome.OVER_BUDGET


def test_a_bill_above_its_reservation_overdraws_by_the_difference_and_no_more() -> None:
    scheduler = spending(a_spender("acme", a_day(60)))

    ask(scheduler, 0, "a")
    ask(scheduler, 0, "b")
    scheduler.handle(used("a", 10, 25), at(1))
    scheduler.handle(used("b", 10, 10), at(1))

    assert stands(scheduler) == [("tenant:acme", 90, 0)]
    assert ended(ask(scheduler, 2, "c", prompt=1, most=0)).outcome is Outcome.OVER_BUDGET


def test_a_refusal_names_the_scope_the_period_the_amounts_and_what_to_do() -> None:
    scheduler = spending(a_spender("acme", a_day(40)))
    scheduler.handle(it_is(-3_600), at(0))
    ask(scheduler, 0, "a")
    scheduler.handle(used("a", 10, 0), at(0))

    ask(scheduler, 0, "b", most=5)
    end = ended(ask(scheduler, 0, "c"))

    assert end.outcome is Outcome.OVER_BUDGET
    assert end.retry_after_ns == lasting(3_600), "as long as anybody is told to wait"
    assert end.reason == (
        'of the $40.00 that tenant "acme" may spend in a day $10.00 are spent and $20.00 reserved by requests that '
        "have not ended; this one may take $30.00; ask for a larger budget, or wait until the day ends, in 23 h 0 min"
    )


def test_as_long_as_nobody_has_told_what_day_it_is_no_time_is_named() -> None:
    scheduler = spending(a_spender("acme", a_day(1)))

    end = ended(ask(scheduler, 0, "a"))

    assert end.retry_after_ns is None
    assert end.reason.endswith("or wait until the day ends")
    assert scheduler.budgets_left(at(0)) == (
        BudgetLeft("tenant:acme", Period.DAY, True, usd(1), NanoUsd(0), NanoUsd(0), None),
    )


@pytest.mark.parametrize(("left", "text"), [(90_000, "1 d 1 h"), (61, "2 min")])
def test_long_waits_are_told_in_days_and_short_ones_in_minutes(left: float, text: str) -> None:
    scheduler = spending(a_spender("acme", Budget(Period.MONTH, usd(1))))
    scheduler.handle(it_is(month=-86_400, month_lasts=86_400 + left), at(0))

    assert f"until the month ends, in {text}" in ended(ask(scheduler, 0, "a")).reason


def test_budgets_hold_at_every_level_of_the_path_and_for_the_class() -> None:
    classes = (
        replace(a_class("interactive"), budgets=(Budget(Period.MONTH, usd(95)),)),
        a_class("batch", band=1),
    )
    scheduler = spending(
        a_spender("acme", a_day(100)), a_spender("acme/x", a_day(70)), "acme/x/key", "bolt", classes=classes
    )

    ask(scheduler, 0, "a", "acme/x/key")
    ask(scheduler, 0, "b", "acme/x/key", class_named="batch")
    assert stands(scheduler) == [("tenant:acme", 0, 60), ("tenant:acme/x", 0, 60), ("class:interactive", 0, 30)]
    assert 'tenant "acme/x" may spend' in ended(ask(scheduler, 0, "c", "acme/x/key")).reason
    ask(scheduler, 0, "d", "bolt")
    ask(scheduler, 0, "e", "bolt")
    assert 'class "interactive" may spend in a month' in ended(ask(scheduler, 0, "f", "bolt")).reason
    assert stands(scheduler, "acme/x/key") == [("tenant:acme", 0, 60), ("tenant:acme/x", 0, 60)]
    assert stands(scheduler, "bolt") == []


def test_who_is_refused_for_another_reason_has_reserved_nothing() -> None:
    policy = replace(a_rich_policy(a_spender("acme", a_day(100))), classes=(a_class(queue_length_max=0),))
    scheduler = a_scheduler(an_endpoint(places=1), policy=policy)

    ask(scheduler, 0, "a")
    assert ended(ask(scheduler, 0, "b")).outcome is Outcome.QUEUE_FULL
    assert stands(scheduler) == [("tenant:acme", 0, 30)]


def test_what_the_platform_pays_is_not_spent_and_what_a_client_left_is() -> None:
    policy = a_rich_policy(a_spender("acme", a_day(100)))
    scheduler = a_scheduler(an_endpoint(places=9), policy=replace(policy, retry=replace(policy.retry, attempts_max=1)))

    ask(scheduler, 0, "a")
    ask(scheduler, 0, "b")
    scheduler.handle(failed("a"), at(1))
    assert stands(scheduler) == [("tenant:acme", 0, 30)]
    end = ended(scheduler.handle(client_left("b"), at(2)))
    assert stands(scheduler) == [("tenant:acme", sum(each.input + each.output for each in end.bills) / USD, 0)]


def test_the_dearest_of_its_pools_counts_and_the_price_of_the_moment() -> None:
    dear = replace(
        a_pool("dear"), prices=(Price(input_tokens=usd(3_000_000)), Price(at(60), input_tokens=usd(7_000_000)))
    )
    later = replace(a_pool("later"), prices=(Price(at(999), input_tokens=usd(9_000_000)),))
    policy = a_policy(tenants=(a_spender("acme", a_day(1_000)),), pools=(a_priced_pool(), dear, later))
    scheduler = a_scheduler(
        an_endpoint(places=9), an_endpoint("e2", pool="dear"), an_endpoint("e3", pool="later"), policy=policy
    )

    ask(scheduler, 0, "a", most=0)
    ask(scheduler, 60, "b", most=0)

    assert stands(scheduler) == [("tenant:acme", 0, 30 + 70)]


def test_without_any_price_nothing_is_reserved() -> None:
    policy = a_policy(tenants=(a_spender("acme", a_day(0)),))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)

    assert sent(ask(scheduler, 0, "a"))
    assert stands(scheduler) == [("tenant:acme", 0, 0)]


def test_an_hour_is_reckoned_as_if_nobody_else_was_there() -> None:
    hourly = a_priced_pool(price=Price(hour=usd(3_600)))
    policy = a_policy(tenants=(a_spender("acme", a_day(1_000)),), pools=(hourly,))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)

    ask(scheduler, 0, "a", most=100)
    [(_, _, alone)] = stands(scheduler)
    assert 1.0 < alone < 1.1, "a hundred steps of ten milliseconds at a dollar a second, the prompt and what each adds"

    ask(scheduler, 0, "b", most=100, n=4)
    [(_, _, both)] = stands(scheduler)
    assert 1.0 < both - alone < 1.2, "four answers to one prompt share their steps"
    ask(scheduler, 0, "c", most=None)
    [(_, _, all_three)] = stands(scheduler)
    assert 4.0 < all_three - both < 4.4, "who names no length is taken for one in ten: 400 tokens"
    ask(scheduler, 0, "d", api=Api.EMBEDDINGS)
    [(_, _, with_embedding)] = stands(scheduler)
    assert with_embedding - all_three < 0.02


# Periods and the ledger


def test_a_new_day_begins_with_nothing_spent_and_with_what_is_reserved() -> None:
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


def test_of_what_is_known_and_what_the_ledger_has_the_larger_counts() -> None:
    scheduler = spending(a_spender("acme", a_day(100)))
    ask(scheduler, 0, "a")
    scheduler.handle(used("a", 10, 10), at(0))

    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 20), ("tenant:gone", Period.DAY, 7)), at(1))
    assert stands(scheduler) == [("tenant:acme", 30, 0)]
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 45)), at(2))
    assert stands(scheduler) == [("tenant:acme", 45, 0)]


def test_a_budget_that_is_new_begins_with_what_the_ledger_said_and_keeps_what_it_knows() -> None:
    scheduler = spending("acme")
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 60)), at(0))
    ask(scheduler, 0, "a")

    scheduler.handle(policy_changed(a_rich_policy(a_spender("acme", a_day(80)))), at(1))
    assert stands(scheduler) == [("tenant:acme", 60, 30)]
    scheduler.handle(policy_changed(a_rich_policy(a_spender("acme", a_day(200)))), at(2))
    assert sent(ask(scheduler, 3, "b"))
    scheduler.handle(used("a", 10, 10), at(4))
    assert stands(scheduler) == [("tenant:acme", 90, 30)]


def test_of_what_the_ledger_tells_the_highest_mark_is_told_with_the_period_it_is_of() -> None:
    scheduler = spending(a_spender("acme", a_day(100), a_day(1_000, hard=False)), a_spender("other", a_day(1)))
    commands = scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 850), ("tenant:other", Period.DAY, 2)), at(86_401))

    assert crossed(commands) == [("tenant:acme", 100, 100), ("tenant:acme", 1_000, 80), ("tenant:other", 1, 100)]
    assert {each.began for each in commands if isinstance(each, BudgetCrossed)} == {at(0)}
    again = scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 1_000)), at(86_402))
    assert crossed(again) == [("tenant:acme", 1_000, 100)]


def test_that_half_four_fifths_and_all_is_spent_is_told_once_for_each_limit_and_period() -> None:
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
    assert (first.percent, first.budget.reset_ns) == (50, DAY - lasting(1))


# Soft budgets


def a_soft_policy(**variants: object) -> Policy:
    giving = replace(
        a_class(),
        variants=(Variant(2, Caps(n=None, best_of=None, logprobs=None, prompt_logprobs=None, output_tokens=7)),),
        **variants,
    )
    tenants = (a_spender("acme", a_day(40, hard=False)), "bolt")
    return replace(a_rich_policy(*tenants), classes=(giving,))


def test_a_soft_budget_refuses_nobody_and_takes_what_the_highest_level_takes() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_soft_policy())

    whole = sent(ask(scheduler, 0, "a"))
    also = sent(ask(scheduler, 0, "b"))
    less = sent(ask(scheduler, 0, "c"))
    other = sent(ask(scheduler, 0, "d", "bolt"))

    assert [each.level for each in (whole, also, less, other)] == [0, 0, LadderRules().level_max, 0]
    assert [each.caps.output_tokens for each in (whole, also, less, other)] == [None, None, 7, None]
    for name in ("a", "b", "c"):
        scheduler.handle(used(name, 1, 0), at(1))
    assert sent(ask(scheduler, 1, "e")).level == 0


def test_a_class_that_keeps_quality_keeps_it_beyond_a_soft_budget() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_soft_policy(promise=Promise.QUALITY))
    for name in "abc":
        order = sent(ask(scheduler, 0, name))

    assert (order.level, order.caps.output_tokens) == (0, None)


def test_a_soft_budget_of_a_class_is_for_all_of_its_requests() -> None:
    policy = a_soft_policy(budgets=(a_day(20, hard=False),))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)

    assert sent(ask(scheduler, 0, "a")).level == 0
    assert sent(ask(scheduler, 0, "b", "bolt")).level == 6


# Classes that promise to be cheap


def a_cheap_class(*, cost: float | None = None, unit: float | None = None, **changes: object) -> ServiceClass:
    return replace(
        a_class(),
        promise=Promise.COST,
        cost_max=None if cost is None else usd(cost),
        unit_cost_max=None if unit is None else usd(unit),
        **changes,
    )


def a_cheap_policy(service_class: ServiceClass, *pools: Pool, unit: str | None = None) -> Policy:
    policy = a_policy(tenants=("acme", "bolt"), pools=pools or (a_priced_pool(),))
    return replace(policy, classes=(service_class,), unit=unit)


def test_a_cheap_class_lowers_the_answer_to_what_it_may_cost() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(a_cheap_class(cost=50)))

    assert sent(ask(scheduler, 0, "a", most=None)).caps.output_tokens == 20
    assert sent(ask(scheduler, 0, "b", most=900, n=2)).caps.output_tokens == 10
    assert sent(ask(scheduler, 0, "c", prompt=49, most=None, api=Api.EMBEDDINGS)).caps.output_tokens is None


def test_a_stricter_cap_of_the_class_stays() -> None:
    service_class = a_cheap_class(cost=50, caps=Caps(output_tokens=5))
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(service_class))

    assert sent(ask(scheduler, 0, "a", most=None)).caps.output_tokens == 5


def test_what_costs_nothing_is_not_shortened() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(a_cheap_class(cost=50), a_pool()))

    assert sent(ask(scheduler, 0, "a", most=None)).caps.output_tokens is None


def test_a_prompt_that_is_too_dear_by_itself_is_refused_for_good() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(a_cheap_class(cost=50)))

    end = ended(ask(scheduler, 0, "a", prompt=50))

    assert (end.outcome, end.retry_after_ns) == (Outcome.OVER_BUDGET, lasting(3_600))
    assert end.reason == (
        'the prompt alone, with an answer of a token, comes to $52.00, and in class "interactive" it may cost $50.00; '
        "shorten the prompt or use another class"
    )


def test_a_cheap_class_goes_to_the_cheapest_pool_that_serves() -> None:
    cheap = a_priced_pool("cheap", Price(input_tokens=usd(100_000)))
    policy = a_cheap_policy(a_cheap_class(cost=50), a_priced_pool(), cheap)
    both = a_scheduler(an_endpoint(places=9), an_endpoint("e2", pool="cheap", places=1), policy=policy)
    one = a_scheduler(an_endpoint(places=9), policy=policy)

    assert sent(ask(both, 0, "a")).pool == "cheap"
    assert ask(both, 0, "b") == [], "it waits for the cheap one, though the other is free"
    assert sent(ask(one, 0, "a")).pool == "p"


def test_another_class_goes_where_it_would() -> None:
    policy = a_cheap_policy(replace(a_cheap_class(cost=50), promise=Promise.LATENCY))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)

    assert sent(ask(scheduler, 0, "a", most=900)).caps.output_tokens is None


def of_unit(scheduler: Scheduler, now: float, request: str, unit: str, tenant: str = "acme") -> list[Command]:
    return ask(scheduler, now, request, tenant, most=None, metadata=(("team", "x"), ("case", unit)))


def test_what_a_unit_has_cost_today_is_taken_from_what_it_may() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(a_cheap_class(unit=100), unit="case"))
    scheduler.handle(it_is(0), at(0))

    assert sent(of_unit(scheduler, 0, "a", "k")).caps.output_tokens == 45
    assert ended(of_unit(scheduler, 0, "b", "k")).reason == (
        'the prompt alone, with an answer of a token, comes to $12.00, and case "k" may cost $0.00 more today in class '
        '"interactive"; shorten the prompt or use another class'
    )
    assert sent(of_unit(scheduler, 0, "c", "other")).caps.output_tokens == 45
    assert sent(of_unit(scheduler, 0, "d", "k", "bolt")).caps.output_tokens == 45, "of another tenant"
    assert sent(ask(scheduler, 0, "e", most=None)).caps.output_tokens is None, "it names no unit"
    scheduler.handle(used("a", 10, 25), at(1))
    assert sent(of_unit(scheduler, 2, "f", "k")).caps.output_tokens == 15
    scheduler.handle(used("f", 10, 15), at(3))
    scheduler.handle(it_is(86_400), at(86_400))
    assert sent(of_unit(scheduler, 86_401, "g", "k")).caps.output_tokens == 45


def test_a_request_that_is_tried_again_has_its_own_reservation_left() -> None:
    scheduler = a_scheduler(an_endpoint(places=9), policy=a_cheap_policy(a_cheap_class(unit=100), unit="case"))
    of_unit(scheduler, 0, "a", "k")

    again = sent(scheduler.handle(failed("a"), at(1)))

    assert (again.attempt, again.caps.output_tokens) == (2, 45)


def test_the_unit_that_was_quiet_longest_is_forgotten_first() -> None:
    scheduler = a_scheduler(an_endpoint(places=99), policy=a_cheap_policy(a_cheap_class(unit=100), unit="case"))
    scheduler._state.budgets._units.units_max = 2
    for number, unit in enumerate(("k", "l", "k", "m")):
        of_unit(scheduler, number, f"r{number}", unit)

    assert sent(of_unit(scheduler, 9, "l again", "l")).caps.output_tokens == 45
    assert ended(of_unit(scheduler, 9, "m again", "m")).outcome is Outcome.OVER_BUDGET


# From one scheduler to the next


def successor(counters: Counters, *, policy: Policy | None = None, ahead: float = 0) -> Scheduler:
    scheduler = Scheduler()
    told(scheduler, at(ahead), policy_changed(policy or a_rich_policy(a_spender("acme", a_day(100)))))
    scheduler.restore(counters, at(ahead))
    return scheduler


def test_what_was_spent_is_told_to_a_successor_with_when_the_period_began() -> None:
    scheduler = spending(a_spender("acme", a_day(100)), "bolt")
    scheduler.handle(it_is(-100), at(0))
    ask(scheduler, 0, "a", prompt=60, most=0)
    scheduler.handle(used("a", 60, 0), at(1))
    counters = scheduler.counters(at(10))

    same, other = successor(counters, ahead=5), successor(counters, ahead=90_000)
    assert crossed(same.handle(it_is(-100), at(6))) == [], "that half is spent was told"
    assert stands(same) == [("tenant:acme", 60, 0)]
    other.handle(it_is(86_300), at(90_001))
    assert stands(other) == [("tenant:acme", 0, 0)], "nobody was there when the day began, and it did all the same"


def test_counters_of_a_day_that_is_over_are_not_taken() -> None:
    scheduler = spending(a_spender("acme", a_day(100)))
    scheduler.handle(it_is(-100), at(0))
    ask(scheduler, 0, "a")
    scheduler.handle(used("a", 10, 10), at(1))
    counters = scheduler.counters(at(10))

    after = Scheduler()
    told(after, at(86_400), policy_changed(a_rich_policy(a_spender("acme", a_day(100)))), it_is(86_300))
    after.restore(counters, at(86_400), told_ns_ago=lasting(86_390))

    assert stands(after) == [("tenant:acme", 0, 0)]


def test_counters_of_one_whom_nobody_told_the_day_are_of_today() -> None:
    scheduler = spending(a_spender("acme", a_day(100)))
    ask(scheduler, 0, "a")
    scheduler.handle(used("a", 10, 10), at(1))
    counters = scheduler.counters(at(10))

    assert stands(successor(counters)) == [("tenant:acme", 30, 0)]
    assert stands(successor(counters, policy=a_rich_policy("acme"))) == []


def test_requests_that_were_let_in_before_reserve_again_and_are_not_refused() -> None:
    scheduler = successor(Counters(), policy=a_rich_policy(a_spender("acme", a_day(1))))
    first, second = asked("a"), asked("b")
    assert isinstance(first, RequestArrived)
    assert isinstance(second, RequestArrived)

    told(
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


def test_of_a_request_that_is_over_only_its_place_is_taken() -> None:
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
            over=True,
        ),
        at(1),
    )

    assert stands(scheduler) == [("tenant:acme", 0, 0)]


def test_what_ended_since_the_counters_is_spent_by_its_bill_or_as_reckoned() -> None:
    hourly = a_policy(tenants=(a_spender("acme", a_day(100)),), pools=(a_priced_pool(price=Price(hour=usd(36_000))),))
    usage = Usage(10, 10, 4, UsageSource.ENGINE)

    def after(policy: Policy | None, **told_of_it: object) -> float:
        scheduler = successor(Counters(), policy=policy)
        event = asked("a")
        assert isinstance(event, RequestArrived)
        settled = RequestSettled(event.ticket, 1, service_class=ClassName("interactive"), counted=Counted.SENT)
        scheduler.handle(replace(settled, **told_of_it), at(1))
        [(_, spent, reserved)] = stands(scheduler)
        assert reserved == 0
        return spent

    assert after(None, cost=usd(13), pool=PoolName("p")) == 13
    assert after(None, usage=usage, pool=PoolName("p")) == 26, "what was cached is free here"
    assert after(None, service_class=None) == 0
    assert 0 < after(hourly, usage=usage, pool=PoolName("p")) < 0.1
    assert after(None, usage=usage, pool=PoolName("gone")) == 0


def test_a_bill_that_the_ledger_has_is_not_counted_again_when_it_is_told_of_late() -> None:
    other = Budget(Period.MONTH, usd(100))
    scheduler = successor(Counters(), policy=a_rich_policy(a_spender("acme", a_day(100), other)))
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 15)), at(1))
    settled = RequestSettled(arrived("a").ticket, 1, PoolName("p"), ClassName("interactive"), cost=usd(15))

    scheduler.handle(settled, at(2))
    assert stands(scheduler) == [("tenant:acme", 15, 0), ("tenant:acme", 15, 0)], "of the month nothing was heard"
    usage = Usage(1, 2, 0, UsageSource.ENGINE)
    scheduler.handle(replace(settled, cost=None, usage=usage), at(3))
    assert [each[1] for each in stands(scheduler)] == [20, 20], "a bill that nobody has made is in no ledger"


def test_of_what_is_in_the_counters_but_for_its_cost_the_cost_is_counted_and_nothing_else() -> None:
    limited = replace(a_spender("acme", a_day(100)), limits=Limits(requests_per_minute=60))
    scheduler = successor(Counters(), policy=a_rich_policy(limited))
    settled = RequestSettled(arrived("a").ticket, 1, PoolName("p"), ClassName("interactive"), cost=usd(15))
    before = scheduler.limits_left(TenantId("acme"), at(0))

    scheduler.handle(replace(settled, counted=Counted.ENDED), at(0))
    assert stands(scheduler) == [("tenant:acme", 15, 0)]
    assert scheduler.limits_left(TenantId("acme"), at(0)) == before


@pytest.mark.parametrize(("cost", "spent"), [(usd(0), 0), (usd(25), 25), (None, 16)])
def test_what_a_request_cost_that_is_over_comes_with_what_of_it_is_under_way(
    cost: NanoUsd | None, spent: float
) -> None:
    scheduler = successor(Counters())
    scheduler.handle(replace(runs("a", prompt_bytes=40, tokens=3, over=True), cost=cost), at(1))
    told(scheduler, at(2), aborted("a"))

    assert stands(scheduler) == [("tenant:acme", spent, 0)]


def test_what_the_ledger_has_is_left_to_it() -> None:
    scheduler = spending(a_spender("acme", a_day(100)), a_spender("bolt", a_day(100)), a_spender("coil", a_day(100)))
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 9), ("tenant:bolt", Period.DAY, 9)), at(0))
    ask(scheduler, 1, "b", "bolt")
    scheduler.handle(used("b", 10, 1), at(2))

    assert scheduler.counters(at(3)).budgets == (BudgetCounter("tenant:bolt", Period.DAY, usd(21), at(0)),)


# Another policy


def test_who_moves_to_another_class_reserves_and_spends_there() -> None:
    new = replace(a_class("new"), budgets=(a_day(100),))
    policy = a_rich_policy(classes=(a_class("old"), new))
    scheduler = a_scheduler(an_endpoint(places=1), policy=policy)
    for request in "xy":
        ask(scheduler, 0, request, class_named=ClassName("old"))

    scheduler.handle(policy_changed(replace(policy, classes=(new,)), "other"), at(1))
    assert stands(scheduler) == [("class:new", 0, 30)], "what runs goes on as it was sent"
    told(scheduler, at(2), used("x", 10, 4), used("y", 10, 4))
    assert stands(scheduler) == [("class:new", 18, 0)]


def test_what_came_in_before_anything_had_a_price_is_spent_by_its_bill() -> None:
    scheduler = a_scheduler(an_endpoint(places=5), policy=a_policy(tenants=("acme",)))
    ask(scheduler, 0, "x")
    scheduler.handle(policy_changed(a_rich_policy(a_spender("acme", a_day(100))), "other"), at(1))

    end = ended(scheduler.handle(used("x", 10, 40), at(2)))
    assert end.reserved == 0
    assert stands(scheduler) == [("tenant:acme", 90, 0)]


def test_a_lower_limit_is_passed_as_soon_as_it_holds() -> None:
    scheduler = spending(a_spender("acme", a_day(100)))
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 40)), at(0))

    lower = policy_changed(a_rich_policy(a_spender("acme", a_day(40))), "lower")
    assert crossed(scheduler.handle(lower, at(1))) == [("tenant:acme", 40, 100)]
    assert crossed(scheduler.handle(replace(lower, hash="same"), at(2))) == []


def test_what_is_told_again_takes_no_time() -> None:
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
    assert again < first, "though it is another row that says the same"
    later = it_is(86_400, *spent)
    scheduler.handle(later, at(86_400))
    assert {each.spent for each in scheduler.budgets_left(at(86_400))} == {usd(1)}


def took_s(act: Callable[[], object]) -> float:
    """CPU time, which others on the machine do not lengthen."""
    began = time.process_time()
    act()
    return time.process_time() - began


# Where no cheap pool takes work


CHEAP = Price(input_tokens=NanoUsd(USD), output_tokens=NanoUsd(USD))


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


def test_a_successor_lets_a_cheap_class_wait_for_whatever_is_starting() -> None:
    scheduler = thrifty(starting=("dear",))
    event = asked("a")
    assert isinstance(event, RequestArrived)
    scheduler.handle(RequestReported(event.ticket, lasting(1)), at(1))

    assert sent(scheduler.handle(readied("dear"), at(1.1))).pool == "dear"


def test_a_successor_without_any_endpoint_lets_it_wait_for_all_where_it_may_go() -> None:
    event = asked("a")
    assert isinstance(event, RequestArrived)
    for cost, pool in ((10**6, "dear"), (0.001, "cheap")):
        scheduler = thrifty(cost=cost)
        scheduler.handle(RequestReported(event.ticket, lasting(1)), at(1))
        told(scheduler, at(1.1), *(joined(name, pool=name, places=1) for name in ("dear", "cheap")))
        assert sent(scheduler.handle(readied(pool), at(1.2))).pool == pool


def test_one_whose_cheap_pool_is_gone_goes_to_a_dear_one_before_it_ends() -> None:
    scheduler = thrifty("cheap", "dear")
    assert sent(ask(scheduler, 1, "a")).pool == "cheap"
    assert [each for each in ask(scheduler, 2, "b") if isinstance(each, End)] == []
    scheduler.handle(unreadied("cheap"), at(3))

    wakes = scheduler.next_wakeup()
    assert wakes is not None
    assert sent(scheduler.handle(TimerFired(), wakes)).pool == "dear"


def test_one_for_whom_no_pool_takes_work_ends() -> None:
    scheduler = thrifty("cheap")
    for request in "ab":
        ask(scheduler, 1, request)
    scheduler.handle(unreadied("cheap"), at(3))

    wakes = scheduler.next_wakeup()
    assert wakes is not None
    end = ended(scheduler.handle(TimerFired(), wakes))
    assert (end.request_id, end.outcome) == ("b", Outcome.NO_ENDPOINTS)


# Islands


def test_one_of_four_may_spend_a_quarter_of_what_was_left() -> None:
    whole = a_rich_policy(a_spender("acme", a_day(1_000), a_day(10, hard=False)))
    scheduler = a_scheduler(an_endpoint(places=99), policy=a_rich_policy("acme"))
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 600)), at(0))
    scheduler.handle(policy_changed(share_of(whole, 4)), at(0))

    outcomes = [ask(scheduler, 1, f"r{number}") for number in range(5)]
    assert [isinstance(each[0], End) for each in outcomes] == [False] * 3 + [True] * 2
    reason = ended(outcomes[-1]).reason
    assert "as long as not all gateways answer no more than $100.00 of what was left is spent here" in reason

    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 900)), at(2))
    assert stands(scheduler)[0] == ("tenant:acme", 600, 90), "what the others spend is theirs"
    scheduler.handle(it_is(86_400), at(86_400))
    assert [isinstance(ask(scheduler, 86_401, f"s{n}")[0], End) for n in range(6)] == [False] * 5 + [True]
    scheduler.handle(policy_changed(whole), at(86_402))
    assert sent(ask(scheduler, 86_403, "t"))


def test_one_that_is_told_late_what_was_spent_divides_what_is_left_then() -> None:
    whole = a_rich_policy(a_spender("acme", a_day(1_000)))
    scheduler = a_scheduler(an_endpoint(places=99), policy=share_of(whole, 4))
    scheduler.handle(it_is(0, ("tenant:acme", Period.DAY, 900)), at(0))

    assert ended(ask(scheduler, 1, "a")).outcome is Outcome.OVER_BUDGET
    assert sent(ask(scheduler, 1, "b", most=7))


def test_what_was_left_is_divided_once_however_often_the_rules_change_meanwhile() -> None:
    whole = a_rich_policy(a_spender("acme", a_day(1_000)))
    scheduler = a_scheduler(an_endpoint(places=99), policy=share_of(whole, 10))

    for number in range(5):
        scheduler.handle(policy_changed(share_of(whole, 10)), at(number))
        ask(scheduler, number, f"r{number}")
        scheduler.handle(used(f"r{number}", 10, 10), at(number))

    assert stands(scheduler) == [("tenant:acme", 90, 0)]
    # Another part is a part of the same: of a tenth that is spent nothing is left where it is a twentieth.
    scheduler.handle(policy_changed(share_of(whole, 20)), at(9))
    assert ended(ask(scheduler, 9, "s")).outcome is Outcome.OVER_BUDGET
    scheduler.handle(policy_changed(share_of(whole, 8)), at(9))
    assert sent(ask(scheduler, 9, "t"))


def test_all_shares_of_budgets_come_to_what_is_left() -> None:
    service_class = replace(a_class(), budgets=(a_day(9),))
    policy = a_rich_policy(a_spender("acme", a_day(10), a_day(5, hard=False)), "bolt", classes=(service_class,))

    part = share_of(policy, 3)
    assert [each.part for each in part.tenants[0].budgets] == [(1, 3), (1, 1)]
    assert [each.part for each in part.classes[0].budgets] == [(1, 3)]
    assert share_of(policy, 1) == policy


# For people


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "$0.00"), (usd(1_234.5), "$1,234.50"), (usd(0.25), "$0.25"), (123_456, "$0.000123")],
)
def test_amounts_are_told_in_dollars(amount: int, text: str) -> None:
    assert dollars(amount) == text


def test_moments_before_the_first_price_cost_nothing() -> None:
    pool = replace(a_pool(), prices=(Price(at(10), input_tokens=usd(1_000_000)),))
    policy = a_policy(tenants=(a_spender("acme", a_day(100)),), pools=(pool,), models=(a_model(),))
    scheduler = a_scheduler(an_endpoint(places=9), policy=policy)

    ask(scheduler, 9, "a")
    assert stands(scheduler) == [("tenant:acme", 0, 0)]
    ask(scheduler, 10, "b")
    assert stands(scheduler) == [("tenant:acme", 0, 10)]
    assert scheduler.budgets_left(Instant(0), TenantId("nobody")) == ()
