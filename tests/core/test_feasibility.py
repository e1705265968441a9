"""Tests for feasibility: requests that would wait too long are rejected on arrival."""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, End
from headgate.core.routing.turnover import Turnover
from headgate.core.scheduler import Scheduler
from headgate.model.outcome import Outcome
from headgate.model.policy import AdmissionRules, Policy
from headgate.model.tenant import Tenant
from headgate.model.units import SECOND, Duration, PoolName, RequestId, TenantId, format_seconds
from testing.builders import (
    a_class,
    a_policy,
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
)

PROMPT = 20_000
"""Prompt size in bytes. The prompt and response together take the test engines about a sixth of a second."""


def hurried(ttft: float | None = 2.0, *, certainty: int | None = 100, **changes: object) -> Policy:
    ttft_ns = None if ttft is None else duration(ttft)
    classes = (replace(a_class("interactive"), ttft_ns=ttft_ns), a_class("batch", band=1, queue_wait=600))
    policy = a_policy(classes=classes, **changes)  # type: ignore[arg-type]
    return replace(policy, admission=AdmissionRules(certainty))


def outcomes(policy: Policy, count: int, *, endpoints: int = 1, tenant: str = "acme") -> list[Outcome | None]:
    """Returns the outcome on arrival of `count` simultaneous requests behind a running one. None means queued."""
    scheduler = a_scheduler(*(an_endpoint(f"e{number}") for number in range(endpoints)), policy=policy)
    commands_for(scheduler, at(0), *(arrived(f"runs{number}", tenant) for number in range(endpoints)))
    answers = []
    for number in range(count):
        commands = scheduler.handle(arrived(f"r{number}", tenant, prompt_bytes=PROMPT), at(0))
        answers.append(commands[-1].outcome if commands and isinstance(commands[-1], End) else None)
    return answers


def test_request_that_would_miss_its_target_is_rejected_on_arrival() -> None:
    answers = outcomes(hurried(), 30)
    waiting = answers.index(Outcome.DEADLINE_INFEASIBLE)

    assert answers == [None] * waiting + [Outcome.DEADLINE_INFEASIBLE] * (30 - waiting)
    assert 5 <= waiting <= 20


def test_doubling_the_endpoints_admits_twice_as_many_requests() -> None:
    one = outcomes(hurried(), 60).index(Outcome.DEADLINE_INFEASIBLE)
    two = outcomes(hurried(), 60, endpoints=2).index(Outcome.DEADLINE_INFEASIBLE)

    assert 2 * one - 2 <= two <= 2 * one + 2


def test_looser_target_admits_more_requests() -> None:
    assert outcomes(hurried(4.0), 60).index(Outcome.DEADLINE_INFEASIBLE) > outcomes(hurried(2.0), 60).index(
        Outcome.DEADLINE_INFEASIBLE
    )


def test_no_request_is_rejected_if_the_rule_is_disabled() -> None:
    assert outcomes(hurried(certainty=None), 60) == [None] * 60


def test_request_without_a_target_is_limited_by_the_queue_timeout() -> None:
    answers = outcomes(hurried(None), 400)

    assert Outcome.DEADLINE_INFEASIBLE in answers
    assert answers.index(Outcome.DEADLINE_INFEASIBLE) > 60


def test_rejection_states_the_estimated_wait_and_retry_after() -> None:
    scheduler = a_scheduler(policy=hurried())
    commands_for(scheduler, at(0), arrived("runs"))
    [end] = commands_for(scheduler, at(0), *(arrived(f"r{number}", prompt_bytes=PROMPT) for number in range(30)))[:1]

    assert isinstance(end, End)
    assert end.outcome is Outcome.DEADLINE_INFEASIBLE
    assert end.reason.startswith("the estimated wait is ")
    assert 'in class "interactive"; retry later' in end.reason
    assert end.retry_after_ns is not None
    assert end.retry_after_ns >= SECOND


def test_queue_from_one_tenant_does_not_cause_rejections_for_another() -> None:
    scheduler = a_scheduler(policy=hurried())
    commands_for(scheduler, at(0), arrived("runs"))
    commands_for(scheduler, at(0), *(arrived(f"r{number}", prompt_bytes=PROMPT) for number in range(30)))

    assert scheduler.handle(arrived("new", "bolt", prompt_bytes=PROMPT), at(0)) == []
    [*_, sent] = scheduler.handle(completed("runs"), at(0.1))
    assert isinstance(sent, Dispatch)


