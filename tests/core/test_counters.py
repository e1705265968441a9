"""What does a successor know that was told the counters of a scheduler?"""

from dataclasses import fields, replace

import msgspec
import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.counters import Counters
from headgate.core.events import AttemptEnded, AttemptEnding, AttemptProgress, Counted, Progressed, TimerFired
from headgate.core.hedging import SEEN_MIN
from headgate.core.scheduler import Scheduler
from headgate.model.limits import Limits
from headgate.model.money import Budget, NanoUsd, Period, Price
from headgate.model.outcome import Outcome
from headgate.model.policy import HealthRules, LadderRules, Policy, Promise, RetryRules, SheddingRules
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
    completed,
    endpoint_summary,
    failed,
    first_token,
    joined,
    lasting,
    readied,
    told,
)
from testing.reports import a_successor, runs, waits


def sent(commands: list[Command]) -> list[str]:
    return [each.request_id for each in commands if isinstance(each, Dispatch)]


def answered(request: str, *, tokens: int, prompt_tokens: int = 25, attempt: int = 1) -> AttemptEnded:
    usage = Usage(prompt_tokens, tokens, 0, UsageSource.ENGINE)
    return AttemptEnded(RequestId(request), attempt, AttemptEnding.COMPLETED, usage=usage)


def after_an_hour(scheduler: Scheduler, policy: Policy | None = None, *, now: Instant) -> Scheduler:
    """A successor whose clock is an hour ahead, and to which the counters came over a wire."""
    written = msgspec.msgpack.encode(scheduler.counters(now))
    return a_successor(msgspec.msgpack.decode(written, type=Counters), policy, now=Instant(now + 3_600 * SECOND))


def test_a_scheduler_that_has_done_nothing_has_nothing_to_tell() -> None:
    nothing = replace(a_scheduler_without_endpoints().counters(at(0)), windows=())

    assert nothing == Counters()


def test_a_successor_tells_the_same() -> None:
    """All of it at once, with the clock an hour ahead."""
    policy = everything()
    scheduler = lived(policy)
    before = scheduler.counters(at(3))

    assert [each.name for each in fields(Counters) if not getattr(before, each.name)] == ["starts", "quarantine"]
    successor = after_an_hour(scheduler, policy, now=at(3))
    assert successor.counters(at(3 + 3_600)) == before


def test_what_a_new_policy_does_not_name_is_left_out() -> None:
    successor = a_successor(lived(everything()).counters(at(3)), Policy())
    told_again = successor.counters(at(3))

    assert [each.endpoint_id for each in told_again.endpoints] == ["e1", "e2"]
    assert replace(told_again, endpoints=(), windows=()) == Counters()


DAILY = Budget(Period.DAY, NanoUsd(10**12))
HEDGED = replace(INTERACTIVE, hedges=True, ttft_ns=lasting(2), budgets=(DAILY,))
PRICED = replace(a_pool(), prices=(Price(hour=NanoUsd(10**9)),))
FLOORED = replace(BATCH, floor_percent=10, promise=Promise.COST)


def everything() -> Policy:
    """A policy under which everything is counted."""
    policy = a_policy(
        classes=(HEDGED, FLOORED),
        tenants=(
            Tenant(TenantId("acme"), limits=Limits(100, 100_000)),
            Tenant(TenantId("bolt"), limits=Limits(concurrency=500)),
            "coil",
        ),
        pools=(PRICED,),
        health=HealthRules(failures_max=1),
    )
    ladder = LadderRules(climb_above=0, climb_after_ns=lasting(0.5))
    return replace(policy, ladder=ladder, shedding=SheddingRules(enabled=True, pressure=0, integral_gain=10_000))


def lived(policy: Policy) -> Scheduler:
    """Two endpoints, of which the second has failed; some answers, and many who wait."""
    scheduler = a_scheduler(an_endpoint("e1", places=2), an_endpoint("e2"), policy=policy)
    told(scheduler, at(0), arrived("x", "coil"), arrived("y", "coil"), arrived("z", "coil"))
    told(scheduler, at(0.4), first_token("x"))
    for name in ("x", "y", "z"):
        told(scheduler, at(0.5), failed(name) if name == "y" else answered(name, tokens=100))
    for number in range(24):
        tenant = ("acme", "bolt")[number % 2]
        told(scheduler, at(1), arrived(f"r{number}", tenant, service_class=(None, "batch")[number % 3 == 0]))
    for tenth in range(1, 20):
        told(scheduler, at(1 + tenth / 10), TimerFired())
    return scheduler


# Turns and floors


