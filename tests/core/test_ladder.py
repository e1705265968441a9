"""Degradation levels: when they change, how they degrade a class and which requests they reject."""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.degradation import Degradation, allows_hedging, degraded_class, lowers_tier, stricter
from headgate.core.events import EndpointJoined, EndpointReady, TimerFired
from headgate.core.overload import Overload
from headgate.core.request_state import Request
from headgate.core.rules import Rules
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps, ImageDetail, ReasoningEffort
from headgate.model.outcome import Outcome
from headgate.model.policy import (
    AdmissionRules,
    DegradationRules,
    DegradationStep,
    Model,
    ModelTierRule,
    OptimizationGoal,
    Policy,
    ServiceClass,
)
from headgate.model.tenant import Plan, Tenant
from headgate.model.units import SECOND, Instant, ModelName, PoolName
from testing.builders import (
    a_class,
    a_model,
    a_policy,
    a_scheduler,
    a_tenant,
    an_endpoint,
    arrived,
    at,
    commands_for,
    completed,
    duration,
    policy_changed,
)

RULES = DegradationRules(escalate_after_ns=duration(3), recover_after_ns=duration(30))
OPEN = Caps(n=None, best_of=None, logprobs=None, prompt_logprobs=None)
SHORT, SHORTER = replace(OPEN, output_tokens=200), replace(OPEN, output_tokens=100)


# Level changes


def felt(pressure: int, *, up_to: int = 0) -> list[int]:
    """Returns `pressure` for every sheddability from `up_to` upwards, and 0 below it."""
    return [pressure if standing >= up_to else 0 for standing in range(6)]


def ticked(ladder: Degradation, pressure: list[int], *, since: float, until: float) -> list[int]:
    """Returns the level at the end of each second."""
    levels: list[int] = []
    for tenth in range(round(since * 10), round(until * 10)):
        ladder.tick(pressure, at(tenth / 10))
        if tenth % 10 == 9:
            levels.append(ladder.level)
    return levels


def a_ladder_at(level: int) -> Degradation:
    ladder = Degradation(RULES)
    second = 0
    while ladder.level < level:
        ladder.tick(felt(2_000), at(second))
        second += 3
    return ladder


def test_level_rises_by_one_step_per_three_seconds_of_pressure_above_one() -> None:
    levels = ticked(Degradation(RULES), felt(1_001), since=0, until=27)

    # Level 4 has two steps.
    assert levels == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, *[4] * 6, 5, 5, 5, *[6] * 6]


def test_pressure_at_threshold_resets_time_to_next_step() -> None:
    ladder = Degradation(RULES)
    ticked(ladder, felt(5_000), since=0, until=2.9)
    ladder.tick(felt(1_000), at(2.9))

    assert ticked(ladder, felt(5_000), since=3, until=6) == [0, 0, 0]
    assert ticked(ladder, felt(5_000), since=6, until=7) == [1]


def test_level_falls_by_one_step_per_thirty_seconds_of_pressure_below_seven_tenths() -> None:
    ladder = a_ladder_at(2)
    levels = ticked(ladder, felt(699), since=100, until=170)

    assert (levels[28], levels[30], levels[58], levels[60]) == (2, 1, 1, 0)
    assert ticked(ladder, felt(0), since=170, until=240)[-1] == 0


def test_level_stays_unchanged_between_thresholds() -> None:
    ladder = a_ladder_at(3)

    assert set(ticked(ladder, felt(700), since=100, until=200)) == {3}
    assert set(ticked(ladder, felt(1_000), since=200, until=300)) == {3}


@pytest.mark.parametrize(
    ("pressed_from", "highest"),
    # Sheddability 4 is the free plan above its fair share, and 3 is the standard plan above its fair share. 2, 1 and 0
    # are the free, standard and critical plans.
    [(4, 3), (3, 4), (2, 4), (1, 5), (0, 6)],
)
def test_level_rises_only_if_protected_requests_are_under_pressure(pressed_from: int, highest: int) -> None:
    ladder = Degradation(RULES)

    assert ticked(ladder, felt(9_000, up_to=pressed_from), since=0, until=60)[-1] == highest


def test_level_does_not_exceed_level_max() -> None:
    ladder = Degradation(replace(RULES, level_max=2))

    assert ticked(ladder, felt(9_000), since=0, until=60)[-1] == 2


