"""Tests for bills: the cost and cause of each attempt."""

from dataclasses import replace

import pytest

from headgate.core.commands import End
from headgate.core.events import Event, TimerFired
from headgate.core.hedging import SAMPLES_MIN
from headgate.core.scheduler import Scheduler
from headgate.model.money import NANO_USD_PER_USD, Bill, BillCause, NanoUsd, Price
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
    client_disconnected,
    commands_for,
    completed,
    duration,
    engine_rejected,
    failed,
    first_token,
    grace_over,
    joined,
    progressed,
    readied,
    timed_out,
    unreadied,
)
from testing.takeover_reports import a_successor, running_report

ONE_A_SECOND = Price(per_hour=NanoUsd(3_600 * NANO_USD_PER_USD))
HOSTED = Price(
    input_per_1m_tokens=NanoUsd(3_000_000),
    cached_per_1m_tokens=NanoUsd(1_000_000),
    output_per_1m_tokens=NanoUsd(9_000_000),
)
"""Price in nano-dollars: 3 per prompt token, 1 per cached prompt token and 9 per output token."""
HEDGED = replace(a_class("interactive"), hedging=True)


def priced(*prices: Price, policy: Policy | None = None) -> Policy:
    policy = policy or a_policy(retry=RetryRules(attempts_max=2, credit_burst=100_000, pool_retries_min=1_000))
    return replace(policy, pools=(replace(a_pool(), prices=prices),))


def ended(scheduler: Scheduler, seconds: float, *events: Event) -> tuple[Bill, ...]:
    return next(each for each in commands_for(scheduler, at(seconds), *events) if isinstance(each, End)).bills


def causes(bills: tuple[Bill, ...]) -> list[tuple[int, BillCause]]:
    return [(each.attempt, each.cause) for each in bills]


def time_of(bill: Bill) -> float:
    return round((bill.input_ns + bill.output_ns + bill.overhead_ns) / SECOND, 6)


def cost_of(bill: Bill) -> float:
    return round((bill.input_nano_usd + bill.output_nano_usd + bill.overhead_nano_usd) / NANO_USD_PER_USD, 6)


# Causes


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        (completed("r"), BillCause.ANSWER),
        (engine_rejected("r"), BillCause.ENGINE_REJECTED),
        (client_disconnected("r"), BillCause.CLIENT_DISCONNECTED),
        (grace_over("r"), BillCause.SHUTDOWN),
    ],
)
def test_attempt_is_billed_with_the_reason_it_ended(event: Event, cause: BillCause) -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"))

    [bill] = ended(scheduler, 2, event)

    assert (bill.attempt, bill.cause, time_of(bill)) == (1, cause, 2)


@pytest.mark.parametrize("ending", [failed("r"), timed_out("r")])
def test_failure_after_the_first_token_is_billed_as_engine_failure(ending: Event) -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"), first_token("r"))

    assert causes(ended(scheduler, 2, ending)) == [(1, BillCause.ENGINE_ERROR)]


def test_attempt_exceeding_the_deadline_is_billed_as_expired() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r", complete_within=3))

    assert causes(ended(scheduler, 3, TimerFired())) == [(1, BillCause.DEADLINE_EXCEEDED)]


def test_failed_attempt_is_billed_as_retry_if_another_attempt_follows() -> None:
    scheduler = a_scheduler(an_endpoint("e1"), an_endpoint("e2"))
    commands_for(scheduler, at(0), arrived("r"))
    commands_for(scheduler, at(1), failed("r"))

    first, second = ended(scheduler, 3, completed("r", 2))

    assert causes((first, second)) == [(1, BillCause.RETRY), (2, BillCause.ANSWER)]
    assert (time_of(first), time_of(second)) == (1, 2)


def test_failed_attempt_without_a_retry_is_billed_as_engine_failure() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("r"))
    # No endpoint is available for a retry.
    commands_for(scheduler, at(1), unreadied("e1"), failed("r"))

    assert causes(ended(scheduler, 1.5, client_disconnected("r"))) == [(1, BillCause.ENGINE_ERROR)]


