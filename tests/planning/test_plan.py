"""Tests for capacity plans of small scenarios, by simulation."""

import json
import re
from dataclasses import replace
from datetime import date

import pytest

from headgate.compose.planning import PlanOptions
from headgate.compose.simulation import build_scenario
from headgate.config.load import parse
from headgate.model.money import NANO_USD_PER_USD
from headgate.model.units import SECOND, ClassName, Duration, EndpointId, Instant, PoolName
from headgate.planning.cases import Outage, PlanVerdict, simulate, sized
from headgate.planning.plan import CapacityPlan, requests_per_day
from headgate.planning.plan_page import render_plan_page
from headgate.planning.plan_report import plan_json, render_plan
from headgate.planning.search import NoPlan
from headgate.planning.suggestion import alert_rules, in_flight_alert, suggested_configuration
from headgate.simulation.workload.error import WorkloadError
from headgate.telemetry.catalogue import BY_NAME
from tests.planning.builders import CHAT, QUICK, plan_of, settings_of

MAIN, CLOUD, INTERACTIVE = PoolName("main"), PoolName("cloud"), ClassName("interactive")
TIGHT = replace(QUICK, headroom=0.0)


@pytest.fixture(scope="module")
def plan() -> CapacityPlan:
    return plan_of(options=TIGHT)


def test_same_scenario_and_seeds_give_the_same_plan(plan: CapacityPlan) -> None:
    again = plan_of(options=TIGHT)

    assert json.dumps(plan_json(again)) == json.dumps(plan_json(plan))
    assert render_plan(again, 99) == render_plan(plan, 99)
    assert render_plan_page(again) == render_plan_page(plan)


def test_planned_fleet_holds_the_objectives_and_one_endpoint_fewer_misses_them(plan: CapacityPlan) -> None:
    [(pool, count)] = plan.endpoints
    [lost] = [each for each in plan.what_if if "loses" in each.name]

    assert (pool, count > 1) == (MAIN, True)
    assert plan.attainment[INTERACTIVE] >= 0.97
    assert dict(lost.endpoints) == {MAIN: count - 1}
    assert lost.verdict is not PlanVerdict.HELD


def test_more_traffic_never_needs_fewer_endpoints(plan: CapacityPlan) -> None:
    counts = [dict(each.endpoints)[MAIN] for each in plan.curve]

    assert [each.traffic for each in plan.curve] == [0.5, 1.0, 2.0]
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_headroom_needs_at_least_as_many_endpoints(plan: CapacityPlan) -> None:
    spacious = plan_of(headroom=0.5, multipliers=(1.0,))

    assert spacious.endpoints >= plan.endpoints == plan.endpoints_without_headroom
    assert spacious.endpoints_without_headroom == plan.endpoints


def test_prices_add_up_exactly(plan: CapacityPlan) -> None:
    [pool], count = plan.cost.pools, dict(plan.endpoints)[MAIN]

    assert pool.hourly == pool.total == plan.cost.total == count * 24 * 5 * NANO_USD_PER_USD // 4
    assert plan.cost.requests == requests_per_day(plan.given.workload)
    assert plan.cost.per_request == round(plan.cost.total / plan.cost.requests)
    assert plan.cost.per_1m_tokens == round(1_000_000 * plan.cost.total / plan.cost.tokens)


def test_next_step_lies_between_the_fleets_of_the_curve(plan: CapacityPlan) -> None:
    same = [each.traffic for each in plan.curve if each.endpoints == plan.endpoints]

    assert plan.next_step is not None
    assert max(same) <= plan.next_step < 2.0
    assert plan.next_step_date is None


def test_growth_gives_the_next_step_a_date(plan: CapacityPlan) -> None:
    growing = replace(plan, next_step=1.21, given=replace(plan.given, growth_per_month=0.1))

    assert growing.next_step_days == pytest.approx(2 * 30.4375)
    assert growing.next_step_date == date(2026, 3, 2)
    assert replace(growing, next_step=None).next_step_date is None


@pytest.mark.parametrize("growth", [1e-4, 1e-9, 1e-300])
def test_step_in_more_than_a_century_has_no_date(plan: CapacityPlan, growth: float) -> None:
    growing = replace(plan, next_step=1.5, given=replace(plan.given, growth_per_month=growth))

    assert (growing.next_step_days, growing.next_step_date) == (None, None)
    assert "next step: above 1.50 times" in render_plan(growing, 200)
    assert "growth per month" not in render_plan(growing, 200)


