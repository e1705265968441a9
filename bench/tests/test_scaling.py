"""Is E6 sound: the fluid model, those who scale by other figures, the oracle, and how they are compared?"""

import csv
import gzip
import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

from bench.policy.fleet import speed_of
from bench.scaling.baselines import QueueDepth, RequestRate, Utilisation
from bench.scaling.compare import KINDS, OURS, PROFILE, Days, Point, chosen, compared, hours_at
from bench.scaling.demand import STEP_S, STEPS, Cost, Window, cost_of, demand, full_batch, read_windows
from bench.scaling.fluid import DRAIN_S, HELD_S, TTFT_S, Fleet, View, chances, run
from bench.scaling.hour import Both, Hour, checked
from bench.scaling.oracle import SLO, bridged, oracle, trading
from bench.scaling.ours import Headgate
from bench.scaling.page import ATTAINMENT_OFF_MOST, RESTING_RANGE_MOST, SERVED_OFF_MOST, corrected_bars, figures
from bench.scaling.steady import at_rest
from bench.scaling.wrong import Corrected, corrected
from headgate.core.cost import cost_ns
from headgate.simulation.workload.servegen_files import SIX_HOURS_S, ClientLengths, read_lengths, read_rates

COST = Cost(mean_s=0.07, variance=0.01, own_s=0.055, output_tokens=160.0, tokens=1_000.0)


def a_window(work: float, *, spread: float = 0.08) -> Window:
    """Ten minutes that ask for so many endpoints; the work of ten seconds varies by this part of it."""
    variance = (spread * work * STEP_S) ** 2
    return Window(work / COST.mean_s, work, variance, 0.5 * variance / COST.mean_s, COST)


def a_view(now_s: int = 30, *, ready: int = 10, warming: int = 0, **told: float) -> View:
    usual = dict.fromkeys(("work", "rate", "busy", "waiting_s", "waiting", "running", "kv_tokens"), 0.0)
    return View(now_s=now_s, ready=ready, warming=warming, draining=0, **{**usual, **told})


# What the queue makes of a demand


def test_half_the_load_misses_nothing_and_twice_the_load_half_of_the_work() -> None:
    assert chances(a_window(5), 10).missed < 1e-9
    assert chances(a_window(20), 10).lost == pytest.approx(0.5, abs=0.01)


def test_where_demand_is_just_what_can_be_done_chance_loses_half_its_variance_over_the_store() -> None:
    window = a_window(10)
    store = 10 * (TTFT_S + HELD_S)

    assert chances(window, 10).lost * window.work == pytest.approx(window.variance / STEP_S / (2 * store))


def test_waiting_grows_before_the_endpoints_are_busy_all_the_time() -> None:
    waits = [chances(a_window(work, spread=0.2), 10).waiting_s for work in (6, 7, 8, 9, 9.9, 10.1, 12)]

    assert all(less < more for less, more in pairwise(waits))
    assert waits[3] > 0.2
    assert waits[-1] < 10 * TTFT_S


def test_burstier_clients_need_more_endpoints_for_the_same() -> None:
    assert chances(a_window(9, spread=0.3), 10).missed > 10 * chances(a_window(9, spread=0.1), 10).missed


def test_of_a_burst_that_is_large_before_the_fleet_a_part_is_served() -> None:
    window = a_window(20, spread=1.0)

    assert 1 < window.work * (1 - chances(window, 5).lost) < 5


def test_each_further_endpoint_saves_something_and_none_at_all_serves_nobody() -> None:
    missed = [chances(a_window(10), endpoints).missed for endpoints in range(16)]

    assert missed[0] == 1
    assert all(more <= fewer for fewer, more in pairwise(missed))


# What a fleet costs


def test_an_endpoint_is_paid_for_while_it_starts_and_serves_after_its_cold_start() -> None:
    fleet = Fleet(1, cold_start_s=120)
    fleet.become(3, 0)
    came = [fleet.pass_to(now_s) for now_s in (10, 110, 120)]
    fleet.pay(STEP_S)

    assert (came, fleet.ready, fleet.starts, fleet.paid_s) == ([0, 0, 2], 3, 2, 3 * STEP_S)