def test_policy_change_lowers_level_to_new_maximum() -> None:
    ladder = a_ladder_at(6)
    ladder.change_rules(replace(RULES, level_max=3))
    assert ladder.level == 3

    ladder.change_rules(replace(RULES, enabled=False))
    assert ladder.level == 0


def test_levels_four_and_above_reject_by_sheddability() -> None:
    letting_in = [[each for each in range(5) if not a_ladder_at(level).rejects(each)] for level in range(7)]

    assert letting_in == [[0, 1, 2, 3, 4]] * 4 + [[0, 1, 2, 3], [0, 1], [0]]


def test_cost_optimised_bands_are_limited_to_minimum_share_from_level_three_under_pressure() -> None:
    ladder = a_ladder_at(2)
    assert not ladder.limits_to_min_share
    ladder = a_ladder_at(3)
    assert ladder.limits_to_min_share

    ladder.tick(felt(699), at(100))
    assert not ladder.limits_to_min_share


# Degraded classes


def served_by(model: str, level: int = 2) -> DegradationStep:
    return DegradationStep(level, model=ModelName(model))


def a_varied(promise: OptimizationGoal, *variants: DegradationStep, caps: Caps | None = None) -> ServiceClass:
    return replace(a_class(caps=caps), optimize_for=promise, degradation_steps=variants, ttft_ns=duration(2))


@pytest.mark.parametrize(
    ("promise", "output"),
    [
        (OptimizationGoal.COST, [None, 200, 100, 100]),
        (OptimizationGoal.LATENCY, [None, None, 100, 100]),
        (OptimizationGoal.QUALITY, [None, None, None, None]),
    ],
)
def test_variants_apply_from_their_level_if_class_may_be_degraded(
    promise: OptimizationGoal, output: list[int | None]
) -> None:
    service_class = a_varied(promise, DegradationStep(1, SHORT), DegradationStep(2, SHORTER))

    assert [degraded_class(service_class, level).service_class.caps.output_tokens for level in range(4)] == output


def test_model_of_last_active_variant_applies() -> None:
    service_class = a_varied(OptimizationGoal.COST, served_by("m2", 1), DegradationStep(2, SHORT), served_by("m3", 3))

    assert [degraded_class(service_class, level).model for level in range(4)] == [None, "m2", "m2", "m3"]
    assert degraded_class(service_class, 1).service_class is service_class


def test_stricter_value_of_each_cap_applies() -> None:
    one = Caps(
        prompt_tokens=10, output_tokens=None, n=1, reasoning_effort=ReasoningEffort.LOW, image_detail=ImageDetail.HIGH
    )
    other = Caps(
        trim_prompt=True, output_tokens=5, n=2, best_of=None, reasoning_effort=None, image_detail=ImageDetail.LOW
    )
    joined = Caps(
        prompt_tokens=10,
        trim_prompt=True,
        output_tokens=5,
        n=1,
        reasoning_effort=ReasoningEffort.LOW,
        image_detail=ImageDetail.LOW,
    )

    assert stricter(one, other) == stricter(other, one) == joined
    assert stricter(OPEN, OPEN) == OPEN


def test_degradation_disables_hedging_and_lowers_tier_except_for_quality() -> None:
    assert [allows_hedging(level) for level in range(3)] == [True, False, False]
    assert [lowers_tier(a_varied(OptimizationGoal.LATENCY), level) for level in range(4)] == [False, False, True, True]
    assert not any(lowers_tier(a_varied(OptimizationGoal.QUALITY), level) for level in range(7))


# In the scheduler


def a_laddered(
    *classes: ServiceClass,
    tenants: tuple[str | Tenant, ...] = ("acme", "bolt"),
    models: tuple[Model, ...] | None = None,
) -> Policy:
    """Returns a policy whose degradation level rises by one step per second while a request waits."""
    ladder = DegradationRules(
        escalate_above=0, recover_below=1, escalate_after_ns=duration(1), recover_after_ns=duration(10)
    )
    pools = tuple(dict.fromkeys(pool for model in models for pool in model.pools)) if models else ("p",)
    return replace(
        a_policy(classes=classes, tenants=tenants, models=models, pools=pools),
        degradation=ladder,
        admission=AdmissionRules(predicted_wait_percent_max=None),
    )