def test_other_tenants_are_counted_only_up_to_their_fair_share() -> None:
    """A tenant with three times the weight gets three times as much service."""
    alone = outcomes(hurried(), 60).index(Outcome.DEADLINE_INFEASIBLE)

    def let_in(weight: int) -> int:
        tenants = ("acme", Tenant(TenantId("bolt"), weight=weight), "coil")
        policy = replace(hurried(tenants=tenants), classes=hurried().classes)
        scheduler = a_scheduler(policy=policy)
        commands_for(scheduler, at(0), arrived("runs", "coil"))
        commands_for(scheduler, at(0), *(arrived(f"b{number}", "bolt", prompt_bytes=PROMPT) for number in range(alone)))
        for number in range(60):
            if scheduler.handle(arrived(f"a{number}", prompt_bytes=PROMPT), at(0)):
                return number
        return 60

    assert let_in(300) < let_in(100) < alone
    assert let_in(1) >= alone - 2


def test_queued_work_in_a_higher_band_is_counted_in_full() -> None:
    classes = (a_class("interactive"), replace(a_class("batch", band=1), ttft_ns=duration(2)))
    scheduler = a_scheduler(policy=a_policy(classes=classes))
    commands_for(scheduler, at(0), arrived("runs"))
    commands_for(scheduler, at(0), *(arrived(f"i{number}", prompt_bytes=PROMPT) for number in range(30)))
    [end] = scheduler.handle(arrived("b", "bolt", service_class="batch", prompt_bytes=PROMPT), at(0))

    assert isinstance(end, End)
    assert end.outcome is Outcome.DEADLINE_INFEASIBLE


def test_wait_estimate_considers_a_limited_number_of_tenants() -> None:
    """Examining all tenants would take too long, so the estimate is a lower bound."""
    tenants = tuple(f"t{number}" for number in range(100))
    scheduler = a_scheduler(policy=hurried(2.0, tenants=("acme", *tenants)))
    commands_for(
        scheduler, at(0), arrived("runs"), *(arrived(f"own{number}", prompt_bytes=PROMPT) for number in range(3))
    )
    for name in tenants:
        commands_for(scheduler, at(0), arrived(f"{name}-1", name, prompt_bytes=400))
    [end] = scheduler.handle(arrived("next", prompt_bytes=PROMPT), at(0))

    assert isinstance(end, End)
    assert end.outcome is Outcome.DEADLINE_INFEASIBLE
    cost = scheduler._state.requests.by_id[RequestId("t0-1")].cost_ns
    own = 3 * scheduler._state.requests.by_id[RequestId("own0")].cost_ns
    assert f"the estimated wait is {format_seconds(Duration(own + 64 * cost))}, " in end.reason


def test_pool_without_endpoints_adds_no_capacity() -> None:
    scheduler = a_scheduler(policy=hurried())

    assert scheduler._state.fleet.service_rate((PoolName("nowhere"), PoolName("p")), long=True) == 1_000
    assert scheduler._state.fleet.mean_request_ns((PoolName("nowhere"),)) == 0
    assert scheduler._state.fleet.free_in_ns((PoolName("nowhere"),), Duration(0), at(0)) == 0
    assert not scheduler._state.fleet.has_places((PoolName("nowhere"),))


# `in_flight_max` is the bottleneck

QUEUE_LENGTH = a_class("interactive").queue_length_per_tenant_max


def served(
    places: int, *, taking: float, count: int = 20, endpoints: int = 1, tenants: tuple[str, ...] = ("acme",)
) -> Scheduler:
    """Returns a scheduler whose slots are all in use. Each of its past requests held a slot for `taking` seconds."""
    names = [f"e{number}" for number in range(endpoints)]
    scheduler = a_scheduler(
        *(an_endpoint(name, places=places) for name in names), policy=hurried(None, tenants=tenants)
    )
    for number in range(count):
        scheduler.handle(arrived(f"s{number}", prompt_bytes=400), at(number * taking))
        scheduler.handle(completed(f"s{number}"), at((number + 1) * taking))
    commands_for(
        scheduler, at(count * taking), *(arrived(f"runs{n}", prompt_bytes=400) for n in range(places * endpoints))
    )
    return scheduler


