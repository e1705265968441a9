"""Tests for the comparison between the simulator and a live gateway under overload.

The comparison takes minutes and runs in the endurance tier, with no other tests in parallel. The other tests here check
that both sides get the same requests and that a difference is detected.
"""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cli import FailedRequests
from bench.sim_vs_live_overload import POINTS_MAX, as_data, check_same_requests, compare, table_of
from bench.sim_vs_live_overload_workload import BATCH, CALLERS, INTERACTIVE, TENANTS, OverloadWorkload
from bench.sim_vs_live_runs import Machine, Side, simulated
from bench.sim_vs_live_workload import busy_duration
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Instant
from headgate.simulation.virtual.run_observer import RequestTrace

ROOT = Path(__file__).parents[2]
SHORT = OverloadWorkload(seconds=15)
CALM = Machine(behind=False, late_ms_p99=1.0, loop_lag_ms_p99=1.0)


def sim_live_overload(*arguments: str) -> tuple[int, dict, str]:
    """Run the command. Return its exit status, its results and its full output."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.sim_vs_live_overload", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


@pytest.mark.endurance
@pytest.mark.timeout(540)
def test_live_gateway_reaches_simulated_attainment() -> None:
    status, told, said = sim_live_overload("--assert")
    if told["machine"]["behind"]:
        # The actual arrivals differed from the list, so that run is meaningless.
        status, told, said = sim_live_overload("--assert")

    print(said)
    assert told["difference_points"] <= POINTS_MAX, said
    assert status == 0, said
    refused = told["classes"][BATCH]["live"]["outcomes"]
    assert refused["queue_timeout"] > 100, "batch requests were not rejected, so there was no overload"


@pytest.mark.process
def test_two_seconds_of_overload_run_on_both_sides() -> None:
    status, told, said = sim_live_overload("--seconds", "2")

    assert status == 0
    for sides in told["classes"].values():
        assert sides["live"]["arrivals"] == sides["simulated"]["arrivals"] > 0, said
    # The machine's speed determines which of them are served.
    assert sum(sides["live"]["completed"] for sides in told["classes"].values()) > 0, said


# Requests


def test_requests_depend_only_on_seed() -> None:
    assert SHORT.requests() == SHORT.requests()
    assert SHORT.requests() != replace(SHORT, seed=SHORT.seed + 1).requests()


def test_requests_span_duration_and_include_all_classes_and_tenants() -> None:
    asked = SHORT.requests()

    assert (asked[0].at, asked[-1].at) == (0, SHORT.seconds * SECOND)
    assert Counter(each.service_class for each in asked).keys() == CALLERS.keys()
    shares = [share for _, share in Counter(each.tenant for each in asked).most_common()]
    assert len(shares) == len(TENANTS)
    assert shares[0] > 2 * shares[-1], "the tenants' shares should differ"


def test_load_is_multiple_of_capacity_with_constant_backlog() -> None:
    workload = OverloadWorkload(load=2.0)
    sizes = [(each.prompt_tokens, each.output_tokens) for each in workload.requests()]

    needed_s = busy_duration(workload.profile, sizes, at_once=workload.in_flight_max) / SECOND

    assert needed_s / workload.engines / workload.seconds == pytest.approx(2.0, rel=0.05)


# Simulated side and comparison


@pytest.fixture(scope="module")
def simulated_run(tmp_path_factory: pytest.TempPathFactory) -> Side:
    return simulated(SHORT.setup(), SHORT.requests(), tmp_path_factory.mktemp("simulated"))


def good(side: Side) -> list[RequestTrace]:
    return [each for each in side if each.service_class == INTERACTIVE and each.outcome is Outcome.COMPLETED]


def test_simulator_runs_listed_requests_reproducibly(simulated_run: Side, tmp_path: Path) -> None:
    check_same_requests(SHORT.requests(), simulated_run)
    assert simulated(SHORT.setup(), SHORT.requests(), tmp_path) == simulated_run


def test_check_rejects_side_with_different_requests(simulated_run: Side) -> None:
    longer = (replace(simulated_run[0], prompt_tokens=simulated_run[0].prompt_tokens + 1), *simulated_run[1:])

    with pytest.raises(FailedRequests, match="request 0 "):
        check_same_requests(SHORT.requests(), simulated_run, longer)
    with pytest.raises(FailedRequests, match="requests were sent, expected"):
        check_same_requests(SHORT.requests(), simulated_run[:-1])


def test_identical_sides_have_no_difference(simulated_run: Side) -> None:
    told = as_data(compare(simulated_run, simulated_run, SHORT.seconds), CALM)

    assert told["difference_points"] == 0
    assert told["interactive_attainment_live"] == told["interactive_attainment_sim"] > 0.5


def test_late_slow_and_rejected_requests_count_as_misses(simulated_run: Side) -> None:
    first, second, third, *_ = good(simulated_run)
    assert first.first_token_at is not None
    changed = {
        first.number: replace(first, first_token_at=Instant(first.arrived_at + 3 * SECOND)),
        second.number: replace(second, ended_at=Instant(second.ended_at + 100 * SECOND)),
        third.number: replace(third, outcome=Outcome.DEADLINE_INFEASIBLE),
    }
    worse = tuple(changed.get(each.number, each) for each in simulated_run)

    classes = compare(worse, simulated_run, SHORT.seconds)
    told = as_data(classes, CALM)

    arrivals = classes[INTERACTIVE]["live"]["arrivals"]
    assert told["difference_points"] == pytest.approx(100 * 3 / arrivals, abs=0.01)
    assert told["interactive_attainment_live"] < told["interactive_attainment_sim"]
    assert classes[INTERACTIVE]["live"]["outcomes"]["deadline_infeasible"] >= 1
    assert classes[BATCH]["live"] == classes[BATCH]["simulated"]
    assert "deadline_infeasible" in table_of(classes)
