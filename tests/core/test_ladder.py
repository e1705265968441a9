"""What is given up at which level, when does the level change, and what is a caller told?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Command, Dispatch, End
from headgate.core.degradation import Ladder, allows_hedging, given, lowers_rung, stricter
from headgate.core.events import EndpointJoined, EndpointReadied, TimerFired
from headgate.core.overload import Overload
from headgate.core.rules import Rules
from headgate.core.scheduler import Scheduler
from headgate.core.state import Request
from headgate.model.caps import Caps, ImageDetail, ReasoningEffort
from headgate.model.outcome import Outcome
from headgate.model.policy import (
    AdmissionRules,
    LadderRules,
    Model,
    Policy,
    Promise,
    RungRule,
    ServiceClass,
    Variant,
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
    completed,
    lasting,
    policy_changed,
    told,
)

RULES = LadderRules(climb_after_ns=lasting(3), descend_after_ns=lasting(30))
OPEN = Caps(n=None, best_of=None, logprobs=None, prompt_logprobs=None)
SHORT, SHORTER = replace(OPEN, output_tokens=200), replace(OPEN, output_tokens=100)


# Up and down


def felt(pressure: int, *, up_to: int = 0) -> list[int]:
    """So much by those of this standing and of all above."""
    return [pressure if standing >= up_to else 0 for standing in range(6)]


def ticked(ladder: Ladder, pressure: list[int], *, since: float, until: float) -> list[int]:
    """The levels at the ends of the seconds in between."""
    levels: list[int] = []
    for tenth in range(round(since * 10), round(until * 10)):
        ladder.tick(pressure, at(tenth / 10))
        if tenth % 10 == 9:
            levels.append(ladder.level)
    return levels


def a_ladder_at(level: int) -> Ladder:
    ladder = Ladder(RULES)
    second = 0
    while ladder.level < level:
        ladder.tick(felt(2_000), at(second))
        second += 3
    return ladder


def test_it_climbs_a_step_for_each_three_seconds_above_one() -> None:
    levels = ticked(Ladder(RULES), felt(1_001), since=0, until=27)

    # Level 4 has two steps.
    assert levels == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, *[4] * 6, 5, 5, 5, *[6] * 6]


def test_a_moment_at_one_starts_the_count_anew() -> None:
    ladder = Ladder(RULES)
    ticked(ladder, felt(5_000), since=0, until=2.9)
    ladder.tick(felt(1_000), at(2.9))

    assert ticked(ladder, felt(5_000), since=3, until=6) == [0, 0, 0]
    assert ticked(ladder, felt(5_000), since=6, until=7) == [1]


def test_it_descends_a_step_for_each_thirty_seconds_below_seven_tenths() -> None:
    ladder = a_ladder_at(2)
    levels = ticked(ladder, felt(699), since=100, until=170)

    assert (levels[28], levels[30], levels[58], levels[60]) == (2, 1, 1, 0)
    assert ticked(ladder, felt(0), since=170, until=240)[-1] == 0


def test_between_the_two_it_stays() -> None:
    ladder = a_ladder_at(3)

    assert set(ticked(ladder, felt(700), since=100, until=200)) == {3}
    assert set(ticked(ladder, felt(1_000), since=200, until=300)) == {3}


@pytest.mark.parametrize(
    ("pressed_from", "highest"),
    # Free callers over their share, standard ones over theirs, free, standard, critical.
    [(4, 3), (3, 4), (2, 4), (1, 5), (0, 6)],
)
def test_a_step_is_taken_only_when_those_are_pressed_whom_it_protects(pressed_from: int, highest: int) -> None:
    ladder = Ladder(RULES)

    assert ticked(ladder, felt(9_000, up_to=pressed_from), since=0, until=60)[-1] == highest


def test_it_never_climbs_beyond_the_level_that_the_policy_names() -> None:
    ladder = Ladder(replace(RULES, level_max=2))

    assert ticked(ladder, felt(9_000), since=0, until=60)[-1] == 2


def test_a_new_policy_brings_it_down_to_what_it_allows() -> None:
    ladder = a_ladder_at(6)
    ladder.change_rules(replace(RULES, level_max=3))
    assert ladder.level == 3

    ladder.change_rules(replace(RULES, enabled=False))
    assert ladder.level == 0


def test_who_is_refused_at_each_level() -> None:
    letting_in = [[each for each in range(5) if not a_ladder_at(level).refuses(each)] for level in range(7)]

    assert letting_in == [[0, 1, 2, 3, 4]] * 4 + [[0, 1, 2, 3], [0, 1], [0]]


def test_from_level_three_on_cheap_work_is_held_while_anybody_is_pressed() -> None:
    ladder = a_ladder_at(2)
    assert not ladder.holds_at_floor
    ladder = a_ladder_at(3)
    assert ladder.holds_at_floor

    ladder.tick(felt(699), at(100))
    assert not ladder.holds_at_floor


# What a class gives up


def served_by(model: str, level: int = 2) -> Variant:
    return Variant(level, model=ModelName(model))


def a_varied(promise: Promise, *variants: Variant, caps: Caps | None = None) -> ServiceClass:
    return replace(a_class(caps=caps), promise=promise, variants=variants, ttft_ns=lasting(2))


@pytest.mark.parametrize(
    ("promise", "output"),
    [
        (Promise.COST, [None, 200, 100, 100]),
        (Promise.LATENCY, [None, None, 100, 100]),
        (Promise.QUALITY, [None, None, None, None]),
    ],
)
def test_variants_hold_from_their_level_on_where_the_promise_allows(promise: Promise, output: list[int | None]) -> None:
    service_class = a_varied(promise, Variant(1, SHORT), Variant(2, SHORTER))

    assert [given(service_class, level).service_class.caps.output_tokens for level in range(4)] == output


def test_of_the_models_that_variants_name_the_last_serves() -> None:
    service_class = a_varied(Promise.COST, served_by("m2", 1), Variant(2, SHORT), served_by("m3", 3))

    assert [given(service_class, level).model for level in range(4)] == [None, "m2", "m2", "m3"]
    assert given(service_class, 1).service_class is service_class


def test_of_each_cap_the_stricter_holds() -> None:
    one = Caps(
        prompt_tokens=10, output_tokens=None, n=1, reasoning_effort=ReasoningEffort.LOW, image_detail=ImageDetail.HIGH
    )
    other = Caps(
        trims_prompt=True, output_tokens=5, n=2, best_of=None, reasoning_effort=None, image_detail=ImageDetail.LOW
    )
    joined = Caps(
        prompt_tokens=10,
        trims_prompt=True,
        output_tokens=5,
        n=1,
        reasoning_effort=ReasoningEffort.LOW,
        image_detail=ImageDetail.LOW,
    )

    assert stricter(one, other) == stricter(other, one) == joined
    assert stricter(OPEN, OPEN) == OPEN


def test_nothing_is_hedged_and_quality_keeps_its_rung_once_anything_is_given_up() -> None:
    assert [allows_hedging(level) for level in range(3)] == [True, False, False]
    assert [lowers_rung(a_varied(Promise.LATENCY), level) for level in range(4)] == [False, False, True, True]
    assert not any(lowers_rung(a_varied(Promise.QUALITY), level) for level in range(7))


# In the scheduler


def a_laddered(
    *classes: ServiceClass,
    tenants: tuple[str | Tenant, ...] = ("acme", "bolt"),
    models: tuple[Model, ...] | None = None,
) -> Policy:
    """A ladder that climbs as soon as anybody waits, a step for each second."""
    ladder = LadderRules(climb_above=0, descend_below=1, climb_after_ns=lasting(1), descend_after_ns=lasting(10))
    pools = tuple(dict.fromkeys(pool for model in models for pool in model.pools)) if models else ("p",)
    return replace(
        a_policy(classes=classes, tenants=tenants, models=models, pools=pools),
        ladder=ladder,
        admission=AdmissionRules(certainty_percent=None),
    )


def pressed(policy: Policy, *, seconds: float, tenant: str = "acme", service_class: str | None = None) -> Scheduler:
    """At pool "p" one runs and one waits, for so long."""
    scheduler = a_scheduler(an_endpoint("e1", pool=policy.pools[-1].name), policy=policy)
    told(scheduler, at(0), *(arrived(name, tenant, service_class=service_class) for name in ("runs", "waits")))
    while (now := scheduler.next_wakeup()) is not None and now <= at(seconds):
        scheduler.handle(TimerFired(), now)
    return scheduler


def patient(
    promise: Promise = Promise.LATENCY, *variants: Variant, name: str = "interactive", band: int = 0
) -> ServiceClass:
    service_class = a_class(name, band=band, queue_wait=600)
    return replace(service_class, promise=promise, variants=variants, ttft_ns=lasting(20))


def level(scheduler: Scheduler) -> int:
    return max((each.level for each in scheduler.summary().given_up), default=0)


def next_sent(scheduler: Scheduler, now: Instant) -> Dispatch:
    """Ends what runs, and what waits first, until what came last is sent."""
    commands = told(scheduler, now, completed("runs"), completed("waits"))
    return next(each for each in commands if isinstance(each, Dispatch) and each.request_id == "r")


def refusal(commands: list[Command]) -> End | None:
    return next((each for each in commands if isinstance(each, End)), None)


def test_while_nothing_waits_nothing_is_measured() -> None:
    scheduler = a_scheduler(policy=a_laddered(patient()))
    scheduler.handle(arrived("r"), at(0))

    assert scheduler.next_wakeup() is None


def test_who_waits_without_a_target_is_looked_at_only_when_it_expires() -> None:
    scheduler = a_scheduler(policy=a_laddered(a_class()))
    told(scheduler, at(0), arrived("runs"), arrived("waits"))

    assert scheduler.next_wakeup() == at(30)


def test_pressure_is_measured_ten_times_a_second_as_long_as_anybody_waits_and_then_no_more() -> None:
    scheduler = pressed(a_laddered(patient()), seconds=0.25)
    assert scheduler.next_wakeup() == at(0.3)

    told(scheduler, at(0.26), completed("runs"), completed("waits"))
    assert scheduler.next_wakeup() is None


def test_after_the_last_step_down_no_wakeup_is_asked_for() -> None:
    scheduler = pressed(a_laddered(patient()), seconds=1.5)
    assert level(scheduler) == 1
    told(scheduler, at(1.5), completed("runs"), completed("waits"))
    while (now := scheduler.next_wakeup()) is not None:
        scheduler.handle(TimerFired(), now)
        assert now <= at(12)

    assert level(scheduler) == 0


def test_a_ladder_that_is_switched_off_measures_nothing() -> None:
    policy = a_laddered(patient())
    scheduler = pressed(replace(policy, ladder=replace(policy.ladder, enabled=False)), seconds=5)

    wakeup = scheduler.next_wakeup()
    assert wakeup is not None
    assert wakeup > at(10)
    assert scheduler.summary().given_up == ()


def test_what_expires_while_nothing_is_measured_is_no_matter() -> None:
    policy = a_laddered(patient())
    scheduler = pressed(replace(policy, ladder=replace(policy.ladder, enabled=False)), seconds=30)

    assert scheduler.summary().queued == {"interactive": 0}
    assert level(scheduler) == 0


def test_what_arrives_at_a_level_is_sent_with_the_caps_and_the_level_of_its_variant() -> None:
    scheduler = pressed(a_laddered(patient(Promise.LATENCY, Variant(2, SHORT))), seconds=2.5)
    scheduler.handle(arrived("r"), at(2.5))

    sent = next_sent(scheduler, at(2.5))
    assert (sent.level, sent.caps.output_tokens, sent.model) == (2, 200, None)


def test_what_gives_up_nothing_is_sent_without_a_level() -> None:
    scheduler = pressed(a_laddered(patient(Promise.QUALITY, Variant(2, SHORT))), seconds=2.5)
    scheduler.handle(arrived("r"), at(2.5))

    sent = next_sent(scheduler, at(2.5))
    assert (sent.level, sent.caps.output_tokens) == (0, None)


def test_a_band_that_is_pressed_takes_nothing_from_those_before_it_but_from_those_behind() -> None:
    classes = [patient(Promise.LATENCY, Variant(2, SHORT), name=name, band=band) for band, name in enumerate("abc")]
    scheduler = pressed(a_laddered(*classes), seconds=2.5, service_class="b")
    levels: list[int] = []
    for name in "abc":
        scheduler.handle(arrived(name, service_class=name), at(2.5))
    commands = told(scheduler, at(2.5), *(completed(each) for each in ("runs", "a", "waits", "b")))
    levels = [each.level for each in commands if isinstance(each, Dispatch) and each.request_id in ("a", "b", "c")]

    assert levels == [0, 2, 2]


def test_a_band_that_a_new_policy_brings_begins_with_what_those_before_it_have_given_up() -> None:
    classes = [patient(Promise.LATENCY, Variant(2, SHORT), name=name, band=band) for band, name in enumerate("ab")]
    scheduler = pressed(a_laddered(classes[0]), seconds=2.5, service_class="a")
    told(scheduler, at(2.5), policy_changed(a_laddered(*classes), "h2"))
    scheduler.handle(arrived("b", service_class="b"), at(2.5))
    commands = told(scheduler, at(2.5), *(completed(each) for each in ("runs", "waits")))

    assert [each.level for each in commands if isinstance(each, Dispatch) and each.request_id == "b"] == [2]


SMALL = Model(ModelName("small"), (PoolName("s"),))


def test_a_variant_sends_a_class_to_another_model_if_anything_there_takes_work() -> None:
    policy = a_laddered(patient(Promise.LATENCY, served_by("small")), models=(SMALL, a_model("m", "p")))
    scheduler = pressed(policy, seconds=2.5)
    scheduler.handle(arrived("first"), at(2.5))
    joined = an_endpoint("e2", pool="s")
    told(scheduler, at(2.5), EndpointJoined(joined), EndpointReadied(joined.id))
    [sent] = scheduler.handle(arrived("second"), at(2.5))

    assert isinstance(sent, Dispatch)
    assert (sent.pool, sent.level, sent.model) == ("s", 2, "small")


def test_a_model_that_the_class_may_not_use_or_nobody_knows_changes_nothing() -> None:
    for name, pools in (("small", ("p",)), ("gone", ())):
        service_class = patient(Promise.LATENCY, served_by(name))
        service_class = replace(service_class, pools=tuple(PoolName(each) for each in pools))
        policy = a_laddered(service_class, models=(SMALL, a_model("m", "p")))
        scheduler = pressed(policy, seconds=2.5)
        scheduler.handle(arrived("r"), at(2.5))

        sent = next_sent(scheduler, at(2.5))
        assert (sent.pool, sent.level) == ("p", 0)


@pytest.mark.parametrize(("prompt_bytes", "pool"), [(4_000, "s"), (4_100, "p")])
def test_easy_requests_go_a_rung_down_from_level_two_on(prompt_bytes: int, pool: str) -> None:
    pools = PoolName("s"), PoolName("p")
    model = Model(ModelName("m"), pools, rungs=(RungRule((PoolName("p"),)),))
    scheduler = pressed(a_laddered(patient(), models=(model,)), seconds=2.5)
    joined = an_endpoint("e2", pool="s")
    told(scheduler, at(2.5), EndpointJoined(joined), EndpointReadied(joined.id))
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
def test_plans_are_refused_from_the_least_to_the_highest(pressed_for: float, levels: int, let_in: list[str]) -> None:
    scheduler = pressed(a_laddered(patient(), tenants=PLANS), seconds=pressed_for, tenant="critical")
    answers = {plan.value: refusal(scheduler.handle(arrived(plan.value, plan.value), at(pressed_for))) for plan in Plan}

    assert level(scheduler) == levels
    assert [name for name, answer in answers.items() if answer is None] == let_in
    for name, answer in answers.items():
        if answer is not None:
            assert answer.outcome is Outcome.SHED
            where = f"pool p is overloaded, and at level {levels} of the ladder requests of"
            assert answer.reason.startswith(f'{where} plan "{name}" are refused; wait ')
            assert answer.retry_after_ns is not None
            assert answer.retry_after_ns >= SECOND


def beside_standard(waiting: int) -> Scheduler:
    """At level 4, with so many prompts of the plan standard waiting, each of a third of a second."""
    scheduler = pressed(a_laddered(patient(), tenants=PLANS), seconds=0, tenant="critical")
    told(scheduler, at(0), *(arrived(f"s{number}", "standard", prompt_bytes=30_000) for number in range(waiting)))
    while (now := scheduler.next_wakeup()) is not None and now <= at(5.5):
        scheduler.handle(TimerFired(), now)
    return scheduler


def test_at_level_four_who_has_a_little_more_waiting_than_others_is_let_in() -> None:
    scheduler = beside_standard(waiting=3)

    assert refusal(scheduler.handle(arrived("over", "standard"), at(5.5))) is None
    assert level(scheduler) == 4


def test_at_level_four_who_has_more_than_its_share_waiting_is_refused() -> None:
    scheduler = beside_standard(waiting=60)

    over = refusal(scheduler.handle(arrived("over", "standard"), at(5.5)))
    assert level(scheduler) == 4
    assert over is not None
    assert over.outcome is Outcome.SHED
    assert '"standard" with more than their share waiting are refused' in over.reason
    assert refusal(scheduler.handle(arrived("within", "free"), at(5.5))) is None


def test_what_was_refused_because_it_would_come_too_late_presses_too() -> None:
    hurried = replace(a_class(queue_wait=600), ttft_ns=lasting(2))
    policy = replace(
        a_laddered(hurried), ladder=LadderRules(climb_above=400), admission=AdmissionRules(certainty_percent=1)
    )
    scheduler = a_scheduler(policy=policy)
    told(scheduler, at(0), arrived("runs"))
    for tenth in range(600):
        scheduler.handle(arrived(f"a{tenth}", prompt_bytes=40_000), at(tenth / 10))
        scheduler.handle(arrived(f"b{tenth}", prompt_bytes=40_000), at(tenth / 10))

    assert level(scheduler) >= 1


def test_at_level_three_cheap_work_waits_for_its_floor_until_nobody_is_pressed() -> None:
    cheap = replace(patient(Promise.COST, name="batch", band=1), floor_percent=0)
    scheduler = a_scheduler(an_endpoint("e1", places=1), policy=a_laddered(patient(), cheap))
    told(scheduler, at(0), arrived("runs"), arrived("waits"), arrived("cheap", service_class="batch"))
    while (now := scheduler.next_wakeup()) is not None and now <= at(3.5):
        scheduler.handle(TimerFired(), now)
    assert level(scheduler) == 3
    told(scheduler, at(3.5), completed("runs"))
    assert not any(isinstance(each, Dispatch) for each in scheduler.handle(completed("waits"), at(3.5)))

    sent = scheduler.handle(TimerFired(), at(3.6))
    assert [each.request_id for each in sent if isinstance(each, Dispatch)] == ["cheap"]


def test_a_new_policy_keeps_the_level_and_what_waits_counts_on() -> None:
    policy = a_laddered(patient())
    scheduler = pressed(policy, seconds=2.5)
    told(scheduler, at(2.5), policy_changed(policy, "h2"))
    assert level(scheduler) == 2

    scheduler.handle(TimerFired(), at(3.5))
    scheduler.handle(TimerFired(), at(4.5))
    assert level(scheduler) > 2


def test_pools_where_nothing_matters_any_more_are_forgotten_when_there_are_many() -> None:
    overload = Overload(Rules(a_laddered(patient()), "h"))
    for number in range(600):
        request = Request(arrived("r").ticket, patient(), (PoolName(f"p{number}"),), sequence=number, now=at(0))
        request.cost_ns = lasting(1)
        overload.queued(request)
        if number % 2:
            overload.left(request)

    assert 300 <= len(list(overload.given_up())) < 600
    assert overload.allows_hedging((PoolName("p0"),))
