"""Does the simulator say what a live gateway with live engines then shows?

The comparison itself takes minutes and has a tier in which nothing runs beside it; that both sides are asked the same,
and that a difference would be seen, is checked at once.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.command import WrongAnswers
from bench.sim_live import ENDLESS, FIGURES, RATIO_MAX, Figure, as_data, check_same_requests, compare, table_of
from bench.sim_live_sides import Machine, Side, simulated, steady
from bench.sim_live_workload import ROLE_TOKENS, Workload, busy, write_trace
from headgate.model.outcome import Outcome
from headgate.model.units import MILLISECOND, SECOND, Instant
from headgate.simulation.workload.traces import read_trace

ROOT = Path(__file__).parents[2]
SMALL = Workload(requests=40)
CALM = Machine(behind=False, late_ms_p99=1.0, loop_lag_ms_p99=1.0)


def sim_live(*arguments: str) -> tuple[int, dict, str]:
    """How the command ended, the figures that it told, and all that it said besides."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.sim_live", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


@pytest.mark.endurance
@pytest.mark.timeout(480)
def test_the_simulator_is_within_a_tenth_of_life() -> None:
    status, told, said = sim_live("--assert")
    if told["machine"]["behind"]:
        # Its arrivals were not those of the list, so that run says nothing of either side.
        status, told, said = sim_live("--assert")

    print(said)
    assert told["figures"].keys() == FIGURES.keys()
    assert told["worst_ratio"] <= RATIO_MAX, said
    assert status == 0, said
    assert told["figures"]["queue_wait_s_p95"]["live"] > 0.2, "nobody waited, so the queue was not compared"


@pytest.mark.process
def test_a_few_requests_go_through_both_sides() -> None:
    status, told, said = sim_live("--requests", "16", "--load", "2")

    assert status == 0
    assert told["worst_ratio"] == max(figure["ratio"] for figure in told["figures"].values())
    assert all(figure["simulated"] > 0 for figure in told["figures"].values()), said
    # Whether requests wait in the live run depends on when the machine lets them arrive.
    assert all(figure["live"] > 0 for name, figure in told["figures"].items() if name != "queue_wait_s_p95"), said


# The list of requests


def test_the_list_is_the_same_each_time_and_another_for_another_seed() -> None:
    assert SMALL.asked() == SMALL.asked()
    assert SMALL.asked() != replace(SMALL, seed=SMALL.seed + 1).asked()


def test_at_half_the_load_the_same_requests_take_twice_as_long_to_come() -> None:
    whole, half = SMALL.asked(), replace(SMALL, load=SMALL.load / 2).asked()

    assert half[-1].at == pytest.approx(2 * whole[-1].at, abs=2)
    assert [each.prompt_tokens for each in half] == [each.prompt_tokens for each in whole]


def test_load_one_is_what_an_engine_does_that_is_never_without_work() -> None:
    sizes = [(2_000, 50), (3_000, 100), (4_000, 10)]
    alone = [busy(SMALL.profile, [size], at_once=1) for size in sizes]

    one_by_one = busy(SMALL.profile, sizes, at_once=1)

    assert one_by_one == pytest.approx(sum(alone), abs=len(sizes))
    assert max(alone) < busy(SMALL.profile, sizes, at_once=2) < one_by_one


def test_the_trace_says_what_the_list_says(tmp_path: Path) -> None:
    asked = SMALL.asked()
    write_trace(tmp_path / "trace.csv", asked)

    rows = list(read_trace(tmp_path / "trace.csv"))

    assert [
        (row.at_ns, row.prompt_tokens + ROLE_TOKENS, row.output_tokens, row.service_class, row.tenant) for row in rows
    ] == [(each.at, each.prompt_tokens, each.output_tokens, each.service_class, each.tenant) for each in asked]


# The simulated side, and the comparison


@pytest.fixture(scope="module")
def imagined(tmp_path_factory: pytest.TempPathFactory) -> Side:
    return simulated(steady(SMALL), SMALL.asked(), tmp_path_factory.mktemp("simulated"))


def test_the_simulator_is_asked_what_the_list_says_and_answers_the_same_each_time(
    imagined: Side, tmp_path: Path
) -> None:
    check_same_requests(SMALL.asked(), imagined)
    assert simulated(steady(SMALL), SMALL.asked(), tmp_path) == imagined


def test_a_side_that_was_asked_something_else_is_found_out(imagined: Side) -> None:
    shorter = (replace(imagined[0], output_tokens=imagined[0].output_tokens - 1), *imagined[1:])

    with pytest.raises(WrongAnswers, match="another length"):
        check_same_requests(SMALL.asked(), imagined, shorter)


def test_a_side_on_which_a_request_was_not_completed_is_found_out(imagined: Side) -> None:
    expired = (replace(imagined[0], outcome=Outcome.EXPIRED), *imagined[1:])

    with pytest.raises(WrongAnswers, match="request 0 was expired"):
        check_same_requests(SMALL.asked(), expired, imagined)


def test_requests_wait_at_the_gateway(tmp_path: Path) -> None:
    """The list of the command itself, so that the queue is worth comparing."""
    workload = Workload()
    waits = sorted(each.waited_ns for each in simulated(steady(workload), workload.asked(), tmp_path))

    assert waits[len(waits) // 2] == 0
    assert waits[len(waits) * 95 // 100] > 500 * MILLISECOND


def test_a_side_that_waits_longer_has_another_ratio(imagined: Side) -> None:
    later = tuple(
        replace(each, first_token_at=Instant((each.first_token_at or 0) + SECOND), waited_ns=each.waited_ns + SECOND)
        for each in imagined
    )

    figures = compare(later, imagined)
    told = as_data(figures, CALM)

    assert figures["throughput_tokens_per_s"].ratio == 1.0
    assert figures["ttft_s_p50"].live == pytest.approx(figures["ttft_s_p50"].simulated + 1)
    assert told["worst_ratio"] == pytest.approx(max(each.ratio for each in figures.values()), abs=1e-4)
    assert told["worst_ratio"] > RATIO_MAX
    assert all(name in table_of(figures) for name in FIGURES)


def test_a_ratio_counts_both_ways_and_something_to_nothing_is_endless() -> None:
    assert Figure(live=2.0, simulated=1.0).ratio == Figure(live=1.0, simulated=2.0).ratio == 2.0
    assert Figure(live=0.0, simulated=0.0).ratio == 1.0
    assert Figure(live=0.0, simulated=1.0).ratio == ENDLESS