def test_given_back_are_those_first_that_do_not_serve_yet_and_the_rest_ends_what_it_has() -> None:
    fleet = Fleet(4, cold_start_s=120)
    fleet.become(6, 0)
    fleet.become(3, 10)
    assert (fleet.ready, len(fleet.warming), len(fleet.draining)) == (3, 0, 1)

    fleet.pass_to(10 + DRAIN_S)
    fleet.pay(STEP_S)
    assert fleet.paid_s == 3 * STEP_S


# How others scale


def test_utilisation_scales_by_its_ratio_and_not_within_the_tolerance() -> None:
    assert Utilisation(0.5).wanted(a_view(busy=0.75)) == 15
    assert Utilisation(0.2).wanted(a_view(busy=0.75)) == 20
    assert Utilisation(0.5).wanted(a_view(busy=0.6)) == 12
    assert Utilisation(0.5).wanted(a_view(busy=0.54)) == 10


def test_endpoints_that_are_starting_count_as_idle_when_utilisation_would_scale_up() -> None:
    assert Utilisation(0.5).wanted(a_view(busy=0.75, warming=5)) == 15
    assert Utilisation(0.5).wanted(a_view(busy=0.9, warming=5)) == 18


def test_whoever_scales_down_waits_for_five_minutes() -> None:
    rate = RequestRate(10)
    assert rate.wanted(a_view(30, rate=120)) == 12

    wanted = [rate.wanted(a_view(now_s, ready=12, rate=50)) for now_s in range(40, 400, STEP_S)]
    assert wanted[:27] == [12] * 27
    assert wanted[-1] == 5


def test_a_queue_is_polled_every_half_minute() -> None:
    keda = QueueDepth(5)

    assert keda.wanted(a_view(40, waiting=80)) == 10
    assert keda.wanted(a_view(60, waiting=60)) == 12
    assert QueueDepth(5, with_running=True).wanted(a_view(60, waiting=20, running=45)) == 13


# What the oracle knows


def test_the_oracle_meets_every_step_with_the_fewest_endpoints_that_do() -> None:
    windows = [a_window(work) for work in (5, 9, 14, 6, 3)]
    plan = oracle(windows, cold_start_s=120)

    for window, endpoints in zip(windows, plan.ready[::STEPS], strict=True):
        assert chances(window, endpoints).missed <= 1 - SLO
        assert chances(window, endpoints - 1).missed > 1 - SLO


def test_it_pays_for_cold_starts_and_drains() -> None:
    windows = [a_window(work) for work in (5, 9, 5)]
    without, with_starts = oracle(windows, cold_start_s=0), oracle(windows, cold_start_s=300)

    assert with_starts.gpu_hours - without.gpu_hours == pytest.approx(without.starts * 300 / 3600)


def test_endpoints_are_kept_through_gaps_that_cost_less_than_a_start() -> None:
    assert bridged([5, 3, 4, 1, 5], longest_s=700, each_s=600) == [5, 4, 4, 4, 5]
    assert bridged([5, 3, 4, 1, 5], longest_s=1_800, each_s=600) == [5, 5, 5, 5, 5]
    assert bridged([5, 3, 4, 1, 5], longest_s=599, each_s=600) == [5, 3, 4, 1, 5]


def test_who_may_choose_whom_to_miss_pays_less_for_the_same() -> None:
    windows = [a_window(4 + 3 * (number % 7)) for number in range(70)]
    every_step = oracle(windows, cold_start_s=120)
    trader = trading(windows, cold_start_s=120, attainment=every_step.attainment)

    assert trader.attainment >= every_step.attainment
    assert trader.gpu_hours <= every_step.gpu_hours
    assert trading(windows, cold_start_s=120, attainment=0.97).gpu_hours < trader.gpu_hours


