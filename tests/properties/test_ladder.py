"""Property tests for degradation and load shedding.

Higher levels only add restrictions, and no request is admitted while a request with precedence over it is rejected.
"""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core import degradation
from headgate.core.admission.shedding import MILLION, Shedder, ShedDraws, rank
from headgate.core.commands import Dispatch, End
from headgate.core.degradation import Degradation
from headgate.core.estimate import estimate
from headgate.core.pressure import sheddability
from headgate.core.request_state import Request
from headgate.core.scheduler import Scheduler
from headgate.model.caps import Caps, ImageDetail, ReasoningEffort
from headgate.model.outcome import Outcome
from headgate.model.policy import (
    AdmissionRules,
    DegradationRules,
    DegradationStep,
    OptimizationGoal,
    Policy,
    ServiceClass,
    SheddingRules,
)
from headgate.model.tenant import Plan
from headgate.model.units import ModelName, PoolName, TenantId
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    a_tenant,
    an_endpoint,
    arrived,
    at,
    completed,
    duration,
)
from testing.builds import IS_COMPILED, NEEDS_PURE_BUILD

counts = st.none() | st.integers(0, 5)
caps = st.builds(
    Caps,
    prompt_tokens=counts,
    trim_prompt=st.booleans(),
    output_tokens=counts,
    n=counts,
    best_of=counts,
    logprobs=counts,
    prompt_logprobs=counts,
    reasoning_effort=st.none() | st.sampled_from(ReasoningEffort),
    image_detail=st.none() | st.sampled_from(ImageDetail),
)
variants = st.builds(DegradationStep, level=st.integers(1, 6), caps=caps, model=st.none() | st.just(ModelName("small")))
pressures = st.lists(st.lists(st.integers(0, 3_000), min_size=6, max_size=6).map(sorted), max_size=60)


def strictness(of: Caps) -> tuple[int, ...]:
    """Returns one number per cap. Higher numbers are stricter."""
    numbers = (of.prompt_tokens, of.output_tokens, of.n, of.best_of, of.logprobs, of.prompt_logprobs)
    words = (
        None if of.reasoning_effort is None else list(ReasoningEffort).index(of.reasoning_effort),
        None if of.image_detail is None else list(ImageDetail).index(of.image_detail),
    )
    return (int(of.trim_prompt), *(-10 if each is None else -each for each in (*numbers, *words)))


@given(st.sampled_from(OptimizationGoal), caps, st.lists(variants, max_size=4))
def test_higher_level_never_relaxes_the_caps_of_a_lower_one(
    promise: OptimizationGoal, own: Caps, declared: list[DegradationStep]
) -> None:
    ordered = tuple(sorted(declared, key=lambda each: each.level))
    service_class = replace(a_class(caps=own), optimize_for=promise, degradation_steps=ordered)
    allowed = [degradation.degraded_class(service_class, level) for level in range(7)]

    assert allowed[0].service_class is service_class
    for lower, higher in pairwise(allowed):
        before, after = strictness(lower.service_class.caps), strictness(higher.service_class.caps)
        assert all(new >= old for old, new in zip(before, after, strict=True))
        assert lower.model is None or higher.model is not None
    if promise is OptimizationGoal.QUALITY:
        assert all(each.service_class is service_class and each.model is None for each in allowed)


@given(pressures)
def test_level_moves_by_single_steps_and_admitted_standings_are_nested(felt: list[list[int]]) -> None:
    ladder = Degradation(DegradationRules(escalate_after_ns=duration(0.2), recover_after_ns=duration(0.5)))
    letting_in = {each for each in range(5) if not ladder.rejects(each)}
    for number, each in enumerate(felt):
        before = ladder.level
        ladder.tick(each, at(number / 10))
        now_letting_in = {each for each in range(5) if not ladder.rejects(each)}

        assert abs(ladder.level - before) <= 1
        assert now_letting_in <= letting_in if ladder.level > before else True
        assert now_letting_in >= letting_in if ladder.level < before else True
        assert now_letting_in == set(range(len(now_letting_in)))
        letting_in = now_letting_in


@given(st.lists(st.tuples(st.integers(0, 3_000), st.lists(st.integers(0, 40), max_size=20)), max_size=20))
def test_shedder_rejects_the_highest_ranks_and_at_most_its_fraction(
    periods: list[tuple[int, list[int]]],
) -> None:
    rules = SheddingRules(
        enabled=True, target_pressure=500, proportional_gain=200, integral_gain=100, arrival_window=50
    )
    shedder = Shedder(rules)
    remembered: list[int] = []
    for pressure, ranks in periods:
        shedder.update(pressure)
        refused = [each for each in range(41) if shedder.rejects(each)]

        assert refused == list(range(refused[0], 41)) if refused else True
        assert sum(each in refused for each in remembered) * MILLION <= shedder.fraction * max(1, len(remembered))
        for each in ranks:
            shedder.record_arrival(each)
        remembered = (remembered + ranks)[-rules.arrival_window :]


