"""Tests for taking and restoring the scheduler snapshot."""

from dataclasses import fields, replace

import msgspec
import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.counters import Counters
from headgate.core.events import (
    AttemptEnded,
    AttemptEnding,
    AttemptProgress,
    AttemptsProgressed,
    CountedUpTo,
    TimerFired,
)
from headgate.core.hedging import SAMPLES_MIN
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits
from headgate.model.money import Budget, NanoUsd, Period, Price
from headgate.model.outcome import Outcome
from headgate.model.policy import DegradationRules, HealthRules, OptimizationGoal, Policy, RetryRules, SheddingRules
from headgate.model.tenant import Tenant
from headgate.model.units import MINUTE, SECOND, Instant, PoolName, RequestId, TenantId
from headgate.model.usage import Usage, UsageSource
from testing.builders import (
    BATCH,
    INTERACTIVE,
    a_class,
    a_policy,
    a_pool,
    a_scheduler,
    a_scheduler_without_endpoints,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    duration,
    endpoint_summary,
    failed,
    first_token,
    joined,
    readied,
)
from testing.takeover_reports import a_successor, running_report, waiting_report


def sent(commands: list[Command]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


def answered(request: str, *, tokens: int, prompt_tokens: int = 25, attempt: int = 1) -> AttemptEnded:
    usage = Usage(prompt_tokens, tokens, 0, UsageSource.ENGINE)
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.COMPLETED, usage=usage)


def after_an_hour(scheduler: Scheduler, policy: Policy | None = None, *, now: Instant) -> Scheduler:
    """Returns a scheduler restored from the encoded snapshot, with a clock one hour ahead."""
    written = msgspec.msgpack.encode(scheduler.counters(now))
    return a_successor(msgspec.msgpack.decode(written, type=Counters), policy, now=Instant(now + 3_600 * SECOND))


def test_snapshot_of_an_unused_scheduler_is_empty() -> None:
    nothing = replace(a_scheduler_without_endpoints().counters(at(0)), attempt_windows=())

    assert nothing == Counters()


def test_restored_scheduler_creates_the_same_snapshot() -> None:
    """Almost every part of the snapshot has content, and the clock is one hour ahead."""
    policy = everything()
    scheduler = lived(policy)
    before = scheduler.counters(at(3))

    assert [each.name for each in fields(Counters) if not getattr(before, each.name)] == ["cold_starts", "quarantine"]
    successor = after_an_hour(scheduler, policy, now=at(3))
    assert successor.counters(at(3 + 3_600)) == before


def test_entries_missing_from_a_new_policy_are_dropped() -> None:
    successor = a_successor(lived(everything()).counters(at(3)), Policy())
    told_again = successor.counters(at(3))

    assert [each.endpoint_id for each in told_again.endpoints] == ["e1", "e2"]
    assert replace(told_again, endpoints=(), attempt_windows=()) == Counters()


DAILY = Budget(Period.DAY, NanoUsd(10**12))
HEDGED = replace(INTERACTIVE, hedging=True, ttft_ns=duration(2), budgets=(DAILY,))
PRICED = replace(a_pool(), prices=(Price(per_hour=NanoUsd(10**9)),))
FLOORED = replace(BATCH, min_share_percent=10, optimize_for=OptimizationGoal.COST)


def everything() -> Policy:
    """Returns a policy that fills almost every part of the snapshot."""
    policy = a_policy(
        classes=(HEDGED, FLOORED),
        tenants=(
            Tenant(TenantId("acme"), limits=Limits(100, 100_000)),
            Tenant(TenantId("bolt"), limits=Limits(concurrency=500)),
            "coil",
        ),
        pools=(PRICED,),
        health=HealthRules(consecutive_failures_max=1),
    )
    ladder = DegradationRules(escalate_above=0, escalate_after_ns=duration(0.5))
    return replace(
        policy, degradation=ladder, shedding=SheddingRules(enabled=True, target_pressure=0, integral_gain=10_000)
    )


def lived(policy: Policy) -> Scheduler:
    """Returns a scheduler with a failed endpoint, completed requests and many queued requests."""
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2"), policy=policy)
    commands_for(scheduler, at(0), arrived("x", "coil"), arrived("y", "coil"), arrived("z", "coil"))
    commands_for(scheduler, at(0.4), first_token("x"))
    for name in ("x", "y", "z"):
        commands_for(scheduler, at(0.5), failed(name) if name == "y" else answered(name, tokens=100))
    for number in range(24):
        tenant = ("acme", "bolt")[number % 2]
        commands_for(scheduler, at(1), arrived(f"r{number}", tenant, service_class=(None, "batch")[number % 3 == 0]))
    for tenth in range(1, 20):
        commands_for(scheduler, at(1 + tenth / 10), TimerFired())
    return scheduler