def pressed(policy: Policy, *, seconds: float, tenant: str = "acme", service_class: str | None = None) -> Scheduler:
    """Returns a scheduler after one request has run and another has been waiting for `seconds`."""
    scheduler = a_scheduler(an_endpoint("e1", pool=policy.pools[-1].name), policy=policy)
    commands_for(scheduler, at(0), *(arrived(name, tenant, service_class=service_class) for name in ("runs", "waits")))
    while (now := scheduler.next_wakeup()) is not None and now <= at(seconds):
        scheduler.handle(TimerFired(), now)
    return scheduler


def patient(
    promise: OptimizationGoal = OptimizationGoal.LATENCY,
    *variants: DegradationStep,
    name: str = "interactive",
    band: int = 0,
) -> ServiceClass:
    service_class = a_class(name, band=band, queue_wait=600)
    return replace(service_class, optimize_for=promise, degradation_steps=variants, ttft_ns=duration(20))


def level(scheduler: Scheduler) -> int:
    return max((each.level for each in scheduler.summary().degradation), default=0)


def next_sent(scheduler: Scheduler, now: Instant) -> Dispatch:
    """Completes the two requests ahead of "r" and returns the dispatch of "r"."""
    commands = commands_for(scheduler, now, completed("runs"), completed("waits"))
    return next(each for each in commands if isinstance(each, Dispatch) and each.request_id == "r")


def refusal(commands: list[Command]) -> End | None:
    return next((each for each in commands if isinstance(each, End)), None)


def test_pressure_is_measured_only_while_requests_are_waiting() -> None:
    scheduler = a_scheduler(policy=a_laddered(patient()))
    scheduler.handle(arrived("r"), at(0))

    assert scheduler.next_wakeup() is None


def test_queued_request_without_target_requires_no_wakeup_before_it_expires() -> None:
    scheduler = a_scheduler(policy=a_laddered(a_class()))
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.next_wakeup() == at(30)


def test_pressure_is_measured_ten_times_per_second_while_requests_are_waiting() -> None:
    scheduler = pressed(a_laddered(patient()), seconds=0.25)
    assert scheduler.next_wakeup() == at(0.3)

    commands_for(scheduler, at(0.26), completed("runs"), completed("waits"))
    assert scheduler.next_wakeup() is None


def test_no_wakeup_is_scheduled_after_level_returns_to_zero() -> None:
    scheduler = pressed(a_laddered(patient()), seconds=1.5)
    assert level(scheduler) == 1
    commands_for(scheduler, at(1.5), completed("runs"), completed("waits"))
    while (now := scheduler.next_wakeup()) is not None:
        scheduler.handle(TimerFired(), now)
        assert now <= at(12)

    assert level(scheduler) == 0


def test_pressure_is_not_measured_if_degradation_is_disabled() -> None:
    policy = a_laddered(patient())
    scheduler = pressed(replace(policy, degradation=replace(policy.degradation, enabled=False)), seconds=5)

    wakeup = scheduler.next_wakeup()
    assert wakeup is not None
    assert wakeup > at(10)
    assert scheduler.summary().degradation == ()


def test_requests_expire_if_degradation_is_disabled() -> None:
    policy = a_laddered(patient())
    scheduler = pressed(replace(policy, degradation=replace(policy.degradation, enabled=False)), seconds=30)

    assert scheduler.summary().queued == {"interactive": 0}
    assert level(scheduler) == 0


def test_request_is_sent_with_caps_and_level_of_active_variant() -> None:
    scheduler = pressed(a_laddered(patient(OptimizationGoal.LATENCY, DegradationStep(2, SHORT))), seconds=2.5)
    scheduler.handle(arrived("r"), at(2.5))

    sent = next_sent(scheduler, at(2.5))
    assert (sent.level, sent.caps.output_tokens, sent.model) == (2, 200, None)


def test_quality_optimised_request_is_sent_at_level_zero() -> None:
    scheduler = pressed(a_laddered(patient(OptimizationGoal.QUALITY, DegradationStep(2, SHORT))), seconds=2.5)
    scheduler.handle(arrived("r"), at(2.5))

    sent = next_sent(scheduler, at(2.5))
    assert (sent.level, sent.caps.output_tokens) == (0, None)


