"""Does the live gateway keep its promises under overload as well as the simulator says?

The comparison itself takes minutes and has a tier in which nothing runs beside it; that both sides are asked the same,
and that a difference would be seen, is checked at once.
"""

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench.command import WrongAnswers
from bench.sim_live_overload import POINTS_MAX, as_data, check_same_requests, compare, table_of
from bench.sim_live_overload_workload import BATCH, CALLERS, INTERACTIVE, TENANTS, OverloadWorkload
from bench.sim_live_sides import Machine, Side, simulated
from bench.sim_live_workload import busy
from headgate.model.outcome import Outcome
from headgate.model.units import SECOND, Instant
from headgate.simulation.virtual.story import Story

ROOT = Path(__file__).parents[2]
SHORT = OverloadWorkload(seconds=15)
CALM = Machine(behind=False, late_ms_p99=1.0, loop_lag_ms_p99=1.0)


def sim_live_overload(*arguments: str) -> tuple[int, dict, str]:
    """How the command ended, the figures that it told, and all that it said besides."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.sim_live_overload", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


@pytest.mark.endurance
@pytest.mark.timeout(540)
def test_the_live_gateway_attains_what_the_simulator_says() -> None:
    status, told, said = sim_live_overload("--assert")
    if told["machine"]["behind"]:
        # Its arrivals were not those of the list, so that run says nothing of either side.
        status, told, said = sim_live_overload("--assert")

    print(said)
    assert told["difference_points"] <= POINTS_MAX, said
    assert status == 0, said
    refused = told["classes"][BATCH]["live"]["outcomes"]
    assert refused["expired"] > 100, "batch was not turned away, so there was no overload"


@pytest.mark.process
def test_two_seconds_of_overload_go_through_both_sides() -> None:
    status, told, said = sim_live_overload("--seconds", "2")

    assert status == 0
    for sides in told["classes"].values():
        assert sides["live"]["arrivals"] == sides["simulated"]["arrivals"] > 0, said
    # Which of them are served depends on the machine.
    assert sum(sides["live"]["completed"] for sides in told["classes"].values()) > 0, said


# The list of requests


def test_the_list_is_the_same_each_time_and_another_for_another_seed() -> None:
    assert SHORT.asked() == SHORT.asked()
    assert SHORT.asked() != replace(SHORT, seed=SHORT.seed + 1).asked()


def test_the_list_takes_so_long_and_names_all_classes_and_tenants() -> None:
    asked = SHORT.asked()

    assert (asked[0].at, asked[-1].at) == (0, SHORT.seconds * SECOND)
    assert Counter(each.service_class for each in asked).keys() == CALLERS.keys()
    shares = [share for _, share in Counter(each.tenant for each in asked).most_common()]
    assert len(shares) == len(TENANTS)
    assert shares[0] > 2 * shares[-1], "the shares are meant to be unequal"


def test_the_load_is_what_engines_that_are_never_without_work_could_do_so_many_times_over() -> None:
    workload = OverloadWorkload(load=2.0)
    sizes = [(each.prompt_tokens, each.output_tokens) for each in workload.asked()]

    needed_s = busy(workload.profile, sizes, at_once=workload.in_flight_max) / SECOND

    assert needed_s / workload.engines / workload.seconds == pytest.approx(2.0, rel=0.05)


# The simulated side, and the comparison


@pytest.fixture(scope="module")
def imagined(tmp_path_factory: pytest.TempPathFactory) -> Side:
    return simulated(SHORT.stage(), SHORT.asked(), tmp_path_factory.mktemp("simulated"))


def good(side: Side) -> list[Story]:
    return [each for each in side if each.service_class == INTERACTIVE and each.outcome is Outcome.COMPLETED]


def test_the_simulator_is_asked_what_the_list_says_and_answers_the_same_each_time(
    imagined: Side, tmp_path: Path
) -> None:
    check_same_requests(SHORT.asked(), imagined)
    assert simulated(SHORT.stage(), SHORT.asked(), tmp_path) == imagined


def test_a_side_that_was_asked_something_else_is_found_out(imagined: Side) -> None:
    longer = (replace(imagined[0], prompt_tokens=imagined[0].prompt_tokens + 1), *imagined[1:])

    with pytest.raises(WrongAnswers, match="request 0 "):
        check_same_requests(SHORT.asked(), imagined, longer)
    with pytest.raises(WrongAnswers, match="were to be asked"):
        check_same_requests(SHORT.asked(), imagined[:-1])


def test_two_sides_that_are_the_same_differ_by_nothing(imagined: Side) -> None:
    told = as_data(compare(imagined, imagined, SHORT.seconds), CALM)

    assert told["difference_points"] == 0
    assert told["interactive_attainment_live"] == told["interactive_attainment_sim"] > 0.5


def test_answers_that_begin_late_or_are_slow_or_refused_count_as_missed(imagined: Side) -> None:
    first, second, third, *_ = good(imagined)
    assert first.first_token_at is not None
    changed = {
        first.number: replace(first, first_token_at=Instant(first.arrived_at + 3 * SECOND)),
        second.number: replace(second, ended_at=Instant(second.ended_at + 100 * SECOND)),
        third.number: replace(third, outcome=Outcome.UNREACHABLE),
    }
    worse = tuple(changed.get(each.number, each) for each in imagined)

    classes = compare(worse, imagined, SHORT.seconds)
    told = as_data(classes, CALM)

    arrivals = classes[INTERACTIVE]["live"]["arrivals"]
    assert told["difference_points"] == pytest.approx(100 * 3 / arrivals, abs=0.01)
    assert told["interactive_attainment_live"] < told["interactive_attainment_sim"]
    assert classes[INTERACTIVE]["live"]["outcomes"]["unreachable"] >= 1
    assert classes[BATCH]["live"] == classes[BATCH]["simulated"]
    assert "unreachable" in table_of(classes)
