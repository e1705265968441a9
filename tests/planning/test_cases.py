"""Tests for the busiest window, the size of the fleet and the result of a case."""

from dataclasses import replace

import pytest

from headgate.compose.simulation import build_scenario
from headgate.model.engine_profile import TINY
from headgate.model.speed import EngineSpeed
from headgate.model.units import SECOND, ClassName, Duration, EndpointId, Instant, PoolName, TenantId
from headgate.planning.cases import ClassResult, PlanVerdict, examine, only_window, simulate, sized, worst_result
from headgate.simulation.options import EngineSpec, RequestErrors
from headgate.simulation.workload.arrival import Arrival
from tests.planning.builders import CHAT, a_result, settings_of

MAIN = PoolName("main")
INTERACTIVE = ClassName("interactive")
SPEED = EngineSpeed()


def arrival(at_s: float, prompt: int = 100) -> Arrival:
    return Arrival(Instant(round(at_s * SECOND)), prompt, 10, INTERACTIVE, TenantId("a"))


def engine(number: int, **fields: object) -> EngineSpec:
    spec = EngineSpec(id=EndpointId(f"main/{number}"), pool=MAIN, profile=TINY, in_flight_max=8)
    return replace(spec, **fields)  # type: ignore[arg-type]


def test_busiest_window_has_the_most_work_not_the_most_requests() -> None:
    short = [arrival(number / 10, prompt=1) for number in range(100)]
    long = [arrival(60 + number, prompt=5_000) for number in range(8)]
    found = examine([*short, *long], SPEED, span_ns=Duration(100 * SECOND), window_ns=Duration(8 * SECOND))

    assert found.start == 60 * SECOND
    assert (found.arrivals, found.peak_arrivals) == (108, 8)
    assert found.is_shortened


def test_window_is_at_most_the_workload() -> None:
    found = examine([arrival(1), arrival(9)], SPEED, span_ns=Duration(10 * SECOND), window_ns=Duration(99 * SECOND))

    assert (found.start, found.window_ns, found.peak_arrivals, found.is_shortened) == (0, 10 * SECOND, 2, False)


def test_highest_mean_covers_fifteen_minutes() -> None:
    steady = [arrival(10 * number) for number in range(360)]
    burst = [arrival(1_800 + number / 100) for number in range(900)]
    both = sorted((*steady, *burst), key=lambda each: each.at)
    found = examine(both, SPEED, span_ns=Duration(3_600 * SECOND), window_ns=Duration(45 * SECOND))

    assert found.highest_mean_per_s == pytest.approx((90 + 900) / 900)
    assert found.classes == (INTERACTIVE,)


def test_highest_mean_of_a_short_workload_is_its_mean() -> None:
    found = examine([arrival(1), arrival(2)], SPEED, span_ns=Duration(10 * SECOND), window_ns=Duration(1 * SECOND))

    assert found.highest_mean_per_s == 0.2


def test_window_of_a_scenario_starts_at_zero() -> None:
    scenario = build_scenario(settings_of(), 0)
    window = only_window(scenario, start=Instant(10 * SECOND), window_ns=Duration(5 * SECOND))
    inside = [each for each in scenario.arrivals() if 10 * SECOND <= each.at < 15 * SECOND]

    assert window.span_ns == 5 * SECOND
    assert [each.at + 10 * SECOND for each in window.arrivals()] == [each.at for each in inside]


def test_fleet_of_another_size_repeats_the_last_engine() -> None:
    large = replace(TINY, kv_blocks=2 * TINY.kv_blocks)
    listed = (engine(0), engine(1, profile=large, cold_start_ns=Duration(9)), engine(2, standby=True))
    more, fewer = sized(listed, ((MAIN, 4),)), sized(listed, ((MAIN, 1),))

    assert [each.id for each in more] == ["main/0", "main/1", "main/2", "main/3"]
    assert [each.profile for each in more] == [TINY, large, large, large]
    assert not any(each.cold_start_ns or each.standby for each in more)
    assert [each.id for each in fewer] == ["main/0"]


def test_pools_that_are_not_planned_keep_their_engines() -> None:
    assert sized((engine(0), engine(1)), ()) == (engine(0), engine(1))


@pytest.mark.parametrize(("good", "waiting", "holds"), [(95, 5, True), (94, 0, False), (100, 6, False), (100, 0, True)])
def test_class_holds_its_objective_unless_its_queue_grows(good: int, waiting: int, holds: bool) -> None:
    assert ClassResult(100, good, waiting).holds(0.95) is holds


def test_only_classes_with_an_objective_count() -> None:
    result = a_result({MAIN: 1}, good=10)

    assert result.holds({ClassName("batch"): 0.99})
    assert not result.holds({INTERACTIVE: 0.99})


@pytest.mark.parametrize(
    ("good", "waiting", "verdict"),
    [(100, 0, PlanVerdict.HELD), (100, 9, PlanVerdict.QUEUE_GROWS), (10, 9, PlanVerdict.MISSED)],
)
def test_verdict_says_whether_a_queue_grows(good: int, waiting: int, verdict: PlanVerdict) -> None:
    assert a_result({MAIN: 1}, good=good, waiting=waiting).verdict({INTERACTIVE: 0.9}) is verdict


def test_worst_result_has_the_lowest_attainment_and_the_longest_queue() -> None:
    slow, waiting = a_result({MAIN: 1}, good=80), a_result({MAIN: 1}, good=90, waiting=7)
    quiet = replace(slow, classes={INTERACTIVE: ClassResult(0, 0, 0)})

    assert worst_result([quiet, waiting, slow]).classes == {INTERACTIVE: ClassResult(100, 80, 7)}
    assert worst_result([quiet, quiet]).classes == quiet.classes
    assert worst_result([slow]) is slow


def test_case_reports_the_load_of_a_pool() -> None:
    scenario = build_scenario(settings_of(), 0)
    result = simulate(replace(scenario, engines=sized(scenario.engines, ((MAIN, 4),))))
    pool = result.pools[MAIN]

    assert result.arrivals == pool.attempts.count == sum(1 for _ in scenario.arrivals())
    assert 0 < pool.in_flight_mean <= pool.in_flight_p95
    assert 0 < pool.kv_tokens_mean <= pool.kv_tokens_p95 <= 4 * pool.kv_tokens_each
    assert pool.paid_ns == 4 * result.elapsed_ns
    assert pool.attempts.engine_ns / result.window_ns == pytest.approx(pool.in_flight_mean, rel=0.35)


def test_engine_time_excludes_the_backoff_between_tries() -> None:
    quiet = CHAT.replace("duration: 30s", "duration: 10s").replace("rate: 12", "rate: 1")
    scenario = build_scenario(settings_of(quiet.replace("client_timeout: 5s", "client_timeout: 60s, retries: 9")), 0)
    errors = RequestErrors(EndpointId("main/0"), Instant(0), Duration(5 * SECOND), percent=100)
    usual = simulate(scenario).pools[MAIN].attempts
    retried = simulate(replace(scenario, faults=(errors,))).pools[MAIN].attempts

    assert retried.count == usual.count
    assert retried.engine_ns == pytest.approx(usual.engine_ns, rel=0.1)
