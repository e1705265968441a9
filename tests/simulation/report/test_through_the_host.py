"""Do the figures of a real run agree with each other?"""

import json
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from headgate.core.scheduler import Scheduler
from headgate.model.policy import Model, Policy, Pool, ServiceClass
from headgate.model.tenant import Tenant
from headgate.model.units import ClassName, Duration, Instant, ModelName, PoolName, TenantId
from headgate.simulation.report.figures import figures_of
from headgate.simulation.report.report import Report
from headgate.simulation.report.table import text
from headgate.simulation.virtual.host import VirtualHost
from headgate.simulation.virtual.scenario import Scenario
from headgate.simulation.workload.arrival import Arrival
from tests.simulation.report.builders import CALLERS, FAULTS, MS, S, a_scenario

REQUESTS = 1800


def arrivals() -> Iterator[Arrival]:
    """More than two tiny engines can do."""
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
def report() -> Report:
    scenario = an_overload()
    audience = Report(scenario)
    VirtualHost(scenario, audience).run()
    return audience


def test_every_request_has_one_fate(report: Report) -> None:
    total: Any = figures_of(report)["total"]

    assert total["arrivals"] == sum(total["fates"].values()) == sum(total["outcomes"].values()) == REQUESTS
    assert total["good"] > 0
    assert total["fates"]["given_up"] + total["fates"]["refused"] > 0


def test_all_work_of_the_engines_is_somebodys_but_for_steps_cut_short(report: Report) -> None:
    figures: Any = figures_of(report)
    fleet, total = figures["fleet"], figures["total"]

    assert total["engine_s"] + fleet["unassigned_s"] == pytest.approx(fleet["busy_s"], abs=2e-6)
    assert 0 <= fleet["unassigned_s"] < 0.05 * fleet["busy_s"]
    assert fleet["busy_s"] + fleet["idle_s"] == pytest.approx(fleet["up_s"], abs=2e-6)
    assert sum(total["engine_s_by_fate"].values()) == pytest.approx(total["engine_s"], abs=6e-6)


def test_samples_and_classes_are_all_there(report: Report) -> None:
    figures: Any = figures_of(report)

    assert list(figures["classes"]) == list(CALLERS)
    assert len(figures["series"]["at_s"]) >= 600
    assert max(figures["series"]["queued"]["interactive"]) > 0
    assert figures["classes"]["whole"]["ttft_s"] is None
    assert max(each["in_flight_max"] for each in figures["engines"]) >= 8
    assert max(len(line) for line in text(report, 99).splitlines()) <= 99


def test_samples_say_when_an_engine_was_up(report: Report) -> None:
    figures: Any = figures_of(report)
    up = {name: sum(each["up"]) / len(each["up"]) for name, each in figures["series"]["engines"].items()}

    assert up["main/0"] == 1.0
    for engine in figures["engines"]:
        assert up[engine["id"]] == pytest.approx(engine["up_s"] / figures["elapsed_s"], abs=0.01)
    assert up["main/1"] < 0.9


def test_the_same_run_is_told_in_the_same_bytes(report: Report) -> None:
    scenario = an_overload()
    again = Report(scenario)
    VirtualHost(scenario, again).run()

    assert json.dumps(figures_of(again)) == json.dumps(figures_of(report))
    assert text(again, 99) == text(report, 99)


def test_what_arrives_has_the_class_it_names(report: Report) -> None:
    counts = dict.fromkeys(CALLERS, 0)
    for each in arrivals():
        counts[ClassName(each.service_class)] += 1

    assert {name: group.tally.arrivals for name, group in report.classes.items()} == counts