def test_pressure_on_band_degrades_that_band_and_lower_ones() -> None:
    classes = [
        patient(OptimizationGoal.LATENCY, DegradationStep(2, SHORT), name=name, band=band)
        for band, name in enumerate("abc")
    ]
    scheduler = pressed(a_laddered(*classes), seconds=2.5, service_class="b")
    levels: list[int] = []
    for name in "abc":
        scheduler.handle(arrived(name, service_class=name), at(2.5))
    commands = commands_for(scheduler, at(2.5), *(completed(each) for each in ("runs", "a", "waits", "b")))
    levels = [each.level for each in commands if isinstance(each, Dispatch) and each.request_id in ("a", "b", "c")]

    assert levels == [0, 2, 2]


def test_new_band_starts_at_level_of_higher_bands() -> None:
    classes = [
        patient(OptimizationGoal.LATENCY, DegradationStep(2, SHORT), name=name, band=band)
        for band, name in enumerate("ab")
    ]
    scheduler = pressed(a_laddered(classes[0]), seconds=2.5, service_class="a")
    commands_for(scheduler, at(2.5), policy_changed(a_laddered(*classes), "h2"))
    scheduler.handle(arrived("b", service_class="b"), at(2.5))
    commands = commands_for(scheduler, at(2.5), *(completed(each) for each in ("runs", "waits")))

    assert [each.level for each in commands if isinstance(each, Dispatch) and each.request_id == "b"] == [2]


SMALL = Model(ModelName("small"), (PoolName("s"),))


def test_variant_switches_model_if_other_model_has_endpoint() -> None:
    policy = a_laddered(patient(OptimizationGoal.LATENCY, served_by("small")), models=(SMALL, a_model("m", "p")))
    scheduler = pressed(policy, seconds=2.5)
    scheduler.handle(arrived("first"), at(2.5))
    joined = an_endpoint("e2", pool="s")
    commands_for(scheduler, at(2.5), EndpointJoined(joined), EndpointReady(joined.id))
    [sent] = scheduler.handle(arrived("second"), at(2.5))

    assert isinstance(sent, Dispatch)
    assert (sent.pool, sent.level, sent.model) == ("s", 2, "small")


def test_variant_with_forbidden_or_unknown_model_is_ignored() -> None:
    for name, pools in (("small", ("p",)), ("gone", ())):
        service_class = patient(OptimizationGoal.LATENCY, served_by(name))
        service_class = replace(service_class, pools=tuple(PoolName(each) for each in pools))
        policy = a_laddered(service_class, models=(SMALL, a_model("m", "p")))
        scheduler = pressed(policy, seconds=2.5)
        scheduler.handle(arrived("r"), at(2.5))

        sent = next_sent(scheduler, at(2.5))
        assert (sent.pool, sent.level) == ("p", 0)


@pytest.mark.parametrize(("prompt_bytes", "pool"), [(4_000, "s"), (4_100, "p")])
def test_easy_requests_use_smaller_tier_at_level_two_and_above(prompt_bytes: int, pool: str) -> None:
    pools = PoolName("s"), PoolName("p")
    model = Model(ModelName("m"), pools, tiers=(ModelTierRule((PoolName("p"),)),))
    scheduler = pressed(a_laddered(patient(), models=(model,)), seconds=2.5)
    joined = an_endpoint("e2", pool="s")
    commands_for(scheduler, at(2.5), EndpointJoined(joined), EndpointReady(joined.id))
    commands = scheduler.handle(arrived("r", prompt_bytes=prompt_bytes), at(2.5))
    sent = next((each for each in commands if isinstance(each, Dispatch)), None) or next_sent(scheduler, at(2.5))

    assert (sent.pool, sent.level) == (pool, 2 if pool == "s" else 0)


PLANS = tuple(replace(a_tenant(plan.value), plan=plan) for plan in Plan)


@pytest.mark.parametrize(
    ("pressed_for", "levels", "let_in"),
    [
        (4.5, 4, ["free", "standard", "critical"]),
        (6.5, 5, ["standard", "critical"]),
        (7.5, 6, ["critical"]),
    ],
)
def test_lowest_plans_are_rejected_first(pressed_for: float, levels: int, let_in: list[str]) -> None:
    scheduler = pressed(a_laddered(patient(), tenants=PLANS), seconds=pressed_for, tenant="critical")
    answers = {plan.value: refusal(scheduler.handle(arrived(plan.value, plan.value), at(pressed_for))) for plan in Plan}

    assert level(scheduler) == levels
    assert [name for name, answer in answers.items() if answer is None] == let_in
    for name, answer in answers.items():
        if answer is not None:
            assert answer.outcome is Outcome.SHED
            where = f"pool p is overloaded and at degradation level {levels} requests on"
            assert answer.reason.startswith(f'{where} plan "{name}" are rejected; retry in ')
            assert answer.retry_after_ns is not None
            assert answer.retry_after_ns >= SECOND