def test_who_was_charged_more_goes_later_under_a_successor_too() -> None:
    scheduler = a_scheduler(places=1)
    told(scheduler, at(0), arrived("a1", "acme"), arrived("a2", "acme"), arrived("b1", "bolt"))
    told(scheduler, at(1), answered("a1", tokens=1_000))
    # Bolt is served, and acme has been charged for a long answer.
    told(scheduler, at(1), answered("b1", tokens=1), answered("a2", tokens=5_000))
    told(scheduler, at(1), arrived("c", "coil"), arrived("a3", "acme"), arrived("b2", "bolt"))

    successor = a_successor(scheduler.counters(at(1)), now=at(1))
    told(successor, at(1), joined("e1"), runs("c", "coil"), waits("a3", "acme"), waits("b2", "bolt"))
    told(successor, at(1), readied("e1"))
    assert sent(told(successor, at(1), completed("c"), completed("b2"))) == ["b2", "a3"]


def test_who_waits_no_longer_is_struck_off_when_its_turn_comes() -> None:
    scheduler = a_scheduler(places=1)
    told(scheduler, at(0), arrived("first"), arrived("a", "acme"), arrived("b", "bolt"))

    successor = a_successor(scheduler.counters(at(0)))
    told(successor, at(0), joined("e1"), waits("b", "bolt"), readied("e1"))
    [turns] = successor.counters(at(0)).turns
    assert turns.waiting == ()


def test_what_a_band_has_earned_of_its_floor_is_kept() -> None:
    policy = a_policy(classes=(INTERACTIVE, FLOORED))
    scheduler = a_scheduler(places=1, policy=policy)
    told(scheduler, at(0), arrived("i1"), arrived("b", service_class="batch"), arrived("i2"), completed("i1"))

    [earned] = a_successor(scheduler.counters(at(0)), policy).counters(at(0)).floors
    assert (earned.pool, earned.band) == ("p", 1)
    assert earned.credit > 0
    assert a_successor(scheduler.counters(at(0))).counters(at(0)).floors == ()


# Limits

LIMITED = a_policy(tenants=(Tenant(TenantId("acme"), limits=Limits(10, 1_000, concurrency=9)), "bolt"))


def left(scheduler: Scheduler, now: Instant) -> tuple[int, int]:
    found = scheduler._state.limits.left(TenantId("acme"), now)
    assert found is not None
    assert found.requests is not None
    assert found.tokens is not None
    return found.requests.remaining, found.tokens.remaining


def test_what_is_used_of_a_limit_stays_used_and_drains_on() -> None:
    scheduler = a_scheduler(places=9, policy=LIMITED)
    told(scheduler, at(0), arrived("a"), arrived("b"))
    before = left(scheduler, at(0))

    successor = after_an_hour(scheduler, LIMITED, now=at(0))
    assert left(successor, at(3_600)) == before == (8, 650)
    assert left(successor, at(3_600 + 6)) == (9, 750)


def test_what_has_drained_since_the_counters_were_told_is_free() -> None:
    scheduler = a_scheduler(places=9, policy=LIMITED)
    told(scheduler, at(0), arrived("a"), arrived("b"))

    assert left(a_successor(scheduler.counters(at(0)), LIMITED, ago=6), at(0)) == (9, 750)


def test_a_limit_that_is_new_or_gone_meanwhile_is_not_used() -> None:
    scheduler = a_scheduler(places=9, policy=LIMITED)
    told(scheduler, at(0), arrived("a"))
    changed = a_policy(tenants=(Tenant(TenantId("acme"), limits=Limits(5)), Tenant(TenantId("bolt"), limits=Limits(7))))

    successor = a_successor(scheduler.counters(at(0)), changed)
    [told_again] = successor.counters(at(0)).limits
    assert (told_again.tenant, told_again.requests, told_again.tokens) == ("acme", MINUTE, 0)


# Budgets for retries


def test_a_tenant_without_credit_has_none_under_a_successor() -> None:
    policy = a_policy(retry=RetryRules(credit_burst=100, credit_per_first_attempt=0))
    scheduler = a_scheduler(places=9, policy=policy)
    told(scheduler, at(0), arrived("a"), failed("a"))

    successor = a_successor(scheduler.counters(at(0)), policy)
    told(successor, at(0), joined("e1"), readied("e1"), arrived("b"))
    [ending] = [each for each in told(successor, at(0), failed("b")) if isinstance(each, End)]
    assert ending.outcome is Outcome.ENGINE_FAILED


