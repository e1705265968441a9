"""Tests for report statistics against the reference computation and hand-made cases."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.model.outcome import Outcome
from headgate.model.units import ClassName, Duration, Instant, TenantId
from headgate.simulation.report.fairness import jain_index
from headgate.simulation.report.json_report import json_report
from headgate.simulation.report.report import SimulationReport
from headgate.simulation.report.request_result import RequestResult, result_of
from headgate.simulation.report.time_series import BUCKETS, SAMPLES_MAX, EndpointSeries, TimeSeries, imbalance
from headgate.simulation.virtual.run_observer import EndpointSample, FleetSample, RequestTrace
from tests.simulation.report import plain_figures
from tests.simulation.report.builders import (
    S,
    a_full_report,
    a_report,
    a_scenario,
    a_story,
    chance_samples,
    chance_stories,
    refused,
)


def figures(report: SimulationReport) -> dict[str, Any]:
    return json_report(report)


def total(*stories: RequestTrace) -> dict[str, Any]:
    return figures(a_report(*stories))["total"]


def assert_within(told: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
    """Compares common keys only, because tenant groups have fewer. The last digit can differ by rounding."""
    for key in told.keys() & plain.keys():
        assert_same(told[key], plain[key], key)


def assert_same(told: Any, plain: Any, key: str) -> None:
    if isinstance(plain, Mapping):
        assert isinstance(told, Mapping), key
        assert told.keys() == plain.keys(), key
        for each in plain:
            assert_same(told[each], plain[each], f"{key}.{each}")
    elif isinstance(plain, float):
        assert told == pytest.approx(plain, abs=1.1e-6, rel=0), key
    else:
        assert told == plain, key


@pytest.mark.parametrize("seed", range(8))
def test_statistics_for_every_group_match_the_reference(seed: int) -> None:
    scenario, stories = a_scenario(), chance_stories(seed, 60 * seed)
    told = figures(a_report(*stories, scenario=scenario))
    plain = plain_figures.figures_of(stories, scenario)
    names = ["interactive", "batch", "whole", "unheard-of"]

    assert_within(told["total"], plain)
    assert plain.keys() <= told["total"].keys()
    assert list(told["classes"]) == [name for name in names if any(each.service_class == name for each in stories)]
    assert list(told["tenants"]) == sorted({each.tenant for each in stories})
    for name, group in told["classes"].items():
        assert_within(
            group, plain_figures.figures_of([each for each in stories if each.service_class == name], scenario)
        )
    for tenant, group in told["tenants"].items():
        assert_within(group, plain_figures.figures_of([each for each in stories if each.tenant == tenant], scenario))
    for name, tenants in told["tenants_by_class"].items():
        of_class = [each for each in stories if each.service_class == name]
        assert list(tenants) == sorted({each.tenant for each in of_class})
        for tenant, group in tenants.items():
            assert_within(
                group, plain_figures.figures_of([each for each in of_class if each.tenant == tenant], scenario)
            )


def test_one_good_request_produces_the_expected_statistics() -> None:
    told = total(a_story())

    assert (told["arrivals"], told["completed"], told["good"], told["attainment"]) == (1, 1, 1, 1.0)
    assert told["goodput_per_s"] == round(1 / 120, 6)
    assert told["ttft_s"] == {"count": 1, "mean": 1.0, "p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 1.0, "max": 1.0}
    assert (told["tpot_s"]["p99"], told["e2e_s"]["p99"], told["queue_wait_s"]["p99"]) == (0.05, 1.5, 0.4)
    assert (told["tokens_computed"], told["tokens_wasted"], told["engine_s"], told["engine_s_wasted"]) == (
        111,
        0,
        0.3,
        0.0,
    )
    assert (told["dispatched"], told["attempts"], told["amplification"], told["retries"]) == (1, 1, 1.0, 0)
    assert told["fairness"] == {"tenants": 1, "jain_attainment": 1.0, "jain_engine_s": 1.0, "worst_tenant": None}


@pytest.mark.parametrize(
    "late",
    [
        {"first_token_at": Instant(12 * S + 1), "ended_at": Instant(12 * S + 1)},
        {"ended_at": Instant(12 * S + 10)},
    ],
    ids=["first token", "pace"],
)
def test_response_missing_one_target_is_late_and_its_work_is_wasted(late: dict[str, Any]) -> None:
    told = total(a_story(**late))

    assert (told["completed"], told["good"], told["results"]["late"], told["tokens_wasted_share"]) == (1, 0, 1, 1.0)


def test_response_exactly_at_its_targets_is_good() -> None:
    assert total(a_story(first_token_at=Instant(12 * S), ended_at=Instant(13 * S)))["good"] == 1


def test_rejected_and_cancelled_requests_are_counted_as_misses_without_end_to_end_time() -> None:
    left = a_story(outcome=Outcome.CANCELLED, output_tokens=3, first_token_at=Instant(15 * S))
    told = total(a_story(), refused(), refused(Outcome.SHED), left)

    assert (told["attainment"], told["results"]["rejected"], told["results"]["cancelled"]) == (0.25, 2, 1)
    assert told["rejections"] == {"queue_full": 1, "shed": 1}
    assert (told["ttft_s"]["count"], told["e2e_s"]["count"], told["tpot_s"]["count"]) == (2, 1, 1)
    assert told["queue_wait_s"]["count"] == 2


def test_failures_after_the_first_token_are_counted() -> None:
    failed = a_story(outcome=Outcome.ENGINE_ERROR)
    before = a_story(outcome=Outcome.ENGINE_TIMEOUT, first_token_at=None)
    told = total(a_story(), failed, failed, before, a_story(outcome=Outcome.CANCELLED))

    assert (told["results"]["failed"], told["failed_after_first_token"]) == (3, 2)


def test_client_retries_and_attempts_are_counted_separately() -> None:
    told = total(a_story(tries=3), a_story(attempts=2), refused(tries=2))

    assert (told["retries"], told["dispatched"], told["attempts"], told["amplification"]) == (3, 2, 3, 1.5)


def test_non_streaming_response_is_evaluated_only_by_its_end_to_end_time() -> None:
    scenario = a_scenario()
    in_time = a_story(service_class=ClassName("whole"), ended_at=Instant(30 * S), first_token_at=Instant(30 * S))
    late = a_story(service_class=ClassName("whole"), ended_at=Instant(30 * S + 1), first_token_at=Instant(11 * S))
    told = figures(a_report(in_time, late, scenario=scenario))["classes"]["whole"]

    assert (told["good"], told["results"]["late"], told["ttft_s"], told["tpot_s"]) == (1, 1, None, None)


def test_every_outcome_maps_to_a_result() -> None:
    assert {result_of(outcome, in_time=False) for outcome in Outcome} == set(RequestResult) - {RequestResult.GOOD}


def test_fairness_compares_tenants_attainment_and_engine_time() -> None:
    many = [a_story(tenant=TenantId("large")) for _ in range(60)]
    few = [a_story(tenant=TenantId("small")) for _ in range(20)]
    told = total(*many, *few)["fairness"]

    assert told["jain_attainment"] == 1.0
    assert told["jain_engine_s"] == 0.8  # (60 + 20)² / (2 · (60² + 20²))


def test_worst_tenant_has_at_least_the_minimum_number_of_requests() -> None:
    unlucky = [refused(tenant=TenantId("tiny")) for _ in range(19)]
    half = [a_story(tenant=TenantId("half")) for _ in range(10)] + [refused(tenant=TenantId("half")) for _ in range(10)]

    assert total(*unlucky, *half)["fairness"]["worst_tenant"] == {"tenant": "half", "arrivals": 20, "attainment": 0.5}


@given(st.lists(st.integers(0, 10**18), min_size=1))
def test_jain_index_lies_between_its_bounds(values: list[int]) -> None:
    index = jain_index(values)

    assert (index is None) == (not any(values))
    assert index is None or 1 / len(values) * (1 - 1e-12) <= index <= 1 + 1e-12


def test_empty_run_has_no_ratios() -> None:
    told = figures(a_report())

    assert (told["total"]["arrivals"], told["total"]["attainment"], told["total"]["ttft_s"]) == (0, None, None)
    assert (told["classes"], told["tenants"]) == ({}, {})
    assert told["total"]["fairness"] == {
        "tenants": 0,
        "jain_attainment": None,
        "jain_engine_s": None,
        "worst_tenant": None,
    }
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_run_without_a_completed_request_has_no_end_to_end_times() -> None:
    told = total(refused(), refused(Outcome.NO_ENDPOINTS))

    assert (told["attainment"], told["e2e_s"], told["amplification"], told["tokens_wasted_share"]) == (
        0.0,
        None,
        None,
        None,
    )


def test_engine_statistics_include_their_samples() -> None:
    scenario, samples = a_scenario(), chance_samples(1, 50)
    report = a_report(a_story(), samples=50, scenario=scenario)
    [first, _], fleet = figures(report)["engines"], figures(report)["fleet"]
    in_flight = [each.endpoints[0].running + each.endpoints[0].waiting for each in samples]
    other = [each.endpoints[1].running + each.endpoints[1].waiting for each in samples]

    assert (first["id"], first["up_s"], first["busy_s"], first["idle_s"], first["busy_share"]) == (
        "main/0",
        130.0,
        97.5,
        32.5,
        0.75,
    )
    assert (first["prefix_hit_share"], first["preemptions"], first["generated_tokens"]) == (0.25, 3, 4000)
    assert (first["in_flight_mean"], first["in_flight_max"]) == (sum(in_flight) / 50, max(in_flight))
    assert first["kv_used_max"] == round(max(each.endpoints[0].kv_used_fraction for each in samples), 6)
    assert (fleet["up_s"], fleet["busy_s"], fleet["idle_s"], fleet["unattributed_s"]) == (260.0, 195.0, 65.0, 194.7)
    assert fleet["in_flight_max_over_mean"] == pytest.approx(
        max(sum(in_flight), sum(other)) / ((sum(in_flight) + sum(other)) / 2), abs=1e-6
    )


def a_course(*in_flight: int | None) -> EndpointSeries:
    """Builds the time series of one endpoint from its requests in flight. None is a sample taken while it is down."""
    course = TimeSeries(endpoints=1)
    for number, held in enumerate(in_flight):
        down = EndpointSample(0, 0, 0.0, up=False)
        course.add(FleetSample(Instant(number), {}, (down if held is None else EndpointSample(held, 0, held / 10),)))
    return course.endpoints[0]


def test_means_exclude_the_time_while_an_engine_is_down() -> None:
    course = a_course(None, None, 4, 6)

    assert (course.in_flight_mean, course.kv_used_mean) == (5.0, 0.5)
    assert (course.in_flight_max, course.kv_used_max) == (6, 0.6)
    assert (a_course(None, None).in_flight_mean, a_course().kv_used_mean) == (None, None)


@pytest.mark.parametrize(
    ("courses", "times"),
    [
        ([a_course(3, 3), a_course(1, 1)], 1.5),
        ([a_course(2, 2, 8, 8), a_course(None, None, 8, 8)], 1.0),
        ([a_course(4, 4, 4), a_course(None, 1, None)], 12 / (4 + 2.5 + 4)),
        ([a_course(0, 0), a_course(None, 0)], None),
        ([], None),
    ],
    ids=["both up", "one late", "one down", "idle", "no engines"],
)
def test_imbalance_compares_engines_only_while_they_are_up(courses: list[EndpointSeries], times: float | None) -> None:
    assert imbalance(courses) == (None if times is None else pytest.approx(times))


def test_buckets_count_results_by_arrival_time() -> None:
    last = Instant(120 * S - 1)
    series = figures(a_report(a_story(), refused(), refused(arrived_at=last, service_class=ClassName("batch"))))[
        "series"
    ]

    assert (series["bucket_s"], len(series["total"]["arrivals"])) == (1.0, BUCKETS)
    assert (series["total"]["arrivals"][10], series["total"]["good"][10], series["total"]["rejected"][10]) == (2, 1, 1)
    assert (series["classes"]["batch"]["rejected"][-1], sum(series["classes"]["batch"]["arrivals"])) == (1, 1)


@pytest.mark.parametrize("seed", [1, 2])
def test_bucket_counts_sum_to_the_totals(seed: int) -> None:
    told = figures(a_full_report(seed))
    series = told["series"]

    assert {name: sum(counts) for name, counts in series["total"].items()} == {
        "arrivals": told["total"]["arrivals"],
        **told["total"]["results"],
    }
    for name, counts in series["classes"].items():
        assert sum(counts["arrivals"]) == told["classes"][name]["arrivals"]


def test_queue_length_is_zero_before_a_class_first_appears() -> None:
    told = figures(a_full_report())["series"]

    assert list(told["queued"]) == ["interactive", "batch"]
    assert len(told["queued"]["interactive"]) == len(told["queued"]["batch"]) == len(told["sample_times_s"]) == 150
    assert set(told["queued"]["interactive"][:50]) == {0}


@given(count=st.integers(0, 4 * SAMPLES_MAX))
@settings(max_examples=settings.default.max_examples // 3)
def test_samples_are_evenly_spaced_and_limited_in_number(count: int) -> None:
    course = TimeSeries(endpoints=1)
    for number in range(1, count + 1):
        course.add(FleetSample(Instant(number), {ClassName("a"): number}, (EndpointSample(number, 0, 0.5),)))
    distances = {after - before for before, after in zip(course.at, course.at[1:], strict=False)}

    assert len(course.at) < SAMPLES_MAX
    assert len(distances) <= 1
    assert count < SAMPLES_MAX or len(course.at) >= SAMPLES_MAX // 2 - 1
    assert not count or course.at[-1] > count - 2 * course.at[0]
    assert list(course.queued.get(ClassName("a"), [])) == list(course.at) == list(course.endpoints[0].running)


def test_rates_are_zero_for_an_empty_time_span() -> None:
    told = figures(a_report(a_story(), scenario=a_scenario(span_ns=Duration(0))))

    assert (told["total"]["goodput_per_s"], told["total"]["attainment"]) == (0.0, 1.0)


PROGRAM = """
import hashlib, json, sys
from headgate.simulation.report.json_report import json_report
from headgate.simulation.report.text_report import render_text
from tests.simulation.report.builders import a_full_report
report = a_full_report(3)
sys.stdout.write(json.dumps(json_report(report), allow_nan=False) + render_text(report, 99))
"""


def run(program: str, hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=Path.cwd(), capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.process
def test_report_does_not_depend_on_the_hash_seed() -> None:
    first = run(PROGRAM, "0")

    assert run(PROGRAM, "1") == first
    assert '"worst_tenant": {"tenant"' in first


def test_report_does_not_depend_on_the_order_in_which_requests_end() -> None:
    stories = chance_stories(5, 400)

    assert json.dumps(figures(a_report(*stories))) == json.dumps(figures(a_report(*reversed(stories))))
