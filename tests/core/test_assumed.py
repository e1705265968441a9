"""Tests for default targets and assumed speeds, which must not reject requests that a slow engine can serve."""

from dataclasses import replace

import pytest

from headgate.core.commands import Dispatch, End
from headgate.core.counters import EndpointCounter
from headgate.core.estimate import estimate
from headgate.core.events import (
    AttemptProgress,
    AttemptsProgressed,
    EndpointJoined,
    EndpointLeaving,
    EndpointReady,
    PolicyChanged,
    TimerFired,
)
from headgate.core.prediction import Predictions
from headgate.core.pressure import SHEDDABILITY_MAX, Pressure
from headgate.core.request_state import Request
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.fleet import FleetState
from headgate.core.routing.pool_speed import PoolSpeed
from headgate.core.routing.speed_estimator import CONVERGED_EQUATIONS_MIN, REPORTS_PER_EQUATION, SpeedEstimator
from headgate.core.rules import Rules
from headgate.core.scheduler import Scheduler
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
    commands_for,
    duration,
    first_token,
)

PROMPT = 20_000
USUAL = EngineSpeed()
P = (PoolName("p"),)


def a_guess(*, ttft: float = 2.0, tpot_ms: int | None = None, assumed: bool = True) -> Policy:
    """Returns a policy with default targets for one class and an assumed speed for one pool."""
    tpot_ns = None if tpot_ms is None else Duration(tpot_ms * MILLISECOND)
    service_class = replace(
        a_class("interactive", queue_wait=30),
        ttft_ns=duration(ttft),
        tpot_ns=tpot_ns,
        ttft_assumed=assumed,
        tpot_assumed=assumed,
    )
    return a_policy(classes=(service_class,), pools=(Pool(PoolName("p"), speed_assumed=assumed),))