def test_extra_attempts_of_the_last_seconds_count_under_a_successor() -> None:
    policy = a_policy(retry=RetryRules(pool_extra_min=1))
    scheduler = a_scheduler(an_endpoint("e1", places=9), an_endpoint("e2", places=9), policy=policy)
    told(scheduler, at(0), arrived("a"), failed("a"))
    counters = scheduler.counters(at(0))

    for ago, outcome in ((0, Outcome.ENGINE_FAILED), (20, None)):
        successor = a_successor(counters, policy, ago=ago)
        told(successor, at(0), joined("e1"), joined("e2"), readied("e1"), readied("e2"), arrived("b"))
        ends = [each.outcome for each in told(successor, at(0), failed("b")) if isinstance(each, End)]
        assert ends == ([] if outcome is None else [outcome])


def test_first_attempts_are_told_as_old_as_they_may_be_and_extra_ones_as_young() -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=9), an_endpoint("e2", places=9))
    told(scheduler, at(0.3), arrived("a"), failed("a"))

    everywhere, at_pool = scheduler.counters(at(0.5)).windows
    assert (everywhere.pool, at_pool.pool) == ("", "p")
    assert everywhere[1:] == at_pool[1:] == (((lasting(0.5), 1),), ((0, 1),))


def test_a_first_attempt_of_before_does_not_push_out_a_younger_one() -> None:
    scheduler = a_successor()
    told(scheduler, at(0), joined("e1", places=99))

    for number, ago in enumerate((*range(11), 0.5, 3.5, 15)):
        told(scheduler, at(0), runs(f"r{number}", sent_ago=ago, counted=Counted.ARRIVAL))

    window = scheduler._state.retry_budget._window(PoolName("p"))
    assert window.firsts(at(0)) == 12


# What was learned


def test_lengths_of_answers_are_known_to_a_successor() -> None:
    scheduler = a_scheduler(places=1)
    for number in range(20):
        told(scheduler, at(0), arrived(f"r{number}"), answered(f"r{number}", tokens=1_000, prompt_tokens=50))
    ticket = arrived("r").ticket

    successor = after_an_hour(scheduler, now=at(0))
    learned, taught = scheduler._state.predictions, successor._state.predictions
    assert taught.output_tokens(ticket, ticket.model) == learned.output_tokens(ticket, ticket.model) != (150, 400)
    assert taught.prompt_tokens(ticket, ticket.model) == learned.prompt_tokens(ticket, ticket.model) > 25


def test_how_long_answers_take_to_begin_is_known_to_a_successor() -> None:
    policy = a_policy(classes=(HEDGED, BATCH), retry=RetryRules(credit_burst=100_000, pool_extra_min=1_000))
    scheduler = a_scheduler(places=1, policy=policy)
    for number in range(SEEN_MIN):
        told(scheduler, at(number), arrived(f"r{number}"))
        told(scheduler, at(number + 0.1), first_token(f"r{number}"), completed(f"r{number}"))

    successor = after_an_hour(scheduler, policy, now=at(SEEN_MIN))
    assert successor.counters(at(3_700)).first_tokens == scheduler.counters(at(SEEN_MIN)).first_tokens
    told(successor, at(3_700), joined("e1"), joined("e2"), readied("e1"), readied("e2"), arrived("r"))
    assert sent(told(successor, at(3_700.2), TimerFired())) == ["r"]


def test_how_fast_an_endpoint_is_is_known_when_it_joins() -> None:
    scheduler = a_scheduler(places=1)
    told(scheduler, at(0), arrived("r"), first_token("r"))
    for second in range(1, 81):
        told(scheduler, at(second / 4), Progressed((AttemptProgress(RequestId("r"), 1, tokens=8),)))
    slow = endpoint_summary(scheduler, "e1").decode_percent

    successor = after_an_hour(scheduler, now=at(20))
    assert successor.counters(at(3_620)).endpoints == scheduler.counters(at(20)).endpoints
    told(successor, at(3_620), joined("e1"), joined("e2"))
    assert endpoint_summary(successor, "e1").decode_percent == slow > 150
    assert endpoint_summary(successor, "e2").decode_percent == 100
    assert len(successor.counters(at(3_620)).endpoints) == 2


def test_whoever_was_ejected_is_on_trial() -> None:
    policy = a_policy(health=HealthRules(failures_max=1))
    scheduler = a_scheduler(places=2, policy=policy)
    told(scheduler, at(0), arrived("r"), failed("r"))

    successor = a_successor(scheduler.counters(at(0)), policy)
    told(successor, at(0), joined("e1", places=2), readied("e1"))
    assert endpoint_summary(successor, "e1").state == "trial"
    assert sent(told(successor, at(0), arrived("a"), arrived("b"))) == ["a"]


