"""Tests for the comparison of a plan with other fleets."""

from dataclasses import replace

import pytest

from headgate.config.problems import ConfigErrors
from headgate.model.money import NANO_USD_PER_USD
from headgate.model.units import SECOND, Duration, PoolName
from headgate.planning.plan import CapacityPlan
from headgate.planning.plan_report import plan_json, render_plan
from tests.planning.builders import CHAT, QUICK, plan_of, settings_of

MAIN, LONG = PoolName("main"), PoolName("main-long")
ALTERNATIVES = """
alternatives:
  more slots: {pools: {main: {engines: [tiny], in_flight_max: 4, prices: {per_hour: 2}}}}
  too slow: {pools: {main: {engines: [h100x8-llama-70b], in_flight_max: 4, prices: {per_hour: 24}}}}
"""
ZONED = CHAT.replace("per_hour: 1.25}", "per_hour: 1.25}, zones: [a, b]")


@pytest.fixture(scope="module")
def plan() -> CapacityPlan:
    text = (ZONED + ALTERNATIVES).replace("ttft: 1s", "ttft: 1s, tpot: 20ms")
    window = Duration(10 * SECOND)
    return plan_of(text, multipliers=(1.0,), seeds=(0,), alternatives=True, endpoints_max=8, window_ns=window)


def test_alternative_with_more_slots_needs_fewer_endpoints(plan: CapacityPlan) -> None:
    more, *_ = plan.alternatives

    assert more.name == "more slots"
    assert more.endpoints is not None
    assert more.endpoints < plan.endpoints
    assert more.cost is not None
    assert more.cost.total == more.endpoints[0][1] * 48 * NANO_USD_PER_USD


def test_alternative_that_cannot_hold_the_objectives_is_explained(plan: CapacityPlan) -> None:
    [slow] = [each for each in plan.alternatives if each.name == "too slow"]

    assert (slow.endpoints, slow.cost) == (None, None)
    assert "too slow: no plan: with 8 endpoints per pool" in render_plan(plan, 300)


CLOUD = """
alternatives:
  cloud:
    pools:
      cloud: {engine: provider, engines: [ENGINES], in_flight_max: 8, prices: PRICES}
    models: {m: {pools: [cloud]}}
""".replace("PRICES", "{input_per_1m_tokens: 1, output_per_1m_tokens: 2}")


@pytest.mark.parametrize(("engines", "holds"), [("tiny, tiny, tiny, tiny", True), ("tiny", False)])
def test_alternative_with_only_a_provider_has_its_bills(engines: str, holds: bool) -> None:
    options = replace(QUICK, multipliers=(1.0,), seeds=(0,), alternatives=True, window_ns=Duration(5 * SECOND))
    text = CHAT.replace("rate: 12", "rate: 12" if holds else "rate: 40")
    plan = plan_of(text + CLOUD.replace("ENGINES", engines), options)
    cloud = next(each for each in plan.alternatives if each.name == "cloud")
    report = render_plan(plan, 300)

    assert (cloud.endpoints is not None) is holds
    if holds:
        assert cloud.endpoints == ()
        assert cloud.cost is not None
        assert cloud.cost.total == sum(each.tokens for each in cloud.cost.pools) > 0
        assert "none of its own" in report
    else:
        assert "cloud: no plan: with the providers' pools, " in report


def test_pool_is_split_by_prompt_length(plan: CapacityPlan) -> None:
    splits = [each for each in plan.alternatives if each.name.startswith("pool for prompts above")]

    assert len(splits) == 3
    assert all(each.endpoints is not None and [pool for pool, _ in each.endpoints] == [MAIN, LONG] for each in splits)


def test_loss_of_a_zone_takes_its_endpoints(plan: CapacityPlan) -> None:
    count = dict(plan.endpoints)[MAIN]
    lost = [each for each in plan.what_if if each.outage is None and each.name.startswith("zone")]
    crashed = [each for each in plan.what_if if each.outage is not None and each.name.startswith("zone")]

    assert [dict(each.endpoints)[MAIN] for each in lost] == sorted({count - -(-count // 2), count - count // 2})
    assert len(crashed) == len(lost)
    assert plan.zone_reserve is not None
    assert dict(plan.zone_reserve.endpoints)[MAIN] == 2 * dict(plan.endpoints_without_headroom)[MAIN]


def test_report_and_json_have_the_alternatives(plan: CapacityPlan) -> None:
    text, found = render_plan(plan, 200), plan_json(plan)

    assert "twice the traffic: " in text
    assert "compared with the plan" in text
    assert [each["name"] for each in found["alternatives"]] == [each.name for each in plan.alternatives]  # type: ignore[attr-defined]


def test_plan_survives_the_loss_of_all_engines() -> None:
    text = ZONED.replace("[a, b]", "[a]")
    plan = plan_of(text, multipliers=(1.0,), seeds=(0,), window_ns=Duration(5 * SECOND))
    [lost] = [each for each in plan.what_if if "is lost" in each.name]

    assert lost.attainment == {"interactive": 0.0}
    assert plan.zone_reserve is None
    assert "no number of endpoints in main survives the loss of zone a" in render_plan(plan, 200)


def test_each_cold_start_is_simulated() -> None:
    starts = (Duration(2 * SECOND), Duration(20 * SECOND))
    plan = plan_of(multipliers=(1.0,), seeds=(0,), window_ns=Duration(5 * SECOND), cold_starts_ns=starts)
    short, long = [each for each in plan.what_if if each.outage is not None]

    assert (short.name, long.name) == tuple(f"an endpoint of main is replaced in {each} s" for each in (2, 20))
    assert [round(each.window_ns / SECOND) for each in (short, long)] == [8, 30]


@pytest.mark.parametrize(
    ("alternative", "problem"),
    [
        ("{}", "alternatives.other.pools: missing"),
        ("{pools: {main: {engines: [tinny], in_flight_max: 2}}}", 'profile "tinny" does not exist'),
        ("{pools: {main: {engines: [tiny]}}}", "alternatives.other.pools.main.in_flight_max: missing"),
        ("{pools: {a: {engines: [tiny], in_flight_max: 2}}, classes: {batch: {}}}", "callers.interactive: class"),
    ],
)
def test_problems_of_an_alternative_are_reported_with_its_name(alternative: str, problem: str) -> None:
    with pytest.raises(ConfigErrors, match="other") as failed:
        settings_of(f"{CHAT}\nalternatives:\n  other: {alternative}\n")

    assert problem in str(failed.value)


def test_zone_that_is_named_twice_is_reported() -> None:
    with pytest.raises(ConfigErrors, match=r"pools\.main\.zones: names a zone twice"):
        settings_of(ZONED.replace("[a, b]", "[a, b, a]"))


def test_alternative_has_the_traffic_of_the_scenario() -> None:
    settings = settings_of(CHAT + ALTERNATIVES)
    [(name, more), _] = settings.alternatives

    assert (name, more.traffic, more.objectives) == ("more slots", settings.traffic, settings.objectives)
    assert [each.in_flight_max for each in more.engines] == [4]