def settled(percent: int = 100, *, assumed: bool = True) -> SpeedEstimator:
    learned = SpeedEstimator(assumed=assumed)
    factor, weight = 10_000 * percent, 50 * 1_000_000
    learned.restore((factor, factor), (weight, 0, 0, weight * percent // 100, 0))
    return learned


def known_to_be(percent: int, *endpoints: str) -> tuple[EndpointCounter, ...]:
    return tuple(EndpointCounter(EndpointId(each), *settled(percent).counters(), 0) for each in endpoints)


def a_fleet(policy: Policy, *, percent: int | None, endpoints: tuple[str, ...] = ("e1",)) -> FleetState:
    fleet = FleetState(Rules(policy, ""))
    if percent is not None:
        fleet.restore(known_to_be(percent, *endpoints))
    for each in endpoints:
        fleet.join(an_endpoint(each), at(0))
        fleet.mark_ready(EndpointId(each), at(0))
    return fleet


# Pool speed


def test_pool_is_learning_until_half_of_its_endpoints_have_learned_their_speed() -> None:
    speed = PoolSpeed(USUAL, assumed=True)
    speed.update(SpeedEstimator(assumed=True))
    assert speed.is_learning(1)

    speed.update(settled())
    assert [speed.is_learning(endpoints) for endpoints in (1, 2, 3)] == [False, False, True]


def test_pool_resumes_learning_if_a_learned_speed_becomes_invalid() -> None:
    learned = settled()
    speed = PoolSpeed(USUAL, assumed=True)
    speed.update(learned)
    assert not speed.is_learning(1)

    learned.converged = False
    speed.update(learned)

    assert speed.is_learning(1)


def test_configured_speed_is_used_unchanged() -> None:
    speed = PoolSpeed(USUAL, assumed=False)
    speed.update(settled(400, assumed=False))

    assert (speed.estimate, speed.is_learning(8)) == (USUAL, False)


def test_estimate_is_scaled_by_the_harmonic_mean_of_learned_factors() -> None:
    speed = PoolSpeed(USUAL, assumed=True)
    quick, slow = settled(100), settled(300)
    speed.update(quick)
    speed.update(slow)
    assert speed.estimate == USUAL.scaled(decode_percent=150, prefill_percent=150)

    speed.forget(quick)
    assert speed.estimate == USUAL.scaled(decode_percent=300, prefill_percent=300)
    speed.forget(slow)
    assert speed.is_learning(1)


def test_small_factor_changes_do_not_change_the_estimate() -> None:
    speed, endpoint = PoolSpeed(USUAL, assumed=True), settled(200)
    speed.update(endpoint)
    before = speed.estimate
    endpoint.decode_percent = 201
    speed.update(endpoint)

    assert speed.estimate is before


def test_speed_configured_later_replaces_the_learned_speed() -> None:
    speed, given = PoolSpeed(USUAL, assumed=True), EngineSpeed(step_ps=1)
    speed.update(settled(200))
    speed.change(USUAL, assumed=True)
    assert speed.estimate == USUAL.scaled(decode_percent=200, prefill_percent=200)
    speed.change(given, assumed=False)
    assert (speed.estimate, speed.is_learning(9)) == (given, False)

    speed.change(USUAL, assumed=True)
    assert speed.estimate == USUAL.scaled(decode_percent=200, prefill_percent=200)


def test_fleet_uses_the_default_speed_for_unknown_pools() -> None:
    fleet = a_fleet(a_guess(), percent=300)

    assert fleet.speed(PoolName("p")) == USUAL.scaled(decode_percent=300, prefill_percent=300)
    assert fleet.speed(PoolName("other")) == USUAL
    assert not fleet.is_learning((PoolName("other"), *P))


def test_removed_endpoint_is_no_longer_included_in_the_pool_speed() -> None:
    fleet = a_fleet(a_guess(), percent=300)
    fleet.leave(EndpointId("e1"), at(1))
    fleet.join(an_endpoint("e2"), at(1))

    assert fleet.is_learning(P)


# Speeds saved across a restart


def test_converged_saved_speed_is_treated_as_learned() -> None:
    before = a_fleet(a_guess(), percent=300)
    after = FleetState(Rules(a_guess(), ""))
    after.restore_speeds(before.learned_speeds())
    after.join(an_endpoint("e1"), at(0))

    assert after.learned_speeds() == before.learned_speeds()
    assert not after.is_learning(P)
    assert after.speed(P[0]) == USUAL.scaled(decode_percent=300, prefill_percent=300)


def test_unconverged_saved_speed_is_treated_as_assumed() -> None:
    scheduler, after = a_scheduler(policy=a_guess()), a_scheduler_without_endpoints(a_guess())
    # Each measurement differs from the estimate by a factor of three, so the speed never converges.
    commands_for(scheduler, at(0), arrived("r"), first_token("r"))
    moment = 0.0
    for number in range(3 * CONVERGED_EQUATIONS_MIN * REPORTS_PER_EQUATION):
        moment += 3.0 if number // REPORTS_PER_EQUATION % 2 else 0.1
        commands_for(scheduler, at(moment), AttemptsProgressed((AttemptProgress(RequestId("r"), 1, 10),)))
    [kept] = scheduler.learned_speeds()
    assert not kept.converged

    after.restore_speeds((kept,))
    commands_for(after, at(0), EndpointJoined(an_endpoint("e1")), EndpointReady(EndpointId("e1")))

    [restored] = after.learned_speeds()
    assert (restored.converged, restored.factors) == (False, kept.factors)
    assert scheduler_fleet(after).is_learning(P)


# Rejections


def outcomes(scheduler: Scheduler, count: int) -> list[Outcome]:
    commands_for(scheduler, at(0), arrived("runs"))
    commands = commands_for(scheduler, at(0), *(arrived(f"r{number}", prompt_bytes=PROMPT) for number in range(count)))
    return [each.outcome for each in commands if isinstance(each, End)]


def test_no_request_is_rejected_because_of_an_assumed_speed() -> None:
    assert outcomes(a_scheduler(policy=a_guess()), 60) == []
    assert Outcome.DEADLINE_INFEASIBLE in outcomes(a_scheduler(policy=a_guess(assumed=False)), 60)


def stream(scheduler: Scheduler, name: str, *, step_ms: int, reports: int) -> None:
    """Runs one stream at this time per token, up to its last report. Each report covers ten tokens."""
    commands_for(scheduler, at(0), arrived(name), first_token(name))
    for number in range(1, reports + 1):
        moment = at(number * 10 * step_ms / 1_000)
        commands_for(scheduler, moment, AttemptsProgressed((AttemptProgress(RequestId(name), 1, 10),)))


def test_requests_are_rejected_once_the_speed_is_learned() -> None:
    scheduler = a_scheduler(policy=a_guess())
    stream(scheduler, "first", step_ms=10, reports=(CONVERGED_EQUATIONS_MIN + 3) * REPORTS_PER_EQUATION)
    moment = at((CONVERGED_EQUATIONS_MIN + 3) * REPORTS_PER_EQUATION * 0.1)
    commands = commands_for(scheduler, moment, *(arrived(f"r{number}", prompt_bytes=PROMPT) for number in range(60)))

    assert Outcome.DEADLINE_INFEASIBLE in [each.outcome for each in commands if isinstance(each, End)]


def scheduler_fleet(scheduler: Scheduler) -> FleetState:
    return scheduler._state.fleet


def test_default_target_is_not_enforced_while_the_speed_is_assumed() -> None:
    request, fleet = a_request(a_guess(), percent=None)

    assert (request.ttft_ns_min, request.target_infeasible) == (0, True)
    assert fleet.is_learning(P)


def test_default_target_is_not_enforced_if_no_engine_can_meet_it() -> None:
    fast, _ = a_request(a_guess(), percent=100)
    slow, _ = a_request(a_guess(), percent=4_000)
    configured, _ = a_request(a_guess(assumed=False), percent=400, ttft_s=0.1)

    assert (fast.target_infeasible, fast.overload_ttft_ns) == (False, 2 * SECOND)
    assert (slow.target_infeasible, slow.overload_ttft_ns) == (True, 30 * SECOND)
    assert configured.ttft_ns_min > duration(0.1)
    assert not configured.target_infeasible


def a_request(policy: Policy, *, percent: int | None, ttft_s: float | None = None) -> tuple[Request, FleetState]:
    if ttft_s is not None:
        policy = replace(policy, classes=(replace(policy.classes[0], ttft_ns=duration(ttft_s)),))
    fleet = a_fleet(policy, percent=percent)
    request = Request(arrived("r", prompt_bytes=PROMPT).ticket, policy.classes[0], P, sequence=1, now=at(0))
    estimate(request, Predictions(), fleet, Rules(policy, ""))
    return request, fleet


def test_non_streaming_request_in_a_configured_class_has_no_time_to_first_token() -> None:
    policy = a_guess(assumed=False)
    request = Request(arrived("r", stream=False).ticket, policy.classes[0], P, sequence=1, now=at(0))
    estimate(request, Predictions(), a_fleet(policy, percent=None), Rules(policy, ""))

    assert request.ttft_ns_min == 0


@pytest.mark.parametrize(("percent", "expires_s"), [(None, 30), (4_000, 30)])
def test_request_for_a_slow_engine_waits_up_to_the_queue_timeout(percent: int | None, expires_s: int) -> None:
    scheduler = Scheduler()
    commands_for(scheduler, at(0), PolicyChanged(a_guess(), "x"))
    fleet = scheduler_fleet(scheduler)
    if percent is not None:
        fleet.restore(known_to_be(percent, "e1"))
    commands_for(scheduler, at(0), EndpointJoined(an_endpoint("e1", places=1)), EndpointReady(EndpointId("e1")))
    commands = commands_for(scheduler, at(0), arrived("runs"), arrived("waits", prompt_bytes=PROMPT))
    assert [each.request_id for each in commands if isinstance(each, Dispatch)] == ["runs"]

    assert commands_for(scheduler, at(expires_s - 0.1), TimerFired()) == []
    [end] = commands_for(scheduler, at(expires_s), TimerFired())
    assert isinstance(end, End)
    assert end.outcome is Outcome.QUEUE_TIMEOUT


# Overload


def test_estimated_work_adds_no_pressure_while_the_speed_is_assumed() -> None:
    pressure, period = Pressure(), Duration(100 * MILLISECOND)
    request, _ = a_request(a_guess(), percent=100)
    request.cost_ns, request.added_pressure = Duration(10 * SECOND), 5_000_000
    pressure.enqueued(request)

    assert pressure.measure(period, endpoints=1, kv=0, learning=True)[SHEDDABILITY_MAX] == 0
    assert pressure.measure(period, endpoints=1, kv=0)[SHEDDABILITY_MAX] > 0


def standings(policy: Policy) -> set[int]:
    tenants = (Tenant(TenantId("acme"), plan=Plan.STANDARD), Tenant(TenantId("bolt"), plan=Plan.STANDARD))
    scheduler = a_scheduler(policy=replace(policy, tenants=tenants))
    commands_for(scheduler, at(0), arrived("runs"), arrived("r", prompt_bytes=PROMPT), arrived("b", "bolt"))
    commands_for(scheduler, at(0), *(arrived(f"r{number}", prompt_bytes=PROMPT) for number in range(40)))
    return {each.sheddability for each in scheduler._state.requests.by_id.values()}


def test_no_tenant_exceeds_its_share_because_of_an_assumed_speed() -> None:
    assert standings(a_guess()) == {1}
    assert 3 in standings(a_guess(ttft=4, assumed=False))


# Time per token


def record(policy: Policy, *, percent: int) -> EndpointRecord:
    return a_fleet(policy, percent=percent).endpoints[EndpointId("e1")]


def test_default_time_per_token_target_is_raised_to_one_a_slow_engine_can_meet() -> None:
    alone_ms = USUAL.decode_ps(1, kv_tokens=0) / 1e9

    assert record(a_guess(tpot_ms=100), percent=100).tpot_ns == 100 * MILLISECOND
    slow = record(a_guess(tpot_ms=100), percent=2_000).tpot_ns
    assert slow == pytest.approx(2 * 20 * alone_ms * MILLISECOND)


def test_configured_time_per_token_target_is_not_raised() -> None:
    assert record(a_guess(tpot_ms=100, assumed=False), percent=400).tpot_ns == 100 * MILLISECOND


def test_configured_time_per_token_target_limits_a_raised_default() -> None:
    policy = a_guess(tpot_ms=100)
    firm = replace(a_class("firm", band=1), tpot_ns=Duration(150 * MILLISECOND))
    policy = replace(policy, classes=(*policy.classes, firm))

    assert record(policy, percent=2_000).tpot_ns == 150 * MILLISECOND


def test_endpoint_without_a_time_per_token_target_has_no_limit() -> None:
    assert record(a_guess(), percent=2_000).tpot_ns is None


def test_leaving_endpoint_keeps_its_estimate_until_it_is_removed() -> None:
    scheduler = a_scheduler(policy=a_guess())
    stream(scheduler, "first", step_ms=30, reports=40 * REPORTS_PER_EQUATION)
    estimate = scheduler_fleet(scheduler).speed(P[0])
    assert estimate.step_ps > 2 * USUAL.step_ps
    commands_for(scheduler, at(200), EndpointLeaving(EndpointId("e1")))

    assert scheduler_fleet(scheduler).speed(P[0]) == estimate