def beside_standard(waiting: int) -> Scheduler:
    """Returns a scheduler at level 4 with `waiting` queued standard-plan prompts that take a third of a second each."""
    scheduler = pressed(a_laddered(patient(), tenants=PLANS), seconds=0, tenant="critical")
    commands_for(
        scheduler, at(0), *(arrived(f"s{number}", "standard", prompt_bytes=30_000) for number in range(waiting))
    )
    while (now := scheduler.next_wakeup()) is not None and now <= at(5.5):
        scheduler.handle(TimerFired(), now)
    return scheduler


def test_level_four_admits_tenant_slightly_over_fair_share() -> None:
    scheduler = beside_standard(waiting=3)

    assert refusal(scheduler.handle(arrived("over", "standard"), at(5.5))) is None
    assert level(scheduler) == 4


def test_level_four_rejects_tenant_far_over_fair_share() -> None:
    scheduler = beside_standard(waiting=60)

    over = refusal(scheduler.handle(arrived("over", "standard"), at(5.5)))
    assert level(scheduler) == 4
    assert over is not None
    assert over.outcome is Outcome.SHED
    assert '"standard" from tenants over their fair share are rejected' in over.reason
    assert refusal(scheduler.handle(arrived("within", "free"), at(5.5))) is None


def test_requests_rejected_as_infeasible_add_pressure() -> None:
    hurried = replace(a_class(queue_wait=600), ttft_ns=duration(2))
    policy = replace(
        a_laddered(hurried),
        degradation=DegradationRules(escalate_above=400),
        admission=AdmissionRules(predicted_wait_percent_max=1),
    )
    scheduler = a_scheduler(policy=policy)
    commands_for(scheduler, at(0), arrived("runs"))
    for tenth in range(600):
        scheduler.handle(arrived(f"a{tenth}", prompt_bytes=40_000), at(tenth / 10))
        scheduler.handle(arrived(f"b{tenth}", prompt_bytes=40_000), at(tenth / 10))

    assert level(scheduler) >= 1


def test_level_three_limits_cost_optimised_band_until_pressure_ends() -> None:
    cheap = replace(patient(OptimizationGoal.COST, name="batch", band=1), min_share_percent=0)
    scheduler = a_scheduler(an_endpoint("e1", places=1), policy=a_laddered(patient(), cheap))
    commands_for(scheduler, at(0), arrived("runs"), arrived("waits"), arrived("cheap", service_class="batch"))
    while (now := scheduler.next_wakeup()) is not None and now <= at(3.5):
        scheduler.handle(TimerFired(), now)
    assert level(scheduler) == 3
    commands_for(scheduler, at(3.5), completed("runs"))
    assert not any(isinstance(each, Dispatch) for each in scheduler.handle(completed("waits"), at(3.5)))

    sent = scheduler.handle(TimerFired(), at(3.6))
    assert [each.request_id for each in sent if isinstance(each, Dispatch)] == ["cheap"]


def test_policy_change_keeps_level_and_pressure_from_queued_requests() -> None:
    policy = a_laddered(patient())
    scheduler = pressed(policy, seconds=2.5)
    commands_for(scheduler, at(2.5), policy_changed(policy, "h2"))
    assert level(scheduler) == 2

    scheduler.handle(TimerFired(), at(3.5))
    scheduler.handle(TimerFired(), at(4.5))
    assert level(scheduler) > 2


def test_idle_pools_are_forgotten_if_there_are_many() -> None:
    overload = Overload(Rules(a_laddered(patient()), "h"))
    for number in range(600):
        request = Request(arrived("r").ticket, patient(), (PoolName(f"p{number}"),), sequence=number, now=at(0))
        request.cost_ns = duration(1)
        overload.enqueued(request)
        if number % 2:
            overload.dequeued(request)

    assert 300 <= len(list(overload.degradation_by_pool())) < 600
    assert overload.allows_hedging((PoolName("p0"),))