# Who is compared how


def test_hours_at_an_attainment_lie_between_neighbouring_targets() -> None:
    points = [Point(0.5, 1.0, 200, 0), Point(0.7, 0.99, 150, 0), Point(0.9, 0.95, 110, 0)]

    assert hours_at(points, 0.99) == 150
    assert hours_at(points, 0.97) == pytest.approx(130)
    assert hours_at(points[1:], 0.995) is None


def test_our_point_is_the_cheapest_that_reaches_the_slo() -> None:
    points = [Point(70, 0.999, 200, 0), Point(90, 0.992, 150, 0), Point(100, 0.98, 130, 0)]

    assert chosen(points).target == 90
    assert chosen(points[2:]).target == 100


def days_of(*works: float) -> Days:
    windows = [a_window(work) for work in works]
    return Days("some", windows, demand(windows, seed=1))


def test_comparison_ends_in_its_figures() -> None:
    some = {name: replace(kind, targets=kind.targets[:2]) for name, kind in KINDS.items() if name != "queue depth"}
    wrong = [Corrected("some", 130, 0.995, 1.1, 0.8), Corrected("some", 70, 0.991, 1.05, 1.3)]
    told = figures(compared(days_of(8, 9, 12, 13, 11, 8), 120, kinds=some), wrong)

    names = ["wrong_profile_attainment", "wrong_profile_over_oracle"]
    assert list(told) == [*names, "attainment", "gpu_hours_over_oracle", "best_baseline_over_oracle"]
    assert (told["wrong_profile_attainment"], told["wrong_profile_over_oracle"]) == (0.991, 1.1)
    assert told["attainment"] > 0.9
    assert 1 < told["gpu_hours_over_oracle"] < 3


def test_the_same_seed_gives_the_same_steps_and_their_mean_is_the_rate() -> None:
    windows = [a_window(10)] * 40

    assert demand(windows, seed=3) == demand(windows, seed=3) != demand(windows, seed=4)
    assert fmean(step.work for step in demand(windows, seed=3)) == pytest.approx(10, rel=0.01)
    assert fmean(step.rate for step in demand(windows, seed=3)) == pytest.approx(10 / COST.mean_s, rel=0.01)


# At constant load


def test_ours_comes_to_rest_where_the_load_is_constant() -> None:
    rest = at_rest(a_window(10, spread=0.0), seed=1)

    assert (rest.range, rest.rises) == (0, 0)


def test_chance_moves_ours_by_few_endpoints() -> None:
    assert at_rest(a_window(10), seed=1).range <= RESTING_RANGE_MOST


def test_ours_scales_a_step_of_the_load_up_and_back() -> None:
    days = days_of(*[6.0] * 6, *[12.0] * 6, *[6.0] * 12)
    contender = KINDS[OURS].make(90, days, 40)
    ready = run(days.steps, contender, PROFILE, first=8, endpoints_max=40, cold_start_s=120).ready

    assert ready[6 * STEPS + 20] >= 12
    assert ready[-1] <= 9


# A wrong profile


def test_measured_attainment_corrects_a_profile_that_is_too_fast() -> None:
    days = days_of(*[10.0] * 72)
    [found] = corrected(days, percents=(70,))
    left_alone = Headgate(100, PROFILE, endpoints_max=40, work_percent=70)
    worse = run(days.steps, left_alone, PROFILE, first=11, endpoints_max=40, cold_start_s=120)

    assert worse.attainment < 0.9 < found.attainment
    assert found.factor > 1.2


def test_bars_ask_more_of_a_right_profile_than_of_a_wrong_one() -> None:
    right, wrong = Corrected("some", 100, 0.995, 1.18, 1.0), Corrected("some", 130, 0.98, 1.18, 0.8)

    assert [bar.met for bar in corrected_bars([right, wrong])] == [True, False, False, True]


# What is read of the traces