# Fairness and minimum shares


def test_fairness_charges_are_restored() -> None:
    scheduler = a_scheduler(places=1)
    commands_for(scheduler, at(0), arrived("a1", "acme"), arrived("a2", "acme"), arrived("b1", "bolt"))
    commands_for(scheduler, at(1), answered("a1", tokens=1_000))
    # Bolt is served, and acme is charged for a long response.
    commands_for(scheduler, at(1), answered("b1", tokens=1), answered("a2", tokens=5_000))
    commands_for(scheduler, at(1), arrived("c", "coil"), arrived("a3", "acme"), arrived("b2", "bolt"))

    successor = a_successor(scheduler.counters(at(1)), now=at(1))
    commands_for(
        successor,
        at(1),
        joined("e1"),
        running_report("c", "coil"),
        waiting_report("a3", "acme"),
        waiting_report("b2", "bolt"),
    )
    commands_for(successor, at(1), readied("e1"))
    assert sent(commands_for(successor, at(1), completed("c"), completed("b2"))) == ["b2", "a3"]


def test_tenant_without_queued_requests_is_removed_after_restore() -> None:
    scheduler = a_scheduler(places=1)
    commands_for(scheduler, at(0), arrived("first"), arrived("a", "acme"), arrived("b", "bolt"))

    successor = a_successor(scheduler.counters(at(0)))
    commands_for(successor, at(0), joined("e1"), waiting_report("b", "bolt"), readied("e1"))
    [turns] = successor.counters(at(0)).fair_queues
    assert turns.waiting == ()


def test_minimum_share_credit_is_restored() -> None:
    policy = a_policy(classes=(INTERACTIVE, FLOORED))
    scheduler = a_scheduler(places=1, policy=policy)
    commands_for(scheduler, at(0), arrived("i1"), arrived("b", service_class="batch"), arrived("i2"), completed("i1"))

    [earned] = a_successor(scheduler.counters(at(0)), policy).counters(at(0)).min_shares
    assert (earned.pool, earned.band) == ("p", 1)
    assert earned.credit > 0
    assert a_successor(scheduler.counters(at(0))).counters(at(0)).min_shares == ()


# Limits

LIMITED = a_policy(tenants=(Tenant(TenantId("acme"), limits=Limits(10, 1_000, concurrency=9)), "bolt"))


def left(scheduler: Scheduler, now: Instant) -> tuple[int, int]:
    found = scheduler._state.limits.left(TenantId("acme"), now)
    assert found is not None
    assert found.requests is not None
    assert found.tokens is not None
    return found.requests.remaining, found.tokens.remaining


def test_used_limits_are_restored_and_refill() -> None:
    scheduler = a_scheduler(places=9, policy=LIMITED)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))
    before = left(scheduler, at(0))

    successor = after_an_hour(scheduler, LIMITED, now=at(0))
    assert left(successor, at(3_600)) == before == (8, 650)
    assert left(successor, at(3_600 + 6)) == (9, 750)


def test_limits_refill_according_to_the_age_of_the_snapshot() -> None:
    scheduler = a_scheduler(places=9, policy=LIMITED)
    commands_for(scheduler, at(0), arrived("a"), arrived("b"))

    assert left(a_successor(scheduler.counters(at(0)), LIMITED, ago=6), at(0)) == (9, 750)


def test_added_and_removed_limits_are_not_restored() -> None:
    scheduler = a_scheduler(places=9, policy=LIMITED)
    commands_for(scheduler, at(0), arrived("a"))
    changed = a_policy(tenants=(Tenant(TenantId("acme"), limits=Limits(5)), Tenant(TenantId("bolt"), limits=Limits(7))))

    successor = a_successor(scheduler.counters(at(0)), changed)
    [told_again] = successor.counters(at(0)).limits
    assert (told_again.tenant, told_again.requests, told_again.tokens) == ("acme", MINUTE, 0)


# Retry budgets


def test_exhausted_retry_credit_is_restored() -> None:
    policy = a_policy(retry=RetryRules(credit_burst=100, credit_per_first_attempt=0))
    scheduler = a_scheduler(places=9, policy=policy)
    commands_for(scheduler, at(0), arrived("a"), failed("a"))

    successor = a_successor(scheduler.counters(at(0)), policy)
    commands_for(successor, at(0), joined("e1"), readied("e1"), arrived("b"))
    [ending] = [each for each in commands_for(successor, at(0), failed("b")) if isinstance(each, End)]
    assert ending.outcome is Outcome.ENGINE_ERROR


