"""Tests for sweeps over load: one row per level, and the highest level that holds the targets."""

from dataclasses import replace
from pathlib import Path

import pytest

from headgate.config.scenarios.workload import parse_workload
from headgate.loadtest.generator import RunCounts
from headgate.loadtest.report import LoadTestResult
from headgate.loadtest.request import LoadTestOutcome
from headgate.loadtest.sweep import SweepLevel, highest_level, render_sweep, sweep_json
from headgate.loadtest.tally import LoadTestTally, LoadTestTargets
from headgate.loadtest.workload import scaled_workload
from headgate.simulation.options import RateTraffic, TraceTraffic
from testing.fake_engine import FakeEngine
from tests.loadtest.builders import a_sender
from tests.loadtest.command import loadtest, served


def a_level(factor: float, good: int, *, late_ns: int = 0) -> SweepLevel:
    tally = LoadTestTally(offered=100, good=good)
    tally.outcomes[LoadTestOutcome.COMPLETED] = 100
    counts = RunCounts(100, started=100, ended=100, elapsed_ns=10**10)
    counts.lateness_ns.append(late_ns)
    return SweepLevel(
        factor,
        LoadTestResult(
            url="http://a",
            model="m",
            seed=0,
            run_id="r",
            schedule_ns=10**10,
            targets=LoadTestTargets(),
            counts=counts,
            senders=[a_sender()],
            tallies=[tally],
        ),
    )


def test_highest_level_is_the_last_before_the_first_that_fails() -> None:
    levels = [a_level(0.5, 100), a_level(1, 96), a_level(1.5, 90), a_level(2, 97)]

    highest = highest_level(levels, 0.95)
    assert highest is not None
    assert highest.factor == 1
    assert highest_level(levels, 1.01) is None


def test_level_does_not_hold_if_the_generator_fell_behind() -> None:
    assert not a_level(1, 100, late_ns=10**9).holds(0.95)


def test_report_has_one_row_per_level() -> None:
    lines = render_sweep([a_level(0.5, 100), a_level(2, 90), a_level(3, 90, late_ns=10**9)], 0.95, width=120)

    assert [line.split()[0] for line in lines.splitlines()[:4]] == ["load", "0.5", "2", "3"]
    assert [line.split()[-1] for line in lines.splitlines()[1:4]] == ["yes", "no", "behind"]
    assert lines.endswith("highest load that holds the targets: 0.5 (10 requests/s)")
    assert render_sweep([a_level(1, 0)], 0.95, width=120).endswith("no load holds the targets for 95.0% of requests")


def test_json_report_contains_every_level() -> None:
    data = sweep_json([a_level(0.5, 100), a_level(2, 90)], 0.95)

    assert data["highest_load"] == 0.5
    assert isinstance(data["levels"], list)
    assert [(each["load"], each["holds"]) for each in data["levels"]] == [(0.5, True), (2, False)]


def test_load_multiplies_rates_and_speeds_traces_up(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("at_s,prompt_tokens,output_tokens\n0,1,1\n")
    text = "traffic: [{rate: 5, duration: 9s, prompt: 1, output: 1, ramp: {to: 8, duration: 1s}}, {trace: ./t.csv}]"
    workload = scaled_workload(parse_workload(text, tmp_path / "w.yaml", {}), 2.0)
    rate, trace = (source.traffic for source in workload.sources)

    assert isinstance(rate, RateTraffic)
    assert isinstance(trace, TraceTraffic)
    assert rate.ramp is not None
    assert (rate.rate, rate.ramp.to, trace.speed_up) == (10, 16, 2)
    assert scaled_workload(workload, 0.5).sources[0].traffic == replace(rate, rate=5, ramp=replace(rate.ramp, to=8.0))


def test_command_runs_each_level_in_increasing_order() -> None:
    with served(FakeEngine()) as engine:
        said = loadtest(
            engine.url, "--rate", "100", "--duration", "0.2", "--sweep", "2,1", "--slo-percent", "90", "--json"
        )

    assert [each["load"] for each in said.json["levels"]] == [1, 2]
    assert [each["total"]["offered_per_s"] for each in said.json["levels"]] == pytest.approx([100, 200], rel=0.5)
    assert said.json["good_share_required"] == 0.9