# Property 8 in the complete scheduler

PLANS = {plan.value: plan for plan in Plan}
PROMPT_BYTES = 30_000
CLASSES = {"interactive": 0, "patient": 0, "batch": 1}


def a_pressed_policy() -> Policy:
    """Returns a policy in which queued requests add pressure, and degradation and shedding react quickly."""
    classes: list[ServiceClass] = []
    for name, band in CLASSES.items():
        promise = OptimizationGoal.COST if name == "batch" else OptimizationGoal.LATENCY
        classes.append(replace(a_class(name, band=band, queue_wait=600), ttft_ns=duration(1.5), optimize_for=promise))
    return replace(
        a_policy(
            classes=tuple(classes), tenants=tuple(replace(a_tenant(name), plan=plan) for name, plan in PLANS.items())
        ),
        degradation=DegradationRules(
            escalate_above=0, recover_below=1, escalate_after_ns=duration(0.1), recover_after_ns=duration(1)
        ),
        shedding=SheddingRules(
            enabled=True, target_pressure=1, integral_gain=20_000, shed_percent_max=40, arrival_window=30
        ),
        admission=AdmissionRules(predicted_wait_percent_max=None),
    )


arrivals = st.tuples(st.sampled_from(sorted(PLANS)), st.sampled_from(sorted(CLASSES)))
steps = st.lists(st.tuples(st.lists(arrivals, min_size=1, max_size=4), st.integers(0, 1)), min_size=8, max_size=20)


@pytest.mark.skipif(IS_COMPILED, reason=NEEDS_PURE_BUILD)
@given(steps)
def test_no_request_is_admitted_while_one_with_higher_precedence_is_rejected(
    steps: list[tuple[list[tuple[str, str]], int]],
) -> None:
    scheduler = a_scheduler(an_endpoint("e1", places=2), policy=a_pressed_policy())
    running: list[str] = []
    for number, (arriving, ending) in enumerate(steps):
        now = at(number / 5)
        for place, (tenant, service_class) in enumerate(arriving):
            commands = scheduler.handle(
                arrived(f"{number}-{place}", tenant, service_class=service_class, prompt_bytes=PROMPT_BYTES), now
            )
            running += [each.request_id for each in commands if isinstance(each, Dispatch)]
        for request in running[:ending]:
            commands = scheduler.handle(completed(request), now)
            running += [each.request_id for each in commands if isinstance(each, Dispatch)]
        running = running[ending:]
        if number % 8 == 7 or number == len(steps) - 1:
            _check_property_8(scheduler, number / 5)


def _check_property_8(scheduler: Scheduler, seconds: float) -> None:
    """Tries every kind of request on a copy of the scheduler."""
    standings: dict[tuple[str, str], int] = {}
    ranks: dict[tuple[str, str], int] = {}
    reasons: dict[tuple[str, str], str] = {}
    chances = ShedDraws()
    for tenant, plan in PLANS.items():
        for name, band in CLASSES.items():
            over_share = _is_over_share(scheduler, tenant, name)
            chance = chances.draw(TenantId(tenant), at(seconds))
            standings[tenant, name] = sheddability(plan, over_share=over_share)
            ranks[tenant, name] = rank(band=band, over_share=over_share, plan=plan, draw=chance)
            commands = deepcopy(scheduler).handle(
                arrived("probe", tenant, service_class=name, prompt_bytes=PROMPT_BYTES), at(seconds)
            )
            for each in commands:
                if isinstance(each, End) and each.request_id == "probe" and each.outcome is Outcome.SHED:
                    reasons[tenant, name] = each.reason
    for probe, reason in reasons.items():
        if "at degradation level" in reason:
            behind = [each for each in ranks if _is_behind(each, probe, standings)]
        else:
            behind = [each for each in ranks if ranks[each] >= ranks[probe]]
        assert all(other in reasons for other in behind), f"{probe} is rejected, but not all of {behind}"


def _is_behind(other: tuple[str, str], probe: tuple[str, str], standings: dict[tuple[str, str], int]) -> bool:
    """Returns whether `other` has an equal or worse standing, in the same or a lower-priority band."""
    return standings[other] >= standings[probe] and CLASSES[other[1]] >= CLASSES[probe[1]]


def _is_over_share(scheduler: Scheduler, tenant: str, name: str) -> bool:
    service_class = next(each for each in a_pressed_policy().classes if each.name == name)
    probe = Request(
        arrived("probe", tenant, prompt_bytes=PROMPT_BYTES).ticket,
        service_class,
        (PoolName("p"),),
        sequence=0,
        now=at(0),
    )
    estimate(probe, scheduler._state.predictions, scheduler._state.fleet, scheduler._state.rules)
    return scheduler._state.overload._is_over_share(probe, scheduler._state.queue.backlog, scheduler._state.fleet)