def test_unsent_request_has_no_bill() -> None:
    scheduler = a_scheduler()
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert ended(scheduler, 1, client_disconnected("waits")) == ()


# Hedges


def a_hedged_scheduler() -> Scheduler:
    """Returns a scheduler with a request that was sent to one endpoint at 10 s and hedged at about 10.1 s."""
    rules = RetryRules(credit_burst=100_000, pool_retries_min=1_000)
    scheduler = a_scheduler(
        an_endpoint("e1", places=4), an_endpoint("e2", places=4), policy=a_policy(classes=(HEDGED, BATCH), retry=rules)
    )
    for number in range(SAMPLES_MIN):
        commands_for(scheduler, at(0.1 * number), arrived(f"t{number}"))
        commands_for(scheduler, at(0.1 * number + 0.1), first_token(f"t{number}"), completed(f"t{number}", tokens=5))
    commands_for(scheduler, at(10), arrived("r"))
    wakeup = scheduler.next_wakeup()
    assert wakeup is not None
    commands_for(scheduler, wakeup, TimerFired())
    assert [each.in_flight for each in scheduler.summary().endpoints] == [1, 1]
    return scheduler


def test_superseded_attempt_is_billed_as_hedge() -> None:
    scheduler = a_hedged_scheduler()
    commands_for(scheduler, at(11), first_token("r", 2))
    assert causes(ended(scheduler, 12, completed("r", 2))) == [(1, BillCause.HEDGE), (2, BillCause.ANSWER)]

    scheduler = a_hedged_scheduler()
    commands_for(scheduler, at(11), first_token("r", 1))
    commands_for(scheduler, at(11.5), aborted("r", 2))
    first, second = ended(scheduler, 12, completed("r", 1))
    assert causes((first, second)) == [(1, BillCause.ANSWER), (2, BillCause.HEDGE)]
    assert time_of(second) < 1.5


def test_second_attempt_of_a_cancelled_request_is_billed_as_hedge() -> None:
    scheduler = a_hedged_scheduler()

    assert causes(ended(scheduler, 11, client_disconnected("r"))) == [
        (1, BillCause.CLIENT_DISCONNECTED),
        (2, BillCause.HEDGE),
    ]


# Prices


def test_hourly_price_is_charged_for_engine_time() -> None:
    scheduler = a_scheduler(policy=priced(ONE_A_SECOND))
    commands_for(scheduler, at(0), arrived("r"))
    commands_for(scheduler, at(1), first_token("r"))

    [bill] = ended(scheduler, 3, completed("r", tokens=10))

    assert cost_of(bill) == time_of(bill) == 3
    assert (bill.input_nano_usd, bill.output_nano_usd, bill.overhead_nano_usd) == (
        bill.input_ns,
        bill.output_ns,
        bill.overhead_ns,
    )
    assert min(bill.input_nano_usd, bill.output_nano_usd, bill.overhead_nano_usd) > 0


def test_bill_uses_the_current_price() -> None:
    dearer = replace(ONE_A_SECOND, per_hour=NanoUsd(2 * ONE_A_SECOND.per_hour))
    prices = (replace(ONE_A_SECOND, since=at(10)), replace(dearer, since=at(20)))
    scheduler = a_scheduler(policy=priced(*prices))
    costs: list[float] = []
    for second in (8, 18, 28):
        commands_for(scheduler, at(second), arrived(f"r{second}"))
        [bill] = ended(scheduler, second + 1, completed(f"r{second}"))
        costs.append(cost_of(bill))

    assert costs == [0, 1, 2]