@pytest.fixture(scope="module")
def traces() -> Path:
    folder = os.environ.get("HEADGATE_DATA")
    if folder is None and "CI" not in os.environ:
        pytest.skip("HEADGATE_DATA does not name a folder with recorded traces")
    assert folder is not None, "CI must name the folder with recorded traces in HEADGATE_DATA"
    return Path(folder) / "traces"


@pytest.fixture(scope="module")
def one_day(traces: Path) -> list[Window]:
    return read_windows(traces.parent, "deepseek-r1", PROFILE)


def test_the_demand_of_a_trace_follows_its_rates(one_day: list[Window], traces: Path) -> None:
    processes = read_rates(traces / "servegen_deepseek-r1_rates.csv.gz")
    first = sum(each.rate for each in processes if each.window_s == 0)

    assert len(one_day) == 144
    assert one_day[0].rate == pytest.approx(first)
    assert all(each.variance > 0 and each.work > 0 for each in one_day)


def test_what_a_request_costs_is_what_the_core_reckons(traces: Path) -> None:
    processes = read_rates(traces / "servegen_deepseek-r1_rates.csv.gz")
    lengths = ClientLengths(read_lengths(traces / "servegen_deepseek-r1_lengths.jsonl.gz"), processes)
    texts, chance = lengths.at("nobody", 0), Random("lengths")
    drawn = [
        cost_ns(speed_of(PROFILE), texts.prompt.at(chance.random()), texts.output.at(chance.random()), batch=100) / 1e9
        for _ in range(20_000)
    ]

    assert cost_of(texts, PROFILE, batch=100).mean_s == pytest.approx(fmean(drawn), rel=0.05)


def test_a_full_endpoint_decodes_as_many_as_the_time_per_token_allows_and_the_engine_takes() -> None:
    assert 150 < full_batch(PROFILE, [(1.0, (952.0, 161.0))]) < 220
    assert full_batch(PROFILE, [(1.0, (10.0, 500.0))]) == PROFILE.sequences_max


START_S = 34 * 3_600
NEARLY_FULL = Hour(trace="m-large", keep=0.08, start_s=0, length_s=600, endpoints=1)
"""A twelfth of m-large on one endpoint."""


def agrees(both: Both) -> None:
    assert abs(both.attainment_off) <= 2 * ATTAINMENT_OFF_MOST
    assert abs(both.served_off) <= SERVED_OFF_MOST


def cut(traces: Path, folder: Path, window_s: int) -> Path:
    """One window of m-large alone, at the beginning: reading all fourteen days takes much longer than playing it."""
    (folder / "traces").mkdir()
    rates, lengths = "servegen_m-large_rates.csv.gz", "servegen_m-large_lengths.jsonl.gz"
    with gzip.open(traces / rates, "rt") as whole, gzip.open(folder / "traces" / rates, "wt") as part:
        rows = csv.DictReader(whole)
        written = csv.DictWriter(part, rows.fieldnames or ())
        written.writeheader()
        written.writerows({**row, "window_start_s": 0} for row in rows if int(row["window_start_s"]) == window_s)
    with gzip.open(traces / lengths, "rt") as whole, gzip.open(folder / "traces" / lengths, "wt") as part:
        for line in whole:
            known = json.loads(line)
            if known["window_start_s"] == window_s - window_s % SIX_HOURS_S:
                part.write(json.dumps({**known, "window_start_s": 0}) + "\n")
    return folder


def test_fluid_model_agrees_with_request_by_request_while_an_endpoint_joins(traces: Path, tmp_path: Path) -> None:
    part = replace(NEARLY_FULL, joins_s=180)

    agrees(checked(part, cut(traces, tmp_path, START_S), PROFILE, seed=1))


@pytest.mark.nightly
@pytest.mark.parametrize("joins_s", [None, 180])
def test_fluid_model_of_whole_traces_agrees_with_request_by_request(traces: Path, joins_s: int | None) -> None:
    part = replace(NEARLY_FULL, start_s=START_S, joins_s=joins_s)

    agrees(checked(part, traces.parent, PROFILE, seed=1))
