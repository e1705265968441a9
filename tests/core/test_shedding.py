"""Load shedding: what fraction is rejected, and in what order."""

from dataclasses import replace

import pytest

from headgate.core.admission.shedding import MILLION, Shedder, ShedDraws, rank
from headgate.core.commands import Command, Dispatch, End
from headgate.core.events import TimerFired
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import AdmissionRules, DegradationRules, Policy, ServiceClass, SheddingRules
from headgate.model.tenant import Plan
from headgate.model.units import SECOND, Instant, TenantId
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    arrived,
    at,
    commands_for,
    completed,
    duration,
    policy_changed,
)

RULES = SheddingRules(enabled=True, target_pressure=1_000, proportional_gain=100, integral_gain=10)
HOUR = 3_600


def a_shedder(**changed: int) -> Shedder:
    return Shedder(replace(RULES, **changed))


# Controller


def test_no_request_is_rejected_below_reference_pressure() -> None:
    shedder = a_shedder()
    for _ in range(100):
        shedder.update(900)

    assert shedder.fraction == 0
    assert not any(shedder.rejects(each) for each in range(100))


def test_rejected_fraction_grows_up_to_maximum_under_constant_pressure() -> None:
    shedder = a_shedder(shed_percent_max=40)
    fractions: list[int] = []
    for _ in range(60):
        shedder.update(2_000)
        fractions.append(shedder.fraction)

    # The first value includes the proportional response to the jump in pressure.
    assert fractions[:3] == [210_000, 220_000, 230_000]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 400_000


def test_rejected_fraction_falls_to_zero_within_seconds_without_pressure() -> None:
    shedder = a_shedder()
    for _ in range(100):
        shedder.update(2_000)
    periods = 0
    while shedder.fraction:
        shedder.update(0)
        periods += 1

    assert 10 < periods < 100


def test_requests_with_highest_ranks_are_rejected_up_to_fraction() -> None:
    shedder = a_shedder(arrival_window=100)
    for each in range(200):
        shedder.record_arrival(each)
    shedder.update(2_000)

    assert shedder.fraction == 210_000
    assert [shedder.rejects(each) for each in (178, 179)] == [False, True]


def test_requests_with_equal_rank_are_all_admitted() -> None:
    shedder = a_shedder()
    for _ in range(100):
        shedder.record_arrival(7)
        shedder.update(3_000)

    assert shedder.fraction == 950_000
    assert not shedder.rejects(7)


def test_no_request_is_rejected_without_recorded_arrivals() -> None:
    shedder = a_shedder()
    shedder.update(3_000)

    assert not shedder.rejects(1)


def test_rejected_fraction_survives_rule_change_unless_shedding_is_disabled() -> None:
    shedder = a_shedder()
    for each in range(100):
        shedder.record_arrival(each)
    shedder.update(2_000)
    shedder.change_rules(replace(RULES, arrival_window=10))
    assert shedder.fraction == 210_000
    assert shedder.rejects(99)

    shedder.change_rules(replace(RULES, enabled=False))
    assert shedder.fraction == 0
    assert not shedder.rejects(99)


# Ranks


def test_rank_depends_on_band_then_share_then_plan_then_chance() -> None:
    ordered = [
        rank(band=band, over_share=over_share, plan=plan, draw=chance)
        for band in (-1, 0, 1)
        for over_share in (False, True)
        for plan in (Plan.CRITICAL, Plan.STANDARD, Plan.FREE)
        for chance in (0, 65_535)
    ]

    assert ordered == sorted(set(ordered))


def test_tenant_chance_changes_every_hour() -> None:
    chances = ShedDraws()
    acme = TenantId("acme")
    first = chances.draw(acme, Instant(HOUR * SECOND))

    assert (
        first == chances.draw(acme, Instant((2 * HOUR - 1) * SECOND)) == ShedDraws().draw(acme, Instant(HOUR * SECOND))
    )
    assert first != chances.draw(acme, Instant(2 * HOUR * SECOND))
    assert 0 <= first < 65_536