def test_recent_extra_attempts_are_restored() -> None:
    policy = a_policy(retry=RetryRules(pool_retries_min=1))
    scheduler = a_scheduler(an_endpoint("e1", places=9), an_endpoint("e2", places=9), policy=policy)
    commands_for(scheduler, at(0), arrived("a"), failed("a"))
    counters = scheduler.counters(at(0))

    for ago, outcome in ((0, Outcome.ENGINE_ERROR), (20, None)):
        successor = a_successor(counters, policy, ago=ago)
        commands_for(successor, at(0), joined("e1"), joined("e2"), readied("e1"), readied("e2"), arrived("b"))
        ends = [each.outcome for each in commands_for(successor, at(0), failed("b")) if isinstance(each, End)]
        assert ends == ([] if outcome is None else [outcome])


def test_snapshot_rounds_first_attempt_ages_up_and_extra_attempt_ages_down() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=9), an_endpoint("e2", places=9))
    commands_for(scheduler, at(0.3), arrived("a"), failed("a"))

    everywhere, at_pool = scheduler.counters(at(0.5)).attempt_windows
    assert (everywhere.pool, at_pool.pool) == ("", "p")
    assert everywhere[1:] == at_pool[1:] == (((duration(0.5), 1),), ((0, 1),))


def test_older_first_attempt_does_not_displace_a_newer_one() -> None:
    scheduler = a_successor()
    commands_for(scheduler, at(0), joined("e1", places=99))

    for number, ago in enumerate((*range(11), 0.5, 3.5, 15)):
        commands_for(scheduler, at(0), running_report(f"r{number}", sent_ago=ago, counted=CountedUpTo.ARRIVAL))

    window = scheduler._state.retry_budget._window(PoolName("p"))
    assert window.firsts(at(0)) == 12


# Learned values


def test_learned_response_lengths_are_restored() -> None:
    scheduler = a_scheduler(places=1)
    for number in range(20):
        commands_for(scheduler, at(0), arrived(f"r{number}"), answered(f"r{number}", tokens=1_000, prompt_tokens=50))
    ticket = arrived("r").ticket

    successor = after_an_hour(scheduler, now=at(0))
    learned, taught = scheduler._state.predictions, successor._state.predictions
    assert taught.output_tokens(ticket, ticket.model) == learned.output_tokens(ticket, ticket.model) != (150, 400)
    assert taught.prompt_tokens(ticket, ticket.model) == learned.prompt_tokens(ticket, ticket.model) > 25


def test_times_to_first_token_are_restored() -> None:
    policy = a_policy(classes=(HEDGED, BATCH), retry=RetryRules(credit_burst=100_000, pool_retries_min=1_000))
    scheduler = a_scheduler(places=1, policy=policy)
    for number in range(SAMPLES_MIN):
        commands_for(scheduler, at(number), arrived(f"r{number}"))
        commands_for(scheduler, at(number + 0.1), first_token(f"r{number}"), completed(f"r{number}"))

    successor = after_an_hour(scheduler, policy, now=at(SAMPLES_MIN))
    assert successor.counters(at(3_700)).first_tokens == scheduler.counters(at(SAMPLES_MIN)).first_tokens
    commands_for(successor, at(3_700), joined("e1"), joined("e2"), readied("e1"), readied("e2"), arrived("r"))
    assert sent(commands_for(successor, at(3_700.2), TimerFired())) == ["r"]


def test_learned_endpoint_speed_is_restored_when_the_endpoint_joins() -> None:
    scheduler = a_scheduler(places=1)
    commands_for(scheduler, at(0), arrived("r"), first_token("r"))
    for second in range(1, 81):
        commands_for(scheduler, at(second / 4), AttemptsProgressed((AttemptProgress(RequestId("r"), 1, tokens=8),)))
    slow = endpoint_summary(scheduler, "e1").decode_percent

    successor = after_an_hour(scheduler, now=at(20))
    assert successor.counters(at(3_620)).endpoints == scheduler.counters(at(20)).endpoints
    commands_for(successor, at(3_620), joined("e1"), joined("e2"))
    assert endpoint_summary(successor, "e1").decode_percent == slow > 150
    assert endpoint_summary(successor, "e2").decode_percent == 100
    assert len(successor.counters(at(3_620)).endpoints) == 2


def test_ejected_endpoint_is_on_trial_after_restore() -> None:
    policy = a_policy(health=HealthRules(consecutive_failures_max=1))
    scheduler = a_scheduler(places=2, policy=policy)
    commands_for(scheduler, at(0), arrived("r"), failed("r"))

    successor = a_successor(scheduler.counters(at(0)), policy)
    commands_for(successor, at(0), joined("e1", places=2), readied("e1"))
    assert endpoint_summary(successor, "e1").state == "trial"
    assert sent(commands_for(successor, at(0), arrived("a"), arrived("b"))) == ["a"]


