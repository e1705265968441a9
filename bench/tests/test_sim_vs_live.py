"""Tests for the comparison between the simulator and a live gateway with live engines.

The comparison takes minutes and runs in the endurance tier, with no other tests in parallel. The other tests here check
that both sides get the same requests and that a difference is detected.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli import FailedRequests
from bench.sim_vs_live import ENDLESS, FIGURES, RATIO_MAX, Figure, as_data, check_same_requests, compare, table_of
from bench.sim_vs_live_runs import Machine, Side, simulated, steady_setup
from bench.sim_vs_live_workload import ROLE_TOKENS, Workload, busy_duration, write_trace
from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, Instant
from headgate.simulation.workload.trace_files import read_trace

ROOT = Path(__file__).parents[2]
SMALL = Workload(requests=40)
CALM = Machine(behind=False, late_ms_p99=1.0, loop_lag_ms_p99=1.0)


def sim_live(*arguments: str) -> tuple[int, dict, str]:
    """Run the command. Return its exit status, its results and its full output."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.sim_vs_live", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


@pytest.mark.endurance
@pytest.mark.timeout(480)
def test_simulator_is_within_ten_percent_of_live_gateway() -> None:
    status, told, said = sim_live("--assert")
    if told["machine"]["behind"]:
        # The actual arrivals differed from the list, so that run is meaningless.
        status, told, said = sim_live("--assert")

    print(said)
    assert told["figures"].keys() == FIGURES.keys()
    assert told["worst_ratio"] <= RATIO_MAX, said
    assert status == 0, said
    assert told["figures"]["queue_wait_s_p95"]["live"] > 0.2, "no request waited, so the queue was not compared"


@pytest.mark.process
def test_few_requests_run_on_both_sides() -> None:
    status, told, said = sim_live("--requests", "16", "--load", "2")

    assert status == 0
    assert told["worst_ratio"] == max(figure["ratio"] for figure in told["figures"].values())
    assert all(figure["simulated"] > 0 for figure in told["figures"].values()), said
    # Live requests may not have to wait, depending on when the machine lets them arrive.
    assert all(figure["live"] > 0 for name, figure in told["figures"].items() if name != "queue_wait_s_p95"), said


# Requests


def test_requests_depend_only_on_seed() -> None:
    assert SMALL.arrivals() == SMALL.arrivals()
    assert SMALL.arrivals() != replace(SMALL, seed=SMALL.seed + 1).arrivals()


def test_half_load_doubles_duration_with_same_requests() -> None:
    whole, half = SMALL.arrivals(), replace(SMALL, load=SMALL.load / 2).arrivals()

    assert half[-1].at == pytest.approx(2 * whole[-1].at, abs=2)
    assert [each.prompt_tokens for each in half] == [each.prompt_tokens for each in whole]


def test_busy_duration_equals_engine_time_with_constant_backlog() -> None:
    sizes = [(2_000, 50), (3_000, 100), (4_000, 10)]
    alone = [busy_duration(SMALL.profile, [size], at_once=1) for size in sizes]

    one_by_one = busy_duration(SMALL.profile, sizes, at_once=1)

    assert one_by_one == pytest.approx(sum(alone), abs=len(sizes))
    assert max(alone) < busy_duration(SMALL.profile, sizes, at_once=2) < one_by_one


def test_trace_contains_listed_requests(tmp_path: Path) -> None:
    asked = SMALL.arrivals()
    write_trace(tmp_path / "trace.csv", asked)

    rows = list(read_trace(tmp_path / "trace.csv"))

    assert [
        (row.at_ns, row.prompt_tokens + ROLE_TOKENS, row.output_tokens, row.service_class, row.tenant) for row in rows
    ] == [(each.at, each.prompt_tokens, each.output_tokens, each.service_class, each.tenant) for each in asked]


# Simulated side and comparison


@pytest.fixture(scope="module")
def simulated_run(tmp_path_factory: pytest.TempPathFactory) -> Side:
    return simulated(steady_setup(SMALL), SMALL.arrivals(), tmp_path_factory.mktemp("simulated"))


def test_simulator_runs_listed_requests_reproducibly(simulated_run: Side, tmp_path: Path) -> None:
    check_same_requests(SMALL.arrivals(), simulated_run)
    assert simulated(steady_setup(SMALL), SMALL.arrivals(), tmp_path) == simulated_run


def test_check_rejects_side_with_different_length(simulated_run: Side) -> None:
    shorter = (replace(simulated_run[0], output_tokens=simulated_run[0].output_tokens - 1), *simulated_run[1:])

    with pytest.raises(FailedRequests, match="unexpected length"):
        check_same_requests(SMALL.arrivals(), simulated_run, shorter)


def test_check_rejects_side_with_incomplete_request(simulated_run: Side) -> None:
    expired = (replace(simulated_run[0], outcome=Outcome.QUEUE_TIMEOUT), *simulated_run[1:])

    with pytest.raises(FailedRequests, match="request 0 ended as queue_timeout"):
        check_same_requests(SMALL.arrivals(), expired, simulated_run)


def test_default_workload_makes_requests_wait_at_gateway(tmp_path: Path) -> None:
    workload = Workload()
    waits = sorted(each.waited_ns for each in simulated(steady_setup(workload), workload.arrivals(), tmp_path))

    assert waits[len(waits) // 2] == 0
    assert waits[len(waits) * 95 // 100] > 500 * MILLISECOND


def test_longer_waits_change_ratio(simulated_run: Side) -> None:
    later = tuple(
        replace(each, first_token_at=Instant((each.first_token_at or 0) + SECOND), waited_ns=each.waited_ns + SECOND)
        for each in simulated_run
    )

    figures = compare(later, simulated_run)
    told = as_data(figures, CALM)

    assert figures["throughput_tokens_per_s"].ratio == 1.0
    assert figures["ttft_s_p50"].live == pytest.approx(figures["ttft_s_p50"].simulated + 1)
    assert told["worst_ratio"] == pytest.approx(max(each.ratio for each in figures.values()), abs=1e-4)
    assert told["worst_ratio"] > RATIO_MAX
    assert all(name in table_of(figures) for name in FIGURES)


def test_ratio_is_symmetric_and_bounded() -> None:
    assert Figure(live=2.0, simulated=1.0).ratio == Figure(live=1.0, simulated=2.0).ratio == 2.0
    assert Figure(live=0.0, simulated=0.0).ratio == 1.0
    assert Figure(live=0.0, simulated=1.0).ratio == ENDLESS
