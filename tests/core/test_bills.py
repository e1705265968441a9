"""What is an attempt billed for, and why was it made?"""

from dataclasses import replace

import pytest

from headgate.core.commands import End
from headgate.core.events import Event, TimerFired
from headgate.core.hedging import SEEN_MIN
from headgate.core.scheduler import Scheduler
from headgate.model.money import NANO_USD_PER_USD, Bill, Cause, NanoUsd, Price
from headgate.model.policy import Policy, RetryRules
from headgate.model.units import SECOND
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    BATCH,
    a_class,
    a_policy,
    a_pool,
    a_scheduler,
    aborted,
    an_endpoint,
    arrived,
    at,
    client_left,
    completed,
    failed,
    fell_silent,
    first_token,
    grace_over,
    joined,
    lasting,
    progressed,
    readied,
    refused,
    told,
    unreadied,
)
from testing.reports import a_successor, runs

ONE_A_SECOND = Price(hour=NanoUsd(3_600 * NANO_USD_PER_USD))
HOSTED = Price(input_tokens=NanoUsd(3_000_000), cached_tokens=NanoUsd(1_000_000), output_tokens=NanoUsd(9_000_000))
"""A billionth of a dollar for each token of a cached prompt, three for another, nine for one of an answer."""
HEDGED = replace(a_class("interactive"), hedges=True)


def priced(*prices: Price, policy: Policy | None = None) -> Policy:
    policy = policy or a_policy(retry=RetryRules(attempts_max=2, credit_burst=100_000, pool_extra_min=1_000))
    return replace(policy, pools=(replace(a_pool(), prices=prices),))


def ended(scheduler: Scheduler, seconds: float, *events: Event) -> tuple[Bill, ...]:
    return next(each for each in told(scheduler, at(seconds), *events) if isinstance(each, End)).bills


def causes(bills: tuple[Bill, ...]) -> list[tuple[int, Cause]]:
    return [(each.attempt, each.cause) for each in bills]


def time_of(bill: Bill) -> float:
    return round((bill.input_ns + bill.output_ns + bill.overhead_ns) / SECOND, 6)


def cost_of(bill: Bill) -> float:
    return round((bill.input + bill.output + bill.overhead) / NANO_USD_PER_USD, 6)


# Causes


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (completed("r"), Cause.ANSWER),
        (refused("r"), Cause.REFUSED),
        (client_left("r"), Cause.CLIENT_LEFT),
        (grace_over("r"), Cause.LEAVING),
    ],
)
def test_an_attempt_is_billed_for_what_ended_it(event: Event, cause: Cause) -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"))

    [bill] = ended(scheduler, 2, event)

    assert (bill.attempt, bill.cause, time_of(bill)) == (1, cause, 2)


@pytest.mark.parametrize("ending", [failed("r"), fell_silent("r")])
def test_a_failure_after_the_first_token_is_the_engines(ending: Event) -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"), first_token("r"))

    assert causes(ended(scheduler, 2, ending)) == [(1, Cause.ENGINE_FAILED)]


def test_what_passes_its_callers_deadline_at_an_engine_has_expired() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r", complete_within=3))

    assert causes(ended(scheduler, 3, TimerFired())) == [(1, Cause.EXPIRED)]


def test_one_that_fails_and_is_followed_by_another_was_a_retrys() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    told(scheduler, at(0), arrived("r"))
    told(scheduler, at(1), failed("r"))

    first, second = ended(scheduler, 3, completed("r", 2))

    assert causes((first, second)) == [(1, Cause.RETRY), (2, Cause.ANSWER)]
    assert (time_of(first), time_of(second)) == (1, 2)


def test_one_that_fails_and_is_followed_by_none_has_failed_however_its_request_ends() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("r"))
    # Nobody is there to try it again.
    told(scheduler, at(1), unreadied("e1"), failed("r"))

    assert causes(ended(scheduler, 1.5, client_left("r"))) == [(1, Cause.ENGINE_FAILED)]