def test_littles_law_agrees_with_the_simulation(plan: CapacityPlan) -> None:
    law = plan.littles_law

    assert law.concurrency == pytest.approx(law.rate_per_s * law.engine_s_mean)
    assert law.concurrency == pytest.approx(law.simulated_concurrency, rel=0.3)
    assert law.kv_tokens == pytest.approx(law.simulated_kv_tokens, rel=0.4)
    assert law.simulated_kv_tokens_p95 <= law.kv_tokens_available


def test_outage_costs_good_requests(plan: CapacityPlan) -> None:
    [replaced] = [each for each in plan.what_if if "replaced in 120 s" in each.name]

    assert replaced.attainment[INTERACTIVE] < plan.attainment[INTERACTIVE]


def test_short_workload_is_not_compared_with_autoscaling(plan: CapacityPlan) -> None:
    assert plan.autoscaled is None
    assert plan_json(plan)["autoscaled"] is None


def test_long_workload_is_compared_with_autoscaling() -> None:
    quiet = "  - {rate: 0.2, classes: interactive, prompt: 100, output: 20}\n"
    burst = "  - {rate: 12, shift: 5m, duration: 1m, classes"
    text = CHAT.replace("duration: 30s", "duration: 15m").replace("  - {rate: 12, classes", quiet + burst)
    scaled = plan_of(text, multipliers=(1.0,), seeds=(0,)).autoscaled

    assert scaled is not None
    assert scaled.endpoints_mean >= 1
    assert scaled.cost_per_day < scaled.fixed_cost_per_day


def test_size_of_a_provider_is_not_planned() -> None:
    text = CHAT.replace(
        "callers:",
        "  cloud:\n    engine: provider\n    engines: [tiny]\n    in_flight_max: 2\n"
        "    prices: {input_per_1m_tokens: 1, output_per_1m_tokens: 2}\n"
        "models: {m: {pools: [main], overflow: {pools: [cloud], after: 100ms}}}\ncallers:",
    )
    plan = plan_of(text, options=TIGHT, multipliers=(1.0,), seeds=(0,))
    own, provider = plan.cost.pools

    assert [pool for pool, _ in plan.endpoints] == [MAIN]
    assert (own.tokens, provider.hourly) == (0, 0)
    assert plan.cost.total == own.hourly + provider.tokens
    assert provider.tokens > 0
    assert plan.littles_law.concurrency == pytest.approx(plan.littles_law.simulated_concurrency, rel=0.1)


DAY_AND_NIGHT = """
title: Two peaks
pools:
  a: {engines: [tiny], in_flight_max: 2, prices: {per_hour: 1}}
  b: {engines: [tiny], in_flight_max: 2, prices: {per_hour: 1}}
classes: {day: {priority_band: 0, pools: [a]}, night: {priority_band: 0, pools: [b]}}
callers:
  day: {ttft: 1s, client_timeout: 5s}
  night: {ttft: 1s, client_timeout: 5s}
objectives: {day: 95%, night: 95%}
duration: 40s
traffic:
  - {rate: 1, classes: day, prompt: 500, output: 300, spikes: [{at: 4s, duration: 8s, factor: 12}]}
  - {rate: 1, classes: night, prompt: 500, output: 300, spikes: [{at: 28s, duration: 8s, factor: 10}]}
"""


def test_pools_with_different_peaks_hold_in_both() -> None:
    window_ns = Duration(8 * SECOND)
    plan = plan_of(DAY_AND_NIGHT, multipliers=(1.0,), seeds=(0,), window_ns=window_ns, cold_starts_ns=(SECOND,))
    counts = dict(plan.endpoints)
    scenario = build_scenario(settings_of(DAY_AND_NIGHT), 0)
    complete = simulate(replace(scenario, engines=sized(scenario.engines, plan.endpoints)))

    assert plan.given.workload.start < 12 * SECOND
    assert any(20 * SECOND < each < 36 * SECOND for each in plan.given.pool_window_starts)
    assert counts[PoolName("b")] > 1
    assert all(each.attainment >= 0.95 for each in complete.classes.values())
    assert "and to the busiest window of other pools, from " in render_plan(plan, 300)


