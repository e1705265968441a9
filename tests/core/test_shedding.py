"""How much is refused under overload, and who first?"""

from dataclasses import replace

import pytest

from headgate.core.admission.shedding import MILLION, Chances, Shedder, rank
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import AdmissionRules, LadderRules, Policy, ServiceClass, SheddingRules
from headgate.model.tenant import Plan
from headgate.model.units import SECOND, Instant, TenantId
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    arrived,
    at,
    completed,
    lasting,
    policy_changed,
    told,
)

RULES = SheddingRules(enabled=True, pressure=1_000, proportional_gain=100, integral_gain=10)
HOUR = 3_600


def a_shedder(**changed: int) -> Shedder:
    return Shedder(replace(RULES, **changed))


# The controller


def test_nothing_is_refused_as_long_as_pressure_is_below_its_reference() -> None:
    shedder = a_shedder()
    for _ in range(100):
        shedder.steer(900)

    assert shedder.fraction == 0
    assert not any(shedder.refuses(each) for each in range(100))


def test_pressure_that_stays_above_refuses_ever_more_up_to_the_most() -> None:
    shedder = a_shedder(percent_max=40)
    fractions: list[int] = []
    for _ in range(60):
        shedder.steer(2_000)
        fractions.append(shedder.fraction)

    # At first by the jump as well.
    assert fractions[:3] == [210_000, 220_000, 230_000]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 400_000


def test_when_pressure_is_gone_nothing_is_refused_within_seconds() -> None:
    shedder = a_shedder()
    for _ in range(100):
        shedder.steer(2_000)
    periods = 0
    while shedder.fraction:
        shedder.steer(0)
        periods += 1

    assert 10 < periods < 100


def test_no_more_than_the_fraction_is_refused_and_the_highest_ranks_are() -> None:
    shedder = a_shedder(arrivals=100)
    for each in range(200):
        shedder.note(each)
    shedder.steer(2_000)

    assert shedder.fraction == 210_000
    assert [shedder.refuses(each) for each in (178, 179)] == [False, True]


def test_of_those_who_cannot_be_told_apart_all_are_let_in() -> None:
    shedder = a_shedder()
    for _ in range(100):
        shedder.note(7)
        shedder.steer(3_000)

    assert shedder.fraction == 950_000
    assert not shedder.refuses(7)


def test_without_arrivals_there_is_no_line() -> None:
    shedder = a_shedder()
    shedder.steer(3_000)

    assert not shedder.refuses(1)


def test_a_policy_without_shedding_ends_it_and_one_with_keeps_it_going() -> None:
    shedder = a_shedder()
    for each in range(100):
        shedder.note(each)
    shedder.steer(2_000)
    shedder.change_rules(replace(RULES, arrivals=10))
    assert shedder.fraction == 210_000
    assert shedder.refuses(99)

    shedder.change_rules(replace(RULES, enabled=False))
    assert shedder.fraction == 0
    assert not shedder.refuses(99)


# Ranks


def test_a_rank_is_the_band_then_the_share_then_the_plan_then_chance() -> None:
    ordered = [
        rank(band=band, over_share=over_share, plan=plan, chance=chance)
        for band in (-1, 0, 1)
        for over_share in (False, True)
        for plan in (Plan.CRITICAL, Plan.STANDARD, Plan.FREE)
        for chance in (0, 65_535)
    ]

    assert ordered == sorted(set(ordered))


def test_chance_is_the_same_for_an_hour_and_another_in_the_next() -> None:
    chances = Chances()
    acme = TenantId("acme")
    first = chances.of(acme, Instant(HOUR * SECOND))

    assert first == chances.of(acme, Instant((2 * HOUR - 1) * SECOND)) == Chances().of(acme, Instant(HOUR * SECOND))
    assert first != chances.of(acme, Instant(2 * HOUR * SECOND))
    assert 0 <= first < 65_536


def test_the_lots_of_ever_more_tenants_are_not_all_remembered() -> None:
    chances = Chances()
    now = Instant(0)
    drawn = [chances.of(TenantId(f"t{number}"), now) for number in range(20_001)]

    assert chances.of(TenantId("t0"), now) == drawn[0]
    assert len(chances._drawn) <= 10_000  # pyright: ignore[reportPrivateUsage]