def test_what_was_never_sent_has_no_bill() -> None:
    scheduler = a_scheduler()
    told(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert ended(scheduler, 1, client_left("waits")) == ()


# Hedges


def a_hedged_scheduler() -> Scheduler:
    """Two endpoints, and a request that both were asked for at 10 s and at about 10.1 s."""
    rules = RetryRules(credit_burst=100_000, pool_extra_min=1_000)
    scheduler = a_scheduler(
        an_endpoint("e1", places=4), an_endpoint("e2", places=4), policy=a_policy(classes=(HEDGED, BATCH), retry=rules)
    )
    for number in range(SEEN_MIN):
        told(scheduler, at(0.1 * number), arrived(f"t{number}"))
        told(scheduler, at(0.1 * number + 0.1), first_token(f"t{number}"), completed(f"t{number}", tokens=5))
    told(scheduler, at(10), arrived("r"))
    wakeup = scheduler.next_wakeup()
    assert wakeup is not None
    told(scheduler, wakeup, TimerFired())
    assert [each.in_flight for each in scheduler.summary().endpoints] == [1, 1]
    return scheduler


def test_who_is_let_go_was_a_hedge_whether_it_has_ended_or_not() -> None:
    scheduler = a_hedged_scheduler()
    told(scheduler, at(11), first_token("r", 2))
    assert causes(ended(scheduler, 12, completed("r", 2))) == [(1, Cause.HEDGE), (2, Cause.ANSWER)]

    scheduler = a_hedged_scheduler()
    told(scheduler, at(11), first_token("r", 1))
    told(scheduler, at(11.5), aborted("r", 2))
    first, second = ended(scheduler, 12, completed("r", 1))
    assert causes((first, second)) == [(1, Cause.ANSWER), (2, Cause.HEDGE)]
    assert time_of(second) < 1.5


def test_a_caller_who_leaves_has_not_asked_for_the_second_attempt() -> None:
    scheduler = a_hedged_scheduler()

    assert causes(ended(scheduler, 11, client_left("r"))) == [(1, Cause.CLIENT_LEFT), (2, Cause.HEDGE)]


# Prices


def test_an_endpoint_paid_by_the_hour_costs_its_time() -> None:
    scheduler = a_scheduler(policy=priced(ONE_A_SECOND))
    told(scheduler, at(0), arrived("r"))
    told(scheduler, at(1), first_token("r"))

    [bill] = ended(scheduler, 3, completed("r", tokens=10))

    assert cost_of(bill) == time_of(bill) == 3
    assert (bill.input, bill.output, bill.overhead) == (bill.input_ns, bill.output_ns, bill.overhead_ns)
    assert min(bill.input, bill.output, bill.overhead) > 0


def test_the_price_is_that_of_the_moment() -> None:
    dearer = replace(ONE_A_SECOND, hour=NanoUsd(2 * ONE_A_SECOND.hour))
    prices = (replace(ONE_A_SECOND, since=at(10)), replace(dearer, since=at(20)))
    scheduler = a_scheduler(policy=priced(*prices))
    costs: list[float] = []
    for second in (8, 18, 28):
        told(scheduler, at(second), arrived(f"r{second}"))
        [bill] = ended(scheduler, second + 1, completed(f"r{second}"))
        costs.append(cost_of(bill))

    assert costs == [0, 1, 2]


def test_a_hosted_engine_costs_what_it_says_was_used() -> None:
    scheduler = a_scheduler(policy=priced(HOSTED))
    told(scheduler, at(0), arrived("r"))
    usage = Usage(100, 20, 40, UsageSource.ENGINE)

    [bill] = ended(scheduler, 3, replace(completed("r"), usage=usage))

    assert (bill.input, bill.output, bill.overhead) == (60 * 3 + 40, 20 * 9, 0)
    assert time_of(bill) == 3


def test_stopped_attempt_at_a_hosted_engine_is_billed_for_its_prompt() -> None:
    scheduler = a_scheduler(policy=priced(HOSTED), places=2)
    told(scheduler, at(0), arrived("silent", prompt_bytes=400), arrived("speaks", prompt_bytes=400))
    told(scheduler, at(1), first_token("speaks"))

    [silent] = ended(scheduler, 2, client_left("silent"))
    [speaks] = ended(scheduler, 2, client_left("speaks"))

    assert (silent.input, silent.output) == (100 * 3, 0)
    assert (speaks.input, speaks.output) == (100 * 3, 0)


def test_attempt_at_a_hosted_engine_is_billed_at_shutdown_only_for_a_computed_prompt() -> None:
    scheduler = a_scheduler(policy=priced(HOSTED), places=2)
    told(scheduler, at(0), arrived("silent", prompt_bytes=400), arrived("speaks", prompt_bytes=400))
    told(scheduler, at(1), first_token("speaks"), progressed("speaks"))

    [silent] = ended(scheduler, 2, grace_over("silent"))
    [speaks] = ended(scheduler, 2, grace_over("speaks"))

    assert (silent.cause, silent.input, silent.output) == (Cause.LEAVING, 0, 0)
    assert (speaks.cause, speaks.input, speaks.output) == (Cause.LEAVING, 100 * 3, 8 * 9)


# From one scheduler to the next


def test_what_began_under_another_scheduler_is_billed_from_its_age() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1", places=4))
    told(scheduler, at(0), runs("long", sent_ago=60, tokens=500, began=True), runs("new"), readied("e1"))
    told(scheduler, at(0), runs("whole", sent_ago=60, stream=False))

    long, new, whole_bill = (ended(scheduler, 1, completed(name))[0] for name in ("long", "new", "whole"))

    assert time_of(new) < time_of(long) < 61
    assert long.output_ns > long.input_ns > 0
    assert new.output_ns == 0
    assert whole_bill.output_ns > 0


def test_an_attempt_whose_request_is_over_is_late_from_the_start() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), runs("r", sent_ago=60, over=True), readied("e1"))

    assert told(scheduler, at(2), aborted("r")) == []
    [times] = scheduler.take_endpoint_times(at(2))
    assert (times.late_ns, times.billed_ns) == (lasting(2), 0)


def test_a_second_attempt_that_ends_first_under_a_successor_does_not_hide_the_one_that_answers() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), joined("e2"))
    told(scheduler, at(0), runs("r", began=True), runs("r", attempt=2, endpoint="e2", let_go=True, hedge=True))
    told(scheduler, at(1), aborted("r", attempt=2))

    assert causes(ended(scheduler, 2, client_left("r"))) == [(1, Cause.CLIENT_LEFT), (2, Cause.HEDGE)]


def test_one_that_was_let_go_under_another_scheduler_is_billed_with_its_request() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1"), joined("e2"))
    told(
        scheduler,
        at(0),
        runs("r", sent_ago=2, let_go=True),
        runs("r", endpoint="e2", attempt=2, hedge=True, began=True),
    )

    assert causes(ended(scheduler, 1, completed("r", 2))) == [(1, Cause.HEDGE), (2, Cause.ANSWER)]
