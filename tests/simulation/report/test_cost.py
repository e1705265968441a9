"""Tests for the cost of a run."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.model.engine_profile import TINY
from headgate.model.money import NANO_USD_PER_USD, NanoUsd, Price
from headgate.model.policy import Overflow, Pool
from headgate.model.units import MINUTE, Duration, EndpointId, PoolName
from headgate.simulation.options import EngineSpec
from headgate.simulation.report.cost import RunCost, cost_per
from headgate.simulation.report.html_report import render_html
from headgate.simulation.report.json_report import json_report
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.report.text_report import render_text
from headgate.simulation.report.text_table import format_usd
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.run_observer import EngineTotals
from headgate.simulation.virtual.scenario import Scenario
from tests.simulation.virtual.scenes import POOL, a_scenario, arrival, at, engine, seconds

CLOUD = PoolName("cloud")
HOURLY = Price(per_hour=NanoUsd(3 * NANO_USD_PER_USD))
PER_TOKEN = Price(input_per_1m_tokens=NanoUsd(NANO_USD_PER_USD), output_per_1m_tokens=NanoUsd(4 * NANO_USD_PER_USD))


def priced(scenario: Scenario, **prices: Price) -> Scenario:
    pools = tuple(
        replace(each, prices=(prices[each.name],)) if each.name in prices else each for each in scenario.policy.pools
    )
    return replace(scenario, policy=replace(scenario.policy, pools=pools))


def report_of(scenario: Scenario) -> SimulationReport:
    report = SimulationReport(scenario)
    VirtualHost(scenario, report).run()
    return report


def figures(scenario: Scenario) -> Any:
    return json_report(report_of(scenario))


def two_engines() -> Scenario:
    return a_scenario([arrival(number / 4) for number in range(40)], engines=(engine(0), engine(1, starts_at=at(4))))


def totals(pool: PoolName, paid_ns: int) -> EngineTotals:
    return EngineTotals(EndpointId(f"{pool}/0"), pool, "tiny", paid_ns, paid_ns, 0, 0, 0, 0, 0, 0, 0)


def test_report_without_prices_has_no_cost() -> None:
    report = report_of(two_engines())

    assert json_report(report)["cost"] is None
    assert "Cost" not in render_text(report, 100)


def test_engine_costs_money_from_its_start_to_the_end_of_the_run() -> None:
    told = figures(priced(two_engines(), main=HOURLY))
    paid_s = 2 * told["elapsed_s"] - 4

    assert [each["paid_s"] for each in told["engines"]] == [told["elapsed_s"], pytest.approx(told["elapsed_s"] - 4)]
    assert told["cost"]["engine_hours"] == pytest.approx(paid_s / 3600, abs=1e-6)
    assert told["cost"]["nano_usd"] == pytest.approx(3e9 * paid_s / 3600, rel=1e-6)


def test_cold_start_is_paid() -> None:
    cold = replace(two_engines(), engines=(engine(0), engine(1, cold_start_ns=seconds(9))))

    assert [each["paid_s"] - each["up_s"] for each in figures(priced(cold, main=HOURLY))["engines"]] == [0, 9]


def test_bills_of_classes_and_tenants_add_up_to_the_billed_cost() -> None:
    told = figures(priced(two_engines(), main=HOURLY))
    cost = told["cost"]

    assert cost["billed_nano_usd"] > 0
    assert cost["billed_nano_usd"] + cost["unbilled_nano_usd"] == cost["nano_usd"]
    for groups in (told["classes"], told["tenants"]):
        assert sum(each["billed_nano_usd"] for each in groups.values()) == cost["billed_nano_usd"]
    assert cost["per_request_nano_usd"] == round(cost["nano_usd"] / 40)
    assert cost["tokens_served"] == 40 * 110


def test_provider_costs_its_tokens() -> None:
    scene = two_engines()
    cloud = EngineSpec(id=EndpointId("cloud/0"), pool=CLOUD, profile=TINY, in_flight_max=8)
    model = replace(scene.policy.models[0], pools=(CLOUD,))
    policy = replace(scene.policy, pools=(Pool(POOL), Pool(CLOUD, hosted=True)), models=(model,))
    told = figures(priced(replace(scene, policy=policy, engines=(engine(0), cloud)), main=HOURLY, cloud=PER_TOKEN))
    pools = told["cost"]["pools"]

    # 40 requests with 100 prompt tokens at one dollar and 10 output tokens at four dollars per million.
    assert pools["cloud"] == {
        "nano_usd": 40 * 140_000,
        "billed_nano_usd": 40 * 140_000,
        "unbilled_nano_usd": 0,
        "engine_hours": 0,
    }
    assert pools["main"]["billed_nano_usd"] == 0
    assert told["cost"]["nano_usd"] == sum(each["nano_usd"] for each in pools.values())


def test_requests_that_overflow_are_billed_in_both_pools() -> None:
    arrivals = [arrival(0.001 * number, output=60) for number in range(60)]
    scene = a_scenario(arrivals, engines=(engine(0, places=4),))
    cloud = EngineSpec(id=EndpointId("cloud/0"), pool=CLOUD, profile=TINY, in_flight_max=100)
    model = replace(scene.policy.models[0], overflow=Overflow((CLOUD,), Duration(1)))
    policy = replace(scene.policy, pools=(Pool(POOL), Pool(CLOUD, hosted=True)), models=(model,))
    scene = replace(scene, policy=policy, engines=(*scene.engines, cloud))
    cost = figures(priced(scene, main=HOURLY, cloud=PER_TOKEN))["cost"]

    assert all(each["billed_nano_usd"] > 0 for each in cost["pools"].values())
    assert sum(each["billed_nano_usd"] for each in cost["pools"].values()) == cost["billed_nano_usd"]


@given(
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**12)), min_size=1, max_size=5),
    st.integers(1, 10**12),
)
def test_parts_add_up_to_the_total_exactly(pools: list[tuple[int, int]], per_hour: int) -> None:
    names = [PoolName(f"p{number}") for number in range(len(pools))]
    price = Price(per_hour=NanoUsd(per_hour))
    cost = RunCost.of(
        [Pool(name, prices=(price,)) for name in names],
        [totals(name, paid_ns) for name, (paid_ns, _) in zip(names, pools, strict=True)],
        {name: billed for name, (_, billed) in zip(names, pools, strict=True)},
    )

    assert cost is not None
    assert cost.billed + cost.unbilled == cost.total == sum(each.total for each in cost.pools)
    assert abs(cost.total * 60 * MINUTE - sum(paid_ns for paid_ns, _ in pools) * per_hour) <= len(pools) * 30 * MINUTE


def test_cost_of_nothing_is_unknown() -> None:
    assert cost_per(5, 0) is None
    assert [cost_per(amount, 2) for amount in (0, 1, 2, 3)] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("nano_usd", "text"),
    [
        (None, "-"),
        (0, "$0.00"),
        (1, "$0.00000000100"),
        (66_379, "$0.0000664"),
        (123_456_789, "$0.123"),
        (1_500_000_000, "$1.50"),
        (-2_000_000_000, "-$2.00"),
        (1_234_567_000_000_000, "$1,234,567"),
    ],
)
def test_format_usd(nano_usd: int | None, text: str) -> None:
    assert format_usd(nano_usd) == text


def test_text_and_html_show_the_cost() -> None:
    report = report_of(priced(two_engines(), main=HOURLY))
    text, page = render_text(report, 100), render_html(report)

    for part in ("engine-hours", "per good request", "per million tokens", "Bills by class and tenant"):
        assert part in text
        assert part in page
    assert "cost of the run" in page


def test_same_run_costs_the_same() -> None:
    told = [json.dumps(figures(priced(two_engines(), main=HOURLY))["cost"]) for _ in range(2)]

    assert told[0] == told[1]
