"""Do default targets and a guessed speed protect, without rejecting what a slow engine could serve?"""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, End
from headgate.core.counters import EndpointCounter
from headgate.core.events import (
    AttemptProgress,
    EndpointJoined,
    EndpointLeaving,
    EndpointReadied,
    PolicyChanged,
    Progressed,
    TimerFired,
)
from headgate.core.measure import measure
from headgate.core.prediction import Predictions
from headgate.core.pressure import ALL, Pressure
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.learning import REPORTS, SETTLED_FROM, Learned
from headgate.core.routing.pool_speed import PoolSpeed
from headgate.core.rules import Rules
from headgate.core.scheduler import Scheduler
from headgate.core.state import Request
from headgate.model.outcome import Outcome
from headgate.model.policy import Policy, Pool
from headgate.model.speed import EngineSpeed
from headgate.model.tenant import Plan, Tenant
from headgate.model.units import MILLISECOND, SECOND, Duration, EndpointId, PoolName, RequestId, TenantId
from testing.builders import (
    a_class,
    a_policy,
    a_scheduler,
    a_scheduler_without_endpoints,
    an_endpoint,
    arrived,
    at,
    first_token,
    lasting,
    told,
)

PROMPT = 20_000
USUAL = EngineSpeed()
P = (PoolName("p"),)


def a_guess(*, ttft: float = 2.0, tpot_ms: int | None = None, assumed: bool = True) -> Policy:
    """One class with default targets at a pool whose speed is a guess."""
    tpot_ns = None if tpot_ms is None else Duration(tpot_ms * MILLISECOND)
    service_class = replace(
        a_class("interactive", queue_wait=30),
        ttft_ns=lasting(ttft),
        tpot_ns=tpot_ns,
        ttft_assumed=assumed,
        tpot_assumed=assumed,
    )
    return a_policy(classes=(service_class,), pools=(Pool(PoolName("p"), speed_assumed=assumed),))


