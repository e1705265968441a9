"""Tests that statistics from a simulated overload are consistent."""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from headgate.core.scheduler import Scheduler
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import ClassName, Duration, Instant, ModelName, PoolName, TenantId
from headgate.simulation.report.json_report import json_report
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.report.text_report import render_text
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival
from tests.simulation.report.builders import CALLERS, FAULTS, MS, S, a_scenario

REQUESTS = 1800


def arrivals() -> Iterator[Arrival]:
    """Generates more requests than two tiny engines can serve."""
    chance, now = Random("7 arrivals"), 0
    for _ in range(REQUESTS):
        now += chance.randrange(40 * MS)
        name, tenant = chance.choice(list(CALLERS)), TenantId(chance.choice("aaab"))
        yield Arrival(Instant(now), chance.randrange(1, 6000), chance.randrange(1, 600), name, tenant)


def an_overload() -> Scenario:
    policy = Policy(
        classes=tuple(ServiceClass(name, 0, queue_wait_ns_max=Duration(1 * S)) for name in CALLERS),
        tenants=(Tenant(TenantId("a")), Tenant(TenantId("b"))),
        pools=(Pool(PoolName("main")),),
        models=(Model(ModelName("m"), (PoolName("main"),)),),
    )
    return a_scenario(policy=policy, arrivals=arrivals, span_s=36, faults=FAULTS, decider=Scheduler)


@pytest.fixture(scope="module")
def report() -> SimulationReport:
    scenario = an_overload()
    audience = SimulationReport(scenario)
    VirtualHost(scenario, audience).run()
    return audience


def test_every_request_has_exactly_one_result(report: SimulationReport) -> None:
    total: Any = json_report(report)["total"]

    assert total["arrivals"] == sum(total["results"].values()) == sum(total["outcomes"].values()) == REQUESTS
    assert total["good"] > 0
    assert total["results"]["dropped"] + total["results"]["rejected"] > 0


def test_engine_work_is_attributed_to_requests_except_for_interrupted_steps(report: SimulationReport) -> None:
    figures: Any = json_report(report)
    fleet, total = figures["fleet"], figures["total"]

    assert total["engine_s"] + fleet["unattributed_s"] == pytest.approx(fleet["busy_s"], abs=2e-6)
    assert 0 <= fleet["unattributed_s"] < 0.05 * fleet["busy_s"]
    assert fleet["busy_s"] + fleet["idle_s"] == pytest.approx(fleet["up_s"], abs=2e-6)
    assert sum(total["engine_s_by_result"].values()) == pytest.approx(total["engine_s"], abs=6e-6)


def test_report_contains_all_classes_and_samples(report: SimulationReport) -> None:
    figures: Any = json_report(report)

    assert list(figures["classes"]) == list(CALLERS)
    assert len(figures["series"]["sample_times_s"]) >= 600
    assert max(figures["series"]["queued"]["interactive"]) > 0
    assert figures["classes"]["whole"]["ttft_s"] is None
    assert max(each["in_flight_max"] for each in figures["engines"]) >= 8
    assert max(len(line) for line in render_text(report, 99).splitlines()) <= 99


def test_samples_record_when_an_engine_was_up(report: SimulationReport) -> None:
    figures: Any = json_report(report)
    up = {name: sum(each["up"]) / len(each["up"]) for name, each in figures["series"]["engines"].items()}

    assert up["main/0"] == 1.0
    for engine in figures["engines"]:
        assert up[engine["id"]] == pytest.approx(engine["up_s"] / figures["elapsed_s"], abs=0.01)
    assert up["main/1"] < 0.9


def test_same_run_produces_the_same_report(report: SimulationReport) -> None:
    scenario = an_overload()
    again = SimulationReport(scenario)
    VirtualHost(scenario, again).run()

    assert json.dumps(json_report(again)) == json.dumps(json_report(report))
    assert render_text(again, 99) == render_text(report, 99)


def test_arrivals_are_counted_by_their_class(report: SimulationReport) -> None:
    counts = dict.fromkeys(CALLERS, 0)
    for each in arrivals():
        counts[ClassName(each.service_class)] += 1

    assert {name: group.tally.arrivals for name, group in report.classes.items()} == counts
