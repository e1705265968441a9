"""Tests for the diagnosis benchmark: incidents, evaluation and process metrics."""

import json

import pytest

from bench.diagnosis.__main__ import figures_of, main, make_case
from bench.diagnosis.healthy import HEALTHY
from bench.diagnosis.incidents import INCIDENTS
from bench.diagnosis.scored_run import Result, score_case
from bench.diagnosis.simulated_process import IDLE_NS, Connections, SimulatedProcess
from bench.diagnosis_speed import observations, observe_all
from headgate.core.diagnosis.diagnosis import CAUSES
from headgate.core.events import AttemptEnded, AttemptsProgressed, RequestArrived
from headgate.model.units import Duration, Instant
from headgate.model.verdict import Cause, Incident
from testing.builders import at, completed, dispatch

OF_PROCESSES = {
    Incident.ENGINE_DOWN,
    Incident.ENGINE_MISCONFIGURED,
    Incident.GATEWAY_RESOURCES,
    Incident.CLIENT_TIMEOUTS,
}
"""Incidents found only in `bench/incidents_live`, because probes, connections and client timeouts are not simulated."""


def test_benchmark_covers_every_simulated_incident() -> None:
    assert {make_case(name, 0).incident for name in INCIDENTS} == set(Incident) - OF_PROCESSES - {Incident.HEALTHY}
    assert {make_case(name, 0).incident for name in HEALTHY} == {Incident.HEALTHY}


@pytest.mark.parametrize("name", ["engine-hang", "store-slow"])
def test_diagnosis_identifies_incident_in_time(name: str) -> None:
    result = score_case(make_case(name, 1))

    assert result.onset_s is not None
    assert (result.correct, result.diagnosed, result.alarms) == (True, result.incident, [])
    assert result.sample is not None
    assert result.sample.cause is CAUSES[result.incident] is not Cause.HEALTHY
    assert result.sample.action


def test_figures_cover_only_incidents_that_affect_callers() -> None:
    right = Result("a", 1, Incident.OVERLOAD, 3.0, 5.0, Incident.OVERLOAD)
    wrong = Result("a", 2, Incident.OVERLOAD, 3.0, None)
    harmless = Result("b", 1, Incident.STORE_SLOW, None, None)
    alarm = Result("c", 1, Incident.HEALTHY, None, None, alarms=["overload at 3 s"])
    harmed = Result("d", 1, Incident.HEALTHY, 9.0, None)
    figures = figures_of([right, wrong, harmless, alarm, harmed])

    assert (figures["runs"], figures["accuracy"], figures["false_alarms"]) == (2, 0.5, 1)
    assert (figures["healthy_runs"], figures["left_out"]) == (1, 1)
    assert figures["seconds_p95"] == 5.0


def test_command_prints_json_object_on_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    # The accuracy target is missed because no incident was scored.
    assert main(["--only", "restart", "--seeds", "1", "--processes", "1", "--assert"]) == 1
    *_, bound, last = capsys.readouterr().out.splitlines()

    assert json.loads(last)["false_alarms"] == 0
    assert "no false alarms in 1 healthy runs: the rate is below 100.0 %" in bound


def test_seed_option_requires_only() -> None:
    with pytest.raises(SystemExit):
        main(["--seed", "1"])


def test_connect_time_is_measured_only_for_new_connections() -> None:
    connections, opened = Connections(), list[int]()

    def connect() -> Duration:
        opened.append(1)
        return Duration(1_000)

    def ask(name: str, second: int) -> None:
        connections.sent(dispatch(name), at(second), connect)

    for name in "abc":
        ask(name, 1)
        connections.ended(completed(name), at(2))
    assert len(opened) == 1, "the idle connection is reused"
    for name in "def":
        ask(name, 3)
    assert len(opened) == 3
    assert [length for _, length in connections.medians(at(4))] == [1_000]
    assert connections.medians(at(60)) == (), "old connect times are not reported"

    connections.ended(completed("d"), at(60))
    ask("g", 60 + IDLE_NS // 10**9)
    assert len(opened) == 4, "the idle connection has expired"


def test_healthy_process_reports_occasional_high_cpu_and_lag() -> None:
    reports = [SimulatedProcess(make_case("steady", seed)) for seed in range(12)]
    told = [[each.report(Instant(second * 10**9)) for second in range(200)] for each in reports]
    late = [sum(each.loop_lag_ns > 250_000_000 for each in of) for of in told]

    assert any(of[0].cpu_percent >= 80 for of in told)
    assert any(late)
    assert max(late) < 20


def test_diagnosis_speed_observes_the_events_of_whole_requests() -> None:
    before, found = observations(200)

    kinds = [type(each.event) for each in found]
    assert (kinds.count(RequestArrived), kinds.count(AttemptEnded)) == (200, 200)
    assert AttemptsProgressed in kinds
    assert observe_all(before, found, 1) >= 0