def test_number_of_cached_chances_is_bounded() -> None:
    chances = ShedDraws()
    now = Instant(0)
    drawn = [chances.draw(TenantId(f"t{number}"), now) for number in range(20_001)]

    assert chances.draw(TenantId("t0"), now) == drawn[0]
    assert len(chances._drawn) <= 10_000  # pyright: ignore[reportPrivateUsage]


# In the scheduler


def hurried(name: str = "interactive", *, band: int = 0, floor_percent: int = 0) -> ServiceClass:
    return replace(
        a_class(name, band=band), ttft_ns=duration(60), queue_wait_ns_max=duration(600), min_share_percent=floor_percent
    )


def an_overloaded(*classes: ServiceClass) -> Scheduler:
    """Returns a scheduler whose only slot is occupied and which rejects up to 60 % of arriving requests."""
    scheduler = a_scheduler(policy=shedding(*classes))
    scheduler.handle(arrived("runs", service_class=classes[0].name), at(0))
    for number in range(40):
        now = at(number / 10)
        scheduler.handle(arrived(f"low{number}", service_class=classes[-1].name), now)
        scheduler.handle(arrived(f"high{number}", "bolt", service_class=classes[0].name), now)
    return scheduler


def shedding(*classes: ServiceClass) -> Policy:
    rules = replace(RULES, target_pressure=1, shed_percent_max=60, integral_gain=10_000)
    return replace(
        a_policy(classes=classes),
        shedding=rules,
        degradation=DegradationRules(enabled=False),
        admission=AdmissionRules(predicted_wait_percent_max=None),
    )


def ending(commands: list[Command], request: str) -> End | None:
    return next((each for each in commands if isinstance(each, End) and each.request_id == request), None)


def test_lowest_band_is_rejected_immediately_with_reason_and_retry_after() -> None:
    scheduler = an_overloaded(hurried(), hurried("batch", band=1))

    low = ending(scheduler.handle(arrived("low", service_class="batch"), at(4)), "low")
    high = ending(scheduler.handle(arrived("high", "bolt"), at(4)), "high")

    assert low is not None
    assert low.outcome is Outcome.SHED
    assert low.reason.startswith(
        "pool p is overloaded and 60 % of arriving requests are rejected, lowest priority first; retry in "
    )
    assert low.retry_after_ns is not None
    assert low.retry_after_ns >= SECOND
    assert high is None or high.outcome is not Outcome.SHED
    [given_up] = scheduler.summary().degradation
    assert (given_up.pool, given_up.level, given_up.shed_ppm) == ("p", 0, 600_000)


def test_request_served_in_time_by_minimum_share_is_admitted_at_any_rank() -> None:
    scheduler = an_overloaded(hurried(), hurried("batch", band=1, floor_percent=100))

    low = ending(scheduler.handle(arrived("low", service_class="batch"), at(10)), "low")

    assert low is None or low.outcome is not Outcome.SHED


def test_shedding_stops_and_schedules_no_wakeup_after_overload() -> None:
    scheduler = an_overloaded(hurried(), hurried("batch", band=1))
    commands = scheduler.handle(completed("runs"), at(4))
    while started := [each.request_id for each in commands if isinstance(each, Dispatch)]:
        commands = commands_for(scheduler, at(4), *(completed(each) for each in started))
    wakeups = 0
    while (moment := scheduler.next_wakeup()) is not None:
        scheduler.handle(TimerFired(), moment)
        wakeups += 1
        assert wakeups < 1_000

    assert [each.shed_ppm for each in scheduler.summary().degradation] == [0]
    assert ending(scheduler.handle(arrived("low", service_class="batch"), at(500)), "low") is None


@pytest.mark.parametrize("enabled", [True, False])
def test_policy_change_keeps_rejected_fraction_unless_shedding_is_disabled(enabled: bool) -> None:
    classes = hurried(), hurried("batch", band=1)
    scheduler = an_overloaded(*classes)
    policy = shedding(*classes)
    commands_for(scheduler, at(4), policy_changed(replace(policy, shedding=replace(policy.shedding, enabled=enabled))))

    low = ending(scheduler.handle(arrived("low", service_class="batch"), at(4)), "low")

    assert (low is not None and low.outcome is Outcome.SHED) == enabled
    assert MILLION * 60 // 100 * enabled == max((each.shed_ppm for each in scheduler.summary().degradation), default=0)