def test_plan_without_prices_has_no_cost() -> None:
    plan = plan_of(CHAT.replace(", prices: {per_hour: 1.25}", ""), multipliers=(1.0,), seeds=(0,))

    assert plan_json(plan)["cost"] is None
    assert "cost unknown" in render_plan(plan, 99)
    assert "dollars per day" not in render_plan_page(plan)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (CHAT.replace("objectives: {interactive: 97%}\n", ""), "the scenario has no objectives"),
        (CHAT.replace("in_flight_max: 2", "in_flight_max: 2, engine: provider"), "so there is nothing to plan"),
    ],
)
def test_scenario_that_cannot_be_planned_is_reported(text: str, problem: str) -> None:
    with pytest.raises(WorkloadError, match=problem):
        plan_of(text)


def test_target_that_no_fleet_meets_is_reported() -> None:
    with pytest.raises(NoPlan, match=r"with 4 endpoints per pool, .* of class interactive are good"):
        plan_of(CHAT.replace("ttft: 1s", "ttft: 1ms"), endpoints_max=4)


def test_suggested_configuration_is_valid(plan: CapacityPlan) -> None:
    engines = "  main:\n    engine: vllm\n    endpoints: ['http://127.0.0.1:8001']\n"
    models = "models: {m: {pools: [main]}}\nlisten: 127.0.0.1:8080\n"
    text = suggested_configuration(plan).replace("  main:\n", engines) + models
    settings = parse(text, "headgate.yaml", {}, engines=("vllm",), profiles={})

    assert settings.objectives[INTERACTIVE].ttft_ppm == 970_000
    assert [each.prices[0].per_hour for each in settings.policy.pools] == [5 * NANO_USD_PER_USD // 4]


def test_alert_rules_use_metrics_that_exist(plan: CapacityPlan) -> None:
    named = set(re.findall(r"headgate_\w+", alert_rules(plan)))

    assert named == {"headgate_requests_total", "headgate_attempts_in_flight"} & set(BY_NAME)
    assert in_flight_alert(plan, MAIN) == plan.in_flight_p95[MAIN]


def test_traffic_alert_compares_means_of_fifteen_minutes(plan: CapacityPlan) -> None:
    workload = replace(plan.given.workload, highest_mean_per_s=8.0, classes=(ClassName("batch"), INTERACTIVE))
    stepped = replace(plan, next_step=1.25, given=replace(plan.given, workload=workload))
    requests = 'headgate_requests_total{class=~"batch|interactive"}[15m]'

    assert f"expr: sum(rate({requests})) > 10\n" in alert_rules(stepped)
    assert plan.given.workload.highest_mean_per_s == pytest.approx(plan.given.workload.arrivals / 30)


def test_window_is_long_enough_by_default() -> None:
    plan = plan_of(CHAT.replace("rate: 12", "rate: 2"), PlanOptions(multipliers=(1.0,), seeds=(0,)))

    assert plan.given.workload.window_ns == 30 * SECOND


def test_report_says_that_the_window_is_shortened(plan: CapacityPlan) -> None:
    assert "shortened to the busiest 20 s of 30 s" in render_plan(plan, 200)


@pytest.mark.process
def test_number_of_processes_does_not_change_the_plan() -> None:
    options = replace(TIGHT, multipliers=(1.0,), window_ns=Duration(10 * SECOND))

    assert plan_json(plan_of(options=options, processes=2)) == plan_json(plan_of(options=options))


def test_window_of_an_outage_covers_the_replacement() -> None:
    options = replace(TIGHT, window_ns=Duration(10 * SECOND), cold_starts_ns=(Duration(8 * SECOND),))
    plan = plan_of(options=options, multipliers=(1.0,), seeds=(0,))
    [replaced] = [each for each in plan.what_if if "replaced in 8 s" in each.name]

    assert replaced.window_ns == (10 + 12) * SECOND
    assert replaced.outage == Outage(
        (EndpointId("main/0"),), Instant(5 * SECOND), Duration(8 * SECOND), Duration(22 * SECOND)
    )
    assert "an endpoint that is replaced crashes after 5 s, with all its requests; 22 s are simulated\n" in render_plan(
        plan, 200
    )
    assert "the workload ends" not in render_plan(plan, 200)


def test_workload_that_ends_before_the_replacement_is_reported(plan: CapacityPlan) -> None:
    [replaced] = [each for each in plan.what_if if each.outage is not None]

    assert replaced.window_ns == plan.given.workload.span_ns == 30 * SECOND
    assert "the workload ends 20 s after the crash, so the full effect may be greater" in render_plan(plan, 200)