def test_start_duration_is_restored() -> None:
    patient = replace(a_class("interactive"), cold_start_wait_ns_max=duration(100))
    policy = a_policy(classes=(patient,), pools=(replace(a_pool("p"), hold_max=9),))
    scheduler = a_scheduler_without_endpoints(policy)
    commands_for(scheduler, at(0), arrived("r"))
    commands_for(scheduler, at(7), joined("e1"), readied("e1"))

    [start] = a_successor(scheduler.counters(at(7)), policy).counters(at(7)).cold_starts
    assert start == ("p", duration(7))


# Degradation and load shedding

PRESSED = replace(
    a_policy(classes=(replace(INTERACTIVE, ttft_ns=duration(20)), FLOORED)),
    degradation=DegradationRules(
        escalate_above=0, escalate_after_ns=duration(0.4), recover_below=1, recover_after_ns=duration(1), level_max=3
    ),
)


def pressed(policy: Policy = PRESSED, *, seconds: float = 2) -> Scheduler:
    """Returns a scheduler that has been overloaded for this many seconds."""
    scheduler = a_scheduler(places=1, policy=policy)
    for number in range(20):
        commands_for(scheduler, at(0), arrived(f"r{number}"))
    for tenth in range(1, round(10 * seconds) + 1):
        commands_for(scheduler, at(tenth / 10), TimerFired())
    return scheduler


def level(scheduler: Scheduler) -> int:
    return max((each.level for each in scheduler.summary().degradation), default=0)


def test_degradation_level_is_restored() -> None:
    scheduler = pressed()
    successor = after_an_hour(scheduler, PRESSED, now=at(2))

    assert level(successor) == level(scheduler) == 3
    assert successor._state.queue.min_shares.limited_bands == scheduler._state.queue.min_shares.limited_bands != {}
    assert successor.next_wakeup() == at(3_602.1)


def test_restored_degradation_level_falls_when_pressure_ends() -> None:
    successor = after_an_hour(pressed(), PRESSED, now=at(2))
    for tenth in range(1, 100):
        commands_for(successor, at(3_602 + tenth / 10), TimerFired())

    assert level(successor) == 0
    assert successor.next_wakeup() is None


def test_pending_degradation_level_increase_is_restored() -> None:
    scheduler = pressed(seconds=0.3)
    [route] = scheduler.counters(at(0.3)).pool_groups

    assert route.degradations[0].step == 0
    assert route.degradations[0].above_ns == duration(0.2)
    successor = a_successor(scheduler.counters(at(0.3)), PRESSED, now=at(0.3))
    assert successor.counters(at(0.3)).pool_groups == (route,)
    assert successor.next_wakeup() is None


def test_restored_degradation_level_is_limited_by_the_new_policy() -> None:
    lower = replace(PRESSED, degradation=replace(PRESSED.degradation, level_max=1))
    other_bands = replace(PRESSED, classes=(replace(INTERACTIVE, band=7),))

    assert level(after_an_hour(pressed(), lower, now=at(2))) == 1
    assert level(after_an_hour(pressed(), other_bands, now=at(2))) == 0


def test_shed_fraction_is_restored() -> None:
    shedding = SheddingRules(enabled=True, target_pressure=0, integral_gain=10_000)
    policy = replace(PRESSED, degradation=DegradationRules(enabled=False), shedding=shedding)
    scheduler = pressed(policy)
    [shed] = scheduler.summary().degradation

    successor = after_an_hour(scheduler, policy, now=at(2))
    assert successor.summary().degradation == (shed,)
    assert shed.shed_ppm > 0
    [route] = successor.counters(at(3_602)).pool_groups
    assert len(route.ranks) == 20
    without = replace(policy, shedding=SheddingRules())
    assert after_an_hour(scheduler, without, now=at(2)).summary().degradation[0].shed_ppm == 0


# Preconditions


def test_snapshot_is_restored_only_after_the_policy_is_set_and_before_any_request() -> None:
    with pytest.raises(AssertionError, match="before a policy was set"):
        Scheduler().restore(Counters(), at(0))
    scheduler = a_scheduler_without_endpoints()
    with pytest.raises(AssertionError, match="time went backwards"):
        scheduler.restore(Counters(), at(-1))
    commands_for(scheduler, at(0), running_report("a"))
    with pytest.raises(AssertionError, match="with open requests"):
        scheduler.restore(Counters(), at(0))
    scheduler = a_scheduler_without_endpoints()
    commands_for(scheduler, at(0), running_report("a", over=True))
    with pytest.raises(AssertionError, match="with open attempts"):
        scheduler.restore(Counters(), at(0))