def test_hosted_engine_is_billed_by_reported_usage() -> None:
    scheduler = a_scheduler(policy=priced(HOSTED))
    commands_for(scheduler, at(0), arrived("r"))
    usage = Usage(100, 20, 40, UsageSource.ENGINE)

    [bill] = ended(scheduler, 3, replace(completed("r"), usage=usage))

    assert (bill.input_nano_usd, bill.output_nano_usd, bill.overhead_nano_usd) == (60 * 3 + 40, 20 * 9, 0)
    assert time_of(bill) == 3


def test_cancelled_attempt_on_a_hosted_engine_is_billed_for_its_prompt() -> None:
    scheduler = a_scheduler(policy=priced(HOSTED), places=2)
    commands_for(scheduler, at(0), arrived("silent", prompt_bytes=400), arrived("speaks", prompt_bytes=400))
    commands_for(scheduler, at(1), first_token("speaks"))

    [silent] = ended(scheduler, 2, client_disconnected("silent"))
    [speaks] = ended(scheduler, 2, client_disconnected("speaks"))

    assert (silent.input_nano_usd, silent.output_nano_usd) == (100 * 3, 0)
    assert (speaks.input_nano_usd, speaks.output_nano_usd) == (100 * 3, 0)


def test_attempt_on_a_hosted_engine_is_billed_at_shutdown_only_if_its_prompt_was_processed() -> None:
    scheduler = a_scheduler(policy=priced(HOSTED), places=2)
    commands_for(scheduler, at(0), arrived("silent", prompt_bytes=400), arrived("speaks", prompt_bytes=400))
    commands_for(scheduler, at(1), first_token("speaks"), progressed("speaks"))

    [silent] = ended(scheduler, 2, grace_over("silent"))
    [speaks] = ended(scheduler, 2, grace_over("speaks"))

    assert (silent.cause, silent.input_nano_usd, silent.output_nano_usd) == (BillCause.SHUTDOWN, 0, 0)
    assert (speaks.cause, speaks.input_nano_usd, speaks.output_nano_usd) == (BillCause.SHUTDOWN, 100 * 3, 8 * 9)


# Takeover by a new scheduler


def test_adopted_attempt_is_billed_from_its_age() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1", places=4))
    commands_for(
        scheduler,
        at(0),
        running_report("long", sent_ago=60, tokens=500, began=True),
        running_report("new"),
        readied("e1"),
    )
    commands_for(scheduler, at(0), running_report("whole", sent_ago=60, stream=False))

    long, new, whole_bill = (ended(scheduler, 1, completed(name))[0] for name in ("long", "new", "whole"))

    assert time_of(new) < time_of(long) < 61
    assert long.output_ns > long.input_ns > 0
    assert new.output_ns == 0
    assert whole_bill.output_ns > 0


def test_adopted_attempt_for_an_ended_request_is_late() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), running_report("r", sent_ago=60, over=True), readied("e1"))

    assert commands_for(scheduler, at(2), aborted("r")) == []
    [times] = scheduler.pop_endpoint_times(at(2))
    assert (times.abort_lag_ns, times.billed_ns) == (duration(2), 0)


def test_ended_hedge_does_not_hide_the_responding_attempt_under_a_new_scheduler() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), joined("e2"))
    commands_for(
        scheduler,
        at(0),
        running_report("r", began=True),
        running_report("r", attempt=2, endpoint="e2", let_go=True, hedge=True),
    )
    commands_for(scheduler, at(1), aborted("r", attempt=2))

    assert causes(ended(scheduler, 2, client_disconnected("r"))) == [
        (1, BillCause.CLIENT_DISCONNECTED),
        (2, BillCause.HEDGE),
    ]


def test_adopted_superseded_attempt_is_billed_with_its_request() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1"), joined("e2"))
    commands_for(
        scheduler,
        at(0),
        running_report("r", sent_ago=2, let_go=True),
        running_report("r", endpoint="e2", attempt=2, hedge=True, began=True),
    )

    assert causes(ended(scheduler, 1, completed("r", 2))) == [(1, BillCause.HEDGE), (2, BillCause.ANSWER)]