def let_in(scheduler: Scheduler, now: float) -> int:
    """Returns the number of small requests that are admitted to the queue."""
    for number in range(QUEUE_LENGTH + 1):
        if scheduler.handle(arrived(f"n{number}", prompt_bytes=400), at(now)):
            return number
    raise AssertionError("no request was rejected")


def test_estimated_wait_follows_the_slot_time_of_requests() -> None:
    """The class waits up to 30 s. With 4 slots held for 2 s each, about 60 requests can be served in that time."""
    assert 50 <= let_in(served(4, taking=2.0), 40.0) <= 60


def test_doubling_the_slots_or_endpoints_admits_twice_as_many_queued_requests() -> None:
    one = let_in(served(4, taking=2.0), 40.0)

    assert 2 * one <= let_in(served(8, taking=2.0), 40.0) <= 2 * one + 10
    assert 2 * one <= let_in(served(4, taking=2.0, endpoints=2), 40.0) <= 2 * one + 10


def test_slot_estimate_requires_enough_finished_requests() -> None:
    assert let_in(served(4, taking=2.0, count=7), 14.0) == QUEUE_LENGTH


def test_failed_requests_do_not_affect_the_slot_estimate() -> None:
    scheduler = a_scheduler(an_endpoint(places=4), policy=hurried(None))
    for number in range(20):
        scheduler.handle(arrived(f"s{number}", prompt_bytes=400), at(number))
        scheduler.handle(engine_rejected(f"s{number}"), at(number + 1))
    commands_for(scheduler, at(20), *(arrived(f"runs{n}", prompt_bytes=400) for n in range(4)))

    assert let_in(scheduler, 20.0) == QUEUE_LENGTH


def test_cancelled_requests_do_not_affect_the_slot_estimate() -> None:
    """These requests have a large cost but end immediately, so slots would appear to free up quickly."""
    undisturbed, disturbed = served(4, taking=2.0), served(4, taking=2.0)
    commands_for(disturbed, at(40), *(completed(f"runs{number}") for number in range(4)))
    for number in range(60):
        disturbed.handle(arrived(f"left{number}", prompt_bytes=PROMPT), at(40))
        commands_for(disturbed, at(40), client_disconnected(f"left{number}"), aborted(f"left{number}"))
    commands_for(undisturbed, at(40), *(completed(f"runs{number}") for number in range(4)))
    for scheduler in (undisturbed, disturbed):
        commands_for(scheduler, at(40), *(arrived(f"again{number}", prompt_bytes=400) for number in range(4)))

    assert let_in(disturbed, 40.0) == let_in(undisturbed, 40.0) < QUEUE_LENGTH


@pytest.mark.parametrize("reading", [60, 600])
def test_slow_readers_from_one_tenant_hardly_affect_the_slot_estimate(reading: int) -> None:
    """The tenant's callers hold slots for minutes because they read slowly. The engine is not slow."""
    undisturbed, disturbed = (served(4, taking=2.0, tenants=("acme", "bolt")) for _ in range(2))
    for scheduler in (undisturbed, disturbed):
        commands_for(scheduler, at(40), *(completed(f"runs{number}") for number in range(4)))
    for burst in range(4):
        names = [f"slow{burst}-{number}" for number in range(4)]
        commands_for(disturbed, at(40 + reading * burst), *(arrived(name, "bolt", prompt_bytes=400) for name in names))
        commands_for(disturbed, at(40 + reading * (burst + 1)), *(completed(name) for name in names))
    later = 40.0 + 4 * reading
    for scheduler, now in ((undisturbed, 40), (disturbed, later)):
        commands_for(scheduler, at(now), *(arrived(f"again{number}", prompt_bytes=400) for number in range(4)))

    usual = let_in(undisturbed, 40.0)
    assert usual / 3 <= let_in(disturbed, later) <= usual < QUEUE_LENGTH


def test_engine_slowdown_for_all_tenants_lowers_the_pace() -> None:
    turnover = Turnover()
    for number in range(200):
        turnover.occupy(number, at(0), cost_ns=Duration(SECOND), tenant=TenantId(f"t{number % 2}"))
        turnover.release(number, at(1 if number < 40 else 50), served=True)

    assert turnover.service_rate(100, 50) == pytest.approx(1_000, rel=0.35)