def settled(percent: int = 100, *, assumed: bool = True) -> Learned:
    learned = Learned(assumed=assumed)
    factor, weight = 10_000 * percent, 50 * 1_000_000
    learned.restore((factor, factor), (weight, 0, 0, weight * percent // 100, 0))
    return learned


def known_to_be(percent: int, *endpoints: str) -> tuple[EndpointCounter, ...]:
    return tuple(EndpointCounter(EndpointId(each), *settled(percent).counters(), 0) for each in endpoints)


def a_fleet(policy: Policy, *, percent: int | None, endpoints: tuple[str, ...] = ("e1",)) -> Fleet:
    fleet = Fleet(Rules(policy, ""))
    if percent is not None:
        fleet.restore(known_to_be(percent, *endpoints))
    for each in endpoints:
        fleet.join(an_endpoint(each), at(0))
        fleet.ready(EndpointId(each), at(0))
    return fleet


# The speed of a pool


def test_pool_learns_until_half_of_its_endpoints_have_settled() -> None:
    speed = PoolSpeed(USUAL, assumed=True)
    speed.learned(Learned(assumed=True))
    assert speed.learning(1)

    speed.learned(settled())
    assert [speed.learning(endpoints) for endpoints in (1, 2, 3)] == [False, False, True]


def test_pool_learns_again_if_an_endpoint_turns_out_faster_than_any_estimate() -> None:
    learned = settled()
    speed = PoolSpeed(USUAL, assumed=True)
    speed.learned(learned)
    assert not speed.learning(1)

    learned.settled = False
    speed.learned(learned)

    assert speed.learning(1)


def test_configured_speed_is_used_unchanged() -> None:
    speed = PoolSpeed(USUAL, assumed=False)
    speed.learned(settled(400, assumed=False))

    assert (speed.estimate, speed.learning(8)) == (USUAL, False)


def test_estimate_is_scaled_by_the_harmonic_mean_of_what_endpoints_learned() -> None:
    speed = PoolSpeed(USUAL, assumed=True)
    quick, slow = settled(100), settled(300)
    speed.learned(quick)
    speed.learned(slow)
    assert speed.estimate == USUAL.scaled(decode_percent=150, prefill_percent=150)

    speed.forget(quick)
    assert speed.estimate == USUAL.scaled(decode_percent=300, prefill_percent=300)
    speed.forget(slow)
    assert speed.learning(1)


def test_small_changes_of_a_factor_leave_the_estimate() -> None:
    speed, endpoint = PoolSpeed(USUAL, assumed=True), settled(200)
    speed.learned(endpoint)
    before = speed.estimate
    endpoint.decode_percent = 201
    speed.learned(endpoint)

    assert speed.estimate is before


def test_speed_that_the_configuration_gives_later_replaces_the_learned_one() -> None:
    speed, given = PoolSpeed(USUAL, assumed=True), EngineSpeed(step_ps=1)
    speed.learned(settled(200))
    speed.change(USUAL, assumed=True)
    assert speed.estimate == USUAL.scaled(decode_percent=200, prefill_percent=200)
    speed.change(given, assumed=False)
    assert (speed.estimate, speed.learning(9)) == (given, False)

    speed.change(USUAL, assumed=True)
    assert speed.estimate == USUAL.scaled(decode_percent=200, prefill_percent=200)


def test_fleet_estimates_unknown_pools_by_the_usual_speed() -> None:
    fleet = a_fleet(a_guess(), percent=300)

    assert fleet.speed(PoolName("p")) == USUAL.scaled(decode_percent=300, prefill_percent=300)
    assert fleet.speed(PoolName("other")) == USUAL
    assert not fleet.learning((PoolName("other"), *P))


def test_endpoint_that_has_left_no_longer_counts_in_the_speed() -> None:
    fleet = a_fleet(a_guess(), percent=300)
    fleet.leave(EndpointId("e1"), at(1))
    fleet.join(an_endpoint("e2"), at(1))

    assert fleet.learning(P)


# Speeds that are kept across a restart


def test_kept_speed_that_had_settled_counts_as_learned() -> None:
    before = a_fleet(a_guess(), percent=300)
    after = Fleet(Rules(a_guess(), ""))
    after.recall_speeds(before.learned_speeds())
    after.join(an_endpoint("e1"), at(0))

    assert after.learned_speeds() == before.learned_speeds()
    assert not after.learning(P)
    assert after.speed(P[0]) == USUAL.scaled(decode_percent=300, prefill_percent=300)


def test_kept_speed_that_had_not_settled_is_a_guess() -> None:
    scheduler, after = a_scheduler(policy=a_guess()), a_scheduler_without_endpoints(a_guess())
    # Each equation differs from the estimate by a factor of three, so that it never settles.
    told(scheduler, at(0), arrived("r"), first_token("r"))
    moment = 0.0
    for number in range(3 * SETTLED_FROM * REPORTS):
        moment += 3.0 if number // REPORTS % 2 else 0.1
        told(scheduler, at(moment), Progressed((AttemptProgress(RequestId("r"), 1, 10),)))
    [kept] = scheduler.learned_speeds()
    assert not kept.settled

    after.recall_speeds((kept,))
    told(after, at(0), EndpointJoined(an_endpoint("e1")), EndpointReadied(EndpointId("e1")))

    [restored] = after.learned_speeds()
    assert (restored.settled, restored.factors) == (False, kept.factors)
    assert scheduler_fleet(after).learning(P)


# Rejections


def outcomes(scheduler: Scheduler, count: int) -> list[Outcome]:
    told(scheduler, at(0), arrived("runs"))
    commands = told(scheduler, at(0), *(arrived(f"r{number}", prompt_bytes=PROMPT) for number in range(count)))
    return [each.outcome for each in commands if isinstance(each, End)]


def test_no_request_is_rejected_on_a_guess() -> None:
    assert outcomes(a_scheduler(policy=a_guess()), 60) == []
    assert Outcome.UNREACHABLE in outcomes(a_scheduler(policy=a_guess(assumed=False)), 60)


def stream(scheduler: Scheduler, name: str, *, step_ms: int, reports: int) -> None:
    """One stream whose tokens take this long, in reports of ten tokens, from its arrival to its last report."""
    told(scheduler, at(0), arrived(name), first_token(name))
    for number in range(1, reports + 1):
        moment = at(number * 10 * step_ms / 1_000)
        told(scheduler, moment, Progressed((AttemptProgress(RequestId(name), 1, 10),)))


def test_requests_are_rejected_once_the_speed_is_learned() -> None:
    scheduler = a_scheduler(policy=a_guess())
    stream(scheduler, "first", step_ms=10, reports=(SETTLED_FROM + 3) * REPORTS)
    moment = at((SETTLED_FROM + 3) * REPORTS * 0.1)
    commands = told(scheduler, moment, *(arrived(f"r{number}", prompt_bytes=PROMPT) for number in range(60)))

    assert Outcome.UNREACHABLE in [each.outcome for each in commands if isinstance(each, End)]


def scheduler_fleet(scheduler: Scheduler) -> Fleet:
    return scheduler._state.fleet


def test_default_target_does_not_bind_while_the_speed_is_a_guess() -> None:
    request, fleet = a_request(a_guess(), percent=None)

    assert (request.soonest_ns, request.beyond_target) == (0, True)
    assert fleet.learning(P)


def test_default_target_that_no_engine_can_keep_does_not_bind() -> None:
    fast, _ = a_request(a_guess(), percent=100)
    slow, _ = a_request(a_guess(), percent=4_000)
    configured, _ = a_request(a_guess(assumed=False), percent=400, ttft_s=0.1)

    assert (fast.beyond_target, fast.begin_ns_max) == (False, 2 * SECOND)
    assert (slow.beyond_target, slow.begin_ns_max) == (True, 30 * SECOND)
    assert configured.soonest_ns > lasting(0.1)
    assert not configured.beyond_target


def a_request(policy: Policy, *, percent: int | None, ttft_s: float | None = None) -> tuple[Request, Fleet]:
    if ttft_s is not None:
        policy = replace(policy, classes=(replace(policy.classes[0], ttft_ns=lasting(ttft_s)),))
    fleet = a_fleet(policy, percent=percent)
    request = Request(arrived("r", prompt_bytes=PROMPT).ticket, policy.classes[0], P, sequence=1, now=at(0))
    measure(request, Predictions(), fleet, Rules(policy, ""))
    return request, fleet


def test_whole_answer_of_a_configured_class_has_no_time_to_first_token() -> None:
    policy = a_guess(assumed=False)
    request = Request(arrived("r", stream=False).ticket, policy.classes[0], P, sequence=1, now=at(0))
    measure(request, Predictions(), a_fleet(policy, percent=None), Rules(policy, ""))

    assert request.soonest_ns == 0


@pytest.mark.parametrize(("percent", "expires_s"), [(None, 30), (4_000, 30)])
def test_slow_engine_lets_requests_wait_as_long_as_the_queue_allows(percent: int | None, expires_s: int) -> None:
    scheduler = Scheduler()
    told(scheduler, at(0), PolicyChanged(a_guess(), "x"))
    fleet = scheduler_fleet(scheduler)
    if percent is not None:
        fleet.restore(known_to_be(percent, "e1"))
    told(scheduler, at(0), EndpointJoined(an_endpoint("e1", places=1)), EndpointReadied(EndpointId("e1")))
    commands = told(scheduler, at(0), arrived("runs"), arrived("waits", prompt_bytes=PROMPT))
    assert [each.request_id for each in commands if isinstance(each, Dispatch)] == ["runs"]

    assert told(scheduler, at(expires_s - 0.1), TimerFired()) == []
    [end] = told(scheduler, at(expires_s), TimerFired())
    assert isinstance(end, End)
    assert end.outcome is Outcome.EXPIRED


# Overload


def test_estimated_work_does_not_press_while_the_speed_is_a_guess() -> None:
    pressure, period = Pressure(), Duration(100 * MILLISECOND)
    request, _ = a_request(a_guess(), percent=100)
    request.cost_ns, request.pressing = Duration(10 * SECOND), 5_000_000
    pressure.queued(request)

    assert pressure.measure(period, endpoints=1, kv=0, learning=True)[ALL] == 0
    assert pressure.measure(period, endpoints=1, kv=0)[ALL] > 0


def standings(policy: Policy) -> set[int]:
    tenants = (Tenant(TenantId("acme"), plan=Plan.STANDARD), Tenant(TenantId("bolt"), plan=Plan.STANDARD))
    scheduler = a_scheduler(policy=replace(policy, tenants=tenants))
    told(scheduler, at(0), arrived("runs"), arrived("r", prompt_bytes=PROMPT), arrived("b", "bolt"))
    told(scheduler, at(0), *(arrived(f"r{number}", prompt_bytes=PROMPT) for number in range(40)))
    return {each.standing for each in scheduler._state.requests.by_id.values()}


def test_no_tenant_is_over_its_share_by_a_guess() -> None:
    assert standings(a_guess()) == {1}
    assert 3 in standings(a_guess(ttft=4, assumed=False))


# The time per token


def record(policy: Policy, *, percent: int) -> EndpointRecord:
    return a_fleet(policy, percent=percent).endpoints[EndpointId("e1")]


def test_default_time_per_token_is_raised_to_what_a_slow_engine_can_keep() -> None:
    alone_ms = USUAL.decode_ps(1, kv_tokens=0) / 1e9

    assert record(a_guess(tpot_ms=100), percent=100).tpot_ns == 100 * MILLISECOND
    slow = record(a_guess(tpot_ms=100), percent=2_000).tpot_ns
    assert slow == pytest.approx(2 * 20 * alone_ms * MILLISECOND)


def test_configured_time_per_token_stays() -> None:
    assert record(a_guess(tpot_ms=100, assumed=False), percent=400).tpot_ns == 100 * MILLISECOND


def test_configured_time_per_token_bounds_a_default_that_gives_way() -> None:
    policy = a_guess(tpot_ms=100)
    firm = replace(a_class("firm", band=1), tpot_ns=Duration(150 * MILLISECOND))
    policy = replace(policy, classes=(*policy.classes, firm))

    assert record(policy, percent=2_000).tpot_ns == 150 * MILLISECOND


def test_without_any_time_per_token_there_is_no_bound() -> None:
    assert record(a_guess(), percent=2_000).tpot_ns is None


def test_leaving_endpoint_keeps_its_estimate_until_it_is_gone() -> None:
    scheduler = a_scheduler(policy=a_guess())
    stream(scheduler, "first", step_ms=30, reports=40 * REPORTS)
    estimate = scheduler_fleet(scheduler).speed(P[0])
    assert estimate.step_ps > 2 * USUAL.step_ps
    told(scheduler, at(200), EndpointLeaving(EndpointId("e1")))

    assert scheduler_fleet(scheduler).speed(P[0]) == estimate