def test_how_long_a_start_takes_is_known_to_a_successor() -> None:
    patient = replace(a_class("interactive"), start_wait_ns=lasting(100))
    policy = a_policy(classes=(patient,), pools=(replace(a_pool("p"), hold_max=9),))
    scheduler = a_scheduler_without_endpoints(policy)
    told(scheduler, at(0), arrived("r"))
    told(scheduler, at(7), joined("e1"), readied("e1"))

    [start] = a_successor(scheduler.counters(at(7)), policy).counters(at(7)).starts
    assert start == ("p", lasting(7))


# What is given up

PRESSED = replace(
    a_policy(classes=(replace(INTERACTIVE, ttft_ns=lasting(20)), FLOORED)),
    ladder=LadderRules(
        climb_above=0, climb_after_ns=lasting(0.4), descend_below=1, descend_after_ns=lasting(1), level_max=3
    ),
)


def pressed(policy: Policy = PRESSED, *, seconds: float = 2) -> Scheduler:
    """Where more waits than can be served, for so long."""
    scheduler = a_scheduler(places=1, policy=policy)
    for number in range(20):
        told(scheduler, at(0), arrived(f"r{number}"))
    for tenth in range(1, round(10 * seconds) + 1):
        told(scheduler, at(tenth / 10), TimerFired())
    return scheduler


def level(scheduler: Scheduler) -> int:
    return max((each.level for each in scheduler.summary().given_up), default=0)


def test_the_ladder_stays_where_it_was() -> None:
    scheduler = pressed()
    successor = after_an_hour(scheduler, PRESSED, now=at(2))

    assert level(successor) == level(scheduler) == 3
    assert successor._state.queue.floors.held == scheduler._state.queue.floors.held != {}
    assert successor.next_wakeup() == at(3_602.1)


def test_it_descends_when_nobody_is_pressed_any_more() -> None:
    successor = after_an_hour(pressed(), PRESSED, now=at(2))
    for tenth in range(1, 100):
        told(successor, at(3_602 + tenth / 10), TimerFired())

    assert level(successor) == 0
    assert successor.next_wakeup() is None


def test_that_it_was_about_to_climb_is_known() -> None:
    scheduler = pressed(seconds=0.3)
    [route] = scheduler.counters(at(0.3)).routes

    assert route.ladders[0].step == 0
    assert route.ladders[0].above_ns == lasting(0.2)
    successor = a_successor(scheduler.counters(at(0.3)), PRESSED, now=at(0.3))
    assert successor.counters(at(0.3)).routes == (route,)
    assert successor.next_wakeup() is None


def test_by_another_policy_it_gives_up_no_more_than_that_allows() -> None:
    lower = replace(PRESSED, ladder=replace(PRESSED.ladder, level_max=1))
    other_bands = replace(PRESSED, classes=(replace(INTERACTIVE, band=7),))

    assert level(after_an_hour(pressed(), lower, now=at(2))) == 1
    assert level(after_an_hour(pressed(), other_bands, now=at(2))) == 0


def test_what_is_refused_of_arrivals_goes_on() -> None:
    shedding = SheddingRules(enabled=True, pressure=0, integral_gain=10_000)
    policy = replace(PRESSED, ladder=LadderRules(enabled=False), shedding=shedding)
    scheduler = pressed(policy)
    [shed] = scheduler.summary().given_up

    successor = after_an_hour(scheduler, policy, now=at(2))
    assert successor.summary().given_up == (shed,)
    assert shed.shed_ppm > 0
    [route] = successor.counters(at(3_602)).routes
    assert len(route.ranks) == 20
    without = replace(policy, shedding=SheddingRules())
    assert after_an_hour(scheduler, without, now=at(2)).summary().given_up[0].shed_ppm == 0


# When it may be done


def test_counters_are_taken_before_anything_else_and_after_the_policy() -> None:
    with pytest.raises(AssertionError, match="before the policy was told"):
        Scheduler().restore(Counters(), at(0))
    scheduler = a_scheduler_without_endpoints()
    with pytest.raises(AssertionError, match="time went backwards"):
        scheduler.restore(Counters(), at(-1))
    told(scheduler, at(0), runs("a"))
    with pytest.raises(AssertionError, match="with requests open"):
        scheduler.restore(Counters(), at(0))
    scheduler = a_scheduler_without_endpoints()
    told(scheduler, at(0), runs("a", over=True))
    with pytest.raises(AssertionError, match="with attempts open"):
        scheduler.restore(Counters(), at(0))