def test_pace_is_learned_from_a_single_tenant() -> None:
    turnover = Turnover()
    for number in range(600):
        turnover.occupy(number, at(0), cost_ns=Duration(SECOND))
        turnover.release(number, at(50), served=True)

    assert turnover.service_rate(100, 50) == 1_000


def test_usual_slot_time_is_kept_for_recently_served_tenants() -> None:
    """Only a few tenants are tracked, so a change is visible even though many others were served before."""
    turnover = Turnover()
    for number in range(640):
        taking = 1 if number < 320 else 50
        turnover.occupy(number, at(0), cost_ns=Duration(SECOND), tenant=TenantId(f"t{number // 8}"))
        turnover.release(number, at(taking), served=True)

    assert turnover.service_rate(100, 50) < 1_300


def in_bursts(taking: float = 3.0) -> Scheduler:
    """Returns a scheduler whose four slots were filled at the same time by requests that take `taking` seconds each."""
    policy = hurried(None)
    classes = (replace(policy.classes[0], queue_wait_ns_max=duration(2)), *policy.classes[1:])
    scheduler = a_scheduler(an_endpoint(places=4), policy=replace(policy, classes=classes))
    for burst in range(5):
        names = [f"b{burst}-{number}" for number in range(4)]
        commands_for(scheduler, at(burst * taking), *(arrived(name, prompt_bytes=400) for name in names))
        if burst < 4:
            commands_for(scheduler, at((burst + 1) * taking), *(completed(name) for name in names))
    return scheduler


def test_request_between_two_bursts_is_rejected_if_no_slot_becomes_free_in_time() -> None:
    """The slots were filled at 12 s and are held for 3 s. A request may wait for 2 s."""
    [end] = in_bursts().handle(arrived("early", prompt_bytes=400), at(12.5))

    assert isinstance(end, End)
    assert end.outcome is Outcome.DEADLINE_INFEASIBLE
    assert end.reason.startswith("the estimated wait is 2.5 s, but the request may wait at most 2 s ")
    assert in_bursts().handle(arrived("later", prompt_bytes=400), at(13.5)) == []


def test_shortest_response_determines_when_a_slot_becomes_free() -> None:
    scheduler = in_bursts()
    commands_for(scheduler, at(12.1), completed("b4-0"), arrived("again", prompt_bytes=400))

    assert scheduler.handle(arrived("early", prompt_bytes=400), at(12.5)) == []


def test_slots_used_for_zero_time_do_not_limit_the_pace() -> None:
    turnover = Turnover()
    for number in range(20):
        turnover.occupy(number, at(1), cost_ns=Duration(1))
        turnover.release(number, at(1), served=True)

    assert turnover.service_rate(3, 1) == 3_000


def test_prompt_array_is_counted_for_every_slot_it_uses() -> None:
    one, eight = Turnover(), Turnover()
    for number in range(20):
        for turnover, places in ((one, 1), (eight, 8)):
            turnover.occupy(number, at(number), cost_ns=Duration(SECOND // 10), places=places)
            turnover.release(number, at(number + 1), served=True)

    assert one.service_rate(10, 16) == 1_600
    assert eight.service_rate(10, 16) == 200


def test_short_responses_after_long_ones_are_expected_to_end_soon() -> None:
    turnover = Turnover()
    for number in range(20):
        turnover.occupy(number, at(0), cost_ns=Duration(SECOND))
        turnover.release(number, at(60), served=True)
    turnover.occupy("long", at(60), cost_ns=Duration(SECOND))
    turnover.occupy("short", at(60), cost_ns=Duration(SECOND // 60))

    assert turnover.free_in_ns(2, Duration(0), at(60)) <= SECOND
    assert turnover.free_in_ns(2, Duration(SECOND), at(60)) == 60 * SECOND


def test_wait_is_estimated_as_zero_if_many_slots_are_in_use() -> None:
    turnover = Turnover()
    for number in range(20):
        turnover.occupy(number, at(0), cost_ns=Duration(SECOND))
        turnover.release(number, at(60), served=True)
    for number in range(65):
        turnover.occupy(number, at(60), cost_ns=Duration(SECOND))

    assert turnover.free_in_ns(65, Duration(0), at(60)) == 0
