"""Tests for the benchmark results and their limits."""

import json
from math import isclose

import pytest

from bench import engine_throughput, relay_overhead
from bench.load_generator import LoadResult
from bench.relay_thresholds import CI_THRESHOLDS, missed_ci_thresholds
from headgate.simulation.report.confidence import interval_of, students_t

GOOD = dict(CI_THRESHOLDS)


def measured(**fields: object) -> LoadResult:
    nothing = {"seconds": 1.0, "requests": 0, "chunks": 0, "failed": 0, "problem": None, "first_ms": {}}
    rest = {"cpu_ns": 0, "others_share": 0.0, "generator_share": 0.0}
    return LoadResult(**(nothing | rest | fields))  # type: ignore[arg-type]


def some_results() -> relay_overhead.Results:
    results = relay_overhead.Results()
    for requests in (900, 1000, 800):
        results.add("requests", "gateway", measured(requests=requests, cpu_ns=200_000_000))
        results.add("requests", "upstream", measured(requests=10 * requests))
        results.add("requests", "nginx", measured(requests=requests, cpu_ns=20_000_000))
        results.add("requests", "envoy", measured(requests=requests, cpu_ns=80_000_000))
    for gateway_us, nginx_us in ((40, 25), (30, 30), (50, 20)):
        results.add("chunks", "gateway", measured(chunks=1000, cpu_ns=gateway_us * 1_000_000))
        results.add("chunks", "nginx", measured(chunks=1000, cpu_ns=nginx_us * 1_000_000))
        results.add("chunks", "envoy", measured(chunks=1000, cpu_ns=2 * nginx_us * 1_000_000))
    for gateway_ms, upstream_ms in ((1.2, 0.6), (0.9, 0.9), (1.0, 0.2)):
        results.add("first tokens", "gateway", measured(first_ms={"p50": gateway_ms, "p99": 4 * gateway_ms}))
        results.add("first tokens", "upstream", measured(first_ms={"p50": upstream_ms, "p99": 4 * upstream_ms}))
    return results


def test_only_best_round_of_each_side_is_used() -> None:
    assert relay_overhead.figures_of(some_results()) == {
        "requests_per_s": 1000.0,
        "upstream_requests_per_s": 10000.0,
        "cpu_us_per_request": 200.0,
        "request_ratio_to_nginx": 10.0,
        "cpu_us_per_chunk": 30.0,
        "nginx_cpu_us_per_chunk": 20.0,
        "chunk_ratio_to_nginx": 1.5,
        "envoy_cpu_us_per_request": 80.0,
        "request_over_envoy": 2.5,
        "envoy_cpu_us_per_chunk": 40.0,
        "chunk_over_envoy": 0.75,
        "added_ttft_ms_p50": 0.7,
        "added_ttft_ms_p99": 2.8,
    }


def test_saturated_round_counts_only_if_no_round_kept_up() -> None:
    saturated = measured(chunks=2_000, cpu_ns=20_000_000)
    results = relay_overhead.Results()
    results.add("chunks", "gateway", saturated)
    assert results.least("chunks", "gateway", relay_overhead.cpu_us_per_chunk) == 10.0

    results.add("chunks", "gateway", measured(chunks=4_440, cpu_ns=133_200_000))
    assert results.least("chunks", "gateway", relay_overhead.cpu_us_per_chunk) == 30.0


def test_results_have_documented_names_and_order() -> None:
    assert tuple(relay_overhead.figures_of(some_results())) == relay_overhead.FIGURES


def test_table_marks_missed_limit() -> None:
    results = some_results()
    table = relay_overhead.table_of(results, relay_overhead.figures_of(results) | {"request_ratio_to_nginx": 31.0})

    [line] = [line for line in table.splitlines() if line.startswith("request_ratio_to_nginx")]
    assert "31.00   at most 30: MISSED" in line
    assert table.count("MISSED") == 1


def test_results_at_their_limits_pass() -> None:
    assert missed_ci_thresholds(GOOD, quiet=True) == []


@pytest.mark.parametrize(
    ("figure", "value", "passes"),
    [
        ("chunk_ratio_to_nginx", 3.1, False),
        ("cpu_us_per_request", 1_000.0, True),
        ("request_ratio_to_nginx", 49.0, True),
        ("request_ratio_to_nginx", 51.0, False),
        ("added_ttft_ms_p50", 1.9, True),
        ("added_ttft_ms_p50", 2.1, False),
        ("added_ttft_ms_p99", 9.9, True),
        ("added_ttft_ms_p99", 10.1, False),
        ("added_ttft_ms_p99", float("nan"), False),
    ],
)
def test_ci_checks_ratios_and_allows_twice_the_latency_limits(figure: str, value: float, passes: bool) -> None:
    missed = missed_ci_thresholds(GOOD | {figure: value}, quiet=True)

    assert [sentence.split()[0] for sentence in missed] == ([] if passes else [figure])


def test_ci_ignores_latencies_on_busy_machine() -> None:
    missed = missed_ci_thresholds({name: 10 * most for name, most in CI_THRESHOLDS.items()}, quiet=False)

    assert [sentence.split()[0] for sentence in missed] == ["chunk_ratio_to_nginx", "request_ratio_to_nginx"]


@pytest.mark.parametrize(("freedom", "exact"), [(5, 2.5706), (10, 2.2281), (30, 2.0423), (1000, 1.9623)])
def test_students_t_is_correct_to_three_digits(freedom: int, exact: float) -> None:
    assert isclose(students_t(freedom), exact, rel_tol=2e-3)


def test_interval_contains_ratio_and_narrows_with_more_pairs() -> None:
    few, many = interval_of([0.9, 1.0, 1.1] * 3), interval_of([0.9, 1.0, 1.1] * 30)

    assert few.low < few.estimate < few.high
    assert few.estimate == pytest.approx(0.99667, abs=1e-4)
    assert few.low == pytest.approx(0.9315, abs=2e-3)
    assert many.half_width < few.half_width / 3


def test_engine_results_have_documented_names() -> None:
    pairs = engine_throughput.Pairs(direct=[100.0] * 6, gateway=[98.0, 99.0] * 3)
    interval = pairs.interval()
    assert interval is not None

    figures = engine_throughput.figures_of(pairs, interval)

    assert list(figures) == ["direct_tokens_per_s", "gateway_tokens_per_s", "ratio", "ci_low", "ci_high"]
    assert figures["ratio"] == pytest.approx(0.985, abs=1e-3)
    assert json.loads(json.dumps(figures)) == figures


def test_interval_is_none_with_too_few_pairs() -> None:
    assert engine_throughput.Pairs(direct=[1.0] * 5, gateway=[1.0] * 5).interval() is None
