"""Does the diagnosis name a few incidents, and is it judged as its docs say?"""

import json

import pytest

from bench.diagnosis.__main__ import figures_of, made, main
from bench.diagnosis.healthy import HEALTHY
from bench.diagnosis.incidents import INCIDENTS
from bench.diagnosis.process import IDLE_NS, Connections, Process
from bench.diagnosis.run import Result, judge
from headgate.core.diagnosis.diagnosis import CAUSES
from headgate.model.units import Duration, Instant
from headgate.model.verdict import Cause, Incident
from testing.builders import at, completed, dispatch

OF_PROCESSES = {
    Incident.ENGINE_DOWN,
    Incident.ENGINE_MISCONFIGURED,
    Incident.GATEWAY_RESOURCES,
    Incident.CLIENT_TIMEOUTS,
}
"""Incidents that only `bench/incidents_live` has: probes, connections and client timeouts are not simulated."""


def test_every_incident_that_can_be_told_is_made() -> None:
    assert {made(name, 0).incident for name in INCIDENTS} == set(Incident) - OF_PROCESSES - {Incident.HEALTHY}
    assert {made(name, 0).incident for name in HEALTHY} == {Incident.HEALTHY}


@pytest.mark.parametrize("name", ["engine-hang", "store-slow"])
def test_an_incident_is_named_in_time(name: str) -> None:
    result = judge(made(name, 1))

    assert result.onset_s is not None
    assert (result.right, result.said, result.alarms) == (True, result.incident, [])
    assert result.sample is not None
    assert result.sample.cause is CAUSES[result.incident] is not Cause.HEALTHY
    assert result.sample.action


def test_only_runs_that_harm_somebody_are_judged() -> None:
    right = Result("a", 1, Incident.OVERLOAD, 3.0, 5.0, Incident.OVERLOAD)
    wrong = Result("a", 2, Incident.OVERLOAD, 3.0, None)
    harmless = Result("b", 1, Incident.STORE_SLOW, None, None)
    alarm = Result("c", 1, Incident.HEALTHY, None, None, alarms=["overload at 3 s"])
    harmed = Result("d", 1, Incident.HEALTHY, 9.0, None)
    figures = figures_of([right, wrong, harmless, alarm, harmed])

    assert (figures["runs"], figures["accuracy"], figures["false_alarms"]) == (2, 0.5, 1)
    assert (figures["healthy_runs"], figures["left_out"]) == (1, 1)
    assert figures["seconds_p95"] == 5.0


def test_the_command_ends_with_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    # No incident was judged, so none was named.
    assert main(["--only", "restart", "--seeds", "1", "--processes", "1", "--assert"]) == 1
    *_, bound, last = capsys.readouterr().out.splitlines()

    assert json.loads(last)["false_alarms"] == 0
    assert "no alarm in 1 healthy runs: fewer than 100.0 %" in bound


def test_a_single_run_must_be_named() -> None:
    with pytest.raises(SystemExit):
        main(["--seed", "1"])


def test_how_long_connecting_takes_is_known_only_where_connections_are_opened() -> None:
    connections, opened = Connections(), list[int]()

    def connect() -> Duration:
        opened.append(1)
        return Duration(1_000)

    def ask(name: str, second: int) -> None:
        connections.sent(dispatch(name), at(second), connect)

    for name in "abc":
        ask(name, 1)
        connections.ended(completed(name), at(2))
    assert len(opened) == 1, "the one that is idle is taken again"
    for name in "def":
        ask(name, 3)
    assert len(opened) == 3
    assert [length for _, length in connections.medians(at(4))] == [1_000]
    assert connections.medians(at(60)) == (), "what is old is no news"

    connections.ended(completed("d"), at(60))
    ask("g", 60 + IDLE_NS // 10**9)
    assert len(opened) == 4, "who was idle for too long is closed"


def test_healthy_processes_are_busy_or_late_for_a_moment_too() -> None:
    reports = [Process(made("steady", seed)) for seed in range(12)]
    told = [[each.report(Instant(second * 10**9)) for second in range(200)] for each in reports]
    late = [sum(each.loop_lag_ns > 250_000_000 for each in of) for of in told]

    assert any(of[0].cpu_percent >= 80 for of in told)
    assert any(late)
    assert max(late) < 20