# In the scheduler


def hurried(name: str = "interactive", *, band: int = 0, floor_percent: int = 0) -> ServiceClass:
    return replace(
        a_class(name, band=band), ttft_ns=lasting(60), queue_wait_ns_max=lasting(600), floor_percent=floor_percent
    )


def an_overloaded(*classes: ServiceClass) -> Scheduler:
    """One place, taken; and so many have come since that up to six in ten are refused."""
    scheduler = a_scheduler(policy=shedding(*classes))
    scheduler.handle(arrived("runs", service_class=classes[0].name), at(0))
    for number in range(40):
        now = at(number / 10)
        scheduler.handle(arrived(f"low{number}", service_class=classes[-1].name), now)
        scheduler.handle(arrived(f"high{number}", "bolt", service_class=classes[0].name), now)
    return scheduler


def shedding(*classes: ServiceClass) -> Policy:
    rules = replace(RULES, pressure=1, percent_max=60, integral_gain=10_000)
    return replace(
        a_policy(classes=classes),
        shedding=rules,
        ladder=LadderRules(enabled=False),
        admission=AdmissionRules(certainty_percent=None),
    )


def ending(commands: list[Command], request: str) -> End | None:
    return next((each for each in commands if isinstance(each, End) and each.request_id == request), None)


def test_the_lowest_band_is_refused_at_once_with_the_true_reason_and_told_when_to_return() -> None:
    scheduler = an_overloaded(hurried(), hurried("batch", band=1))

    low = ending(scheduler.handle(arrived("low", service_class="batch"), at(4)), "low")
    high = ending(scheduler.handle(arrived("high", "bolt"), at(4)), "high")

    assert low is not None
    assert low.outcome is Outcome.SHED
    assert low.reason.startswith(
        "pool p is overloaded, and 60 % of what arrives is refused, the lowest priority first; wait "
    )
    assert low.retry_after_ns is not None
    assert low.retry_after_ns >= SECOND
    assert high is None or high.outcome is not Outcome.SHED
    [given_up] = scheduler.summary().given_up
    assert (given_up.pool, given_up.level, given_up.shed_ppm) == ("p", 0, 600_000)


def test_what_a_floor_serves_in_time_is_let_in_whatever_its_rank() -> None:
    scheduler = an_overloaded(hurried(), hurried("batch", band=1, floor_percent=100))

    low = ending(scheduler.handle(arrived("low", service_class="batch"), at(10)), "low")

    assert low is None or low.outcome is not Outcome.SHED


def test_when_all_is_over_nothing_is_refused_and_no_wakeup_is_asked_for() -> None:
    scheduler = an_overloaded(hurried(), hurried("batch", band=1))
    commands = scheduler.handle(completed("runs"), at(4))
    while started := [each.request_id for each in commands if isinstance(each, Dispatch)]:
        commands = told(scheduler, at(4), *(completed(each) for each in started))
    wakeups = 0
    while (moment := scheduler.next_wakeup()) is not None:
        scheduler.handle(TimerFired(), moment)
        wakeups += 1
        assert wakeups < 1_000

    assert [each.shed_ppm for each in scheduler.summary().given_up] == [0]
    assert ending(scheduler.handle(arrived("low", service_class="batch"), at(500)), "low") is None


@pytest.mark.parametrize("enabled", [True, False])
def test_a_new_policy_keeps_the_fraction_or_ends_it(enabled: bool) -> None:
    classes = hurried(), hurried("batch", band=1)
    scheduler = an_overloaded(*classes)
    policy = shedding(*classes)
    told(scheduler, at(4), policy_changed(replace(policy, shedding=replace(policy.shedding, enabled=enabled))))

    low = ending(scheduler.handle(arrived("low", service_class="batch"), at(4)), "low")

    assert (low is not None and low.outcome is Outcome.SHED) == enabled
    assert MILLION * 60 // 100 * enabled == max((each.shed_ppm for each in scheduler.summary().given_up), default=0)
