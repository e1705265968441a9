"""Are the figures made rightly from what was measured, and held against their bars?"""

import json
from math import isclose

import pytest

from bench import engine, relay
from bench.bars import CI, missed_in_ci
from bench.confidence import interval_of, students_t
from bench.generator import Measured

GOOD = dict(CI)


def measured(**fields: object) -> Measured:
    nothing = {"seconds": 1.0, "requests": 0, "chunks": 0, "failed": 0, "problem": None, "first_ms": {}}
    rest = {"cpu_ns": 0, "others_share": 0.0, "generator_share": 0.0}
    return Measured(**(nothing | rest | fields))  # type: ignore[arg-type]


def some_results() -> relay.Results:
    results = relay.Results()
    for requests in (900, 1000, 800):
        results.add("requests", "gateway", measured(requests=requests, cpu_ns=200_000_000))
        results.add("requests", "upstream", measured(requests=10 * requests))
        results.add("requests", "nginx", measured(requests=requests, cpu_ns=20_000_000))
    for gateway_us, nginx_us in ((40, 25), (30, 30), (50, 20)):
        results.add("chunks", "gateway", measured(chunks=1000, cpu_ns=gateway_us * 1_000_000))
        results.add("chunks", "nginx", measured(chunks=1000, cpu_ns=nginx_us * 1_000_000))
    for gateway_ms, upstream_ms in ((1.2, 0.6), (0.9, 0.9), (1.0, 0.2)):
        results.add("first tokens", "gateway", measured(first_ms={"p50": gateway_ms, "p99": 4 * gateway_ms}))
        results.add("first tokens", "upstream", measured(first_ms={"p50": upstream_ms, "p99": 4 * upstream_ms}))
    return results


def test_the_quietest_round_of_each_side_counts() -> None:
    assert relay.figures_of(some_results()) == {
        "requests_per_s": 1000.0,
        "upstream_requests_per_s": 10000.0,
        "cpu_us_per_request": 200.0,
        "request_ratio_to_nginx": 10.0,
        "cpu_us_per_chunk": 30.0,
        "nginx_cpu_us_per_chunk": 20.0,
        "chunk_ratio_to_nginx": 1.5,
        "added_ttft_ms_p50": 0.7,
        "added_ttft_ms_p99": 2.8,
    }


def test_the_figures_are_those_that_were_promised_in_that_order() -> None:
    assert tuple(relay.figures_of(some_results())) == relay.FIGURES


def test_the_table_tells_which_bar_is_missed() -> None:
    results = some_results()
    table = relay.table_of(results, relay.figures_of(results) | {"cpu_us_per_request": 500.0})

    [line] = [line for line in table.splitlines() if line.startswith("cpu_us_per_request")]
    assert "500.00   at most 400: MISSED" in line
    assert table.count("MISSED") == 1


def test_figures_at_their_bars_pass() -> None:
    assert missed_in_ci(GOOD, quiet=True) == []


@pytest.mark.parametrize(
    ("figure", "value", "passes"),
    [
        ("chunk_ratio_to_nginx", 3.1, False),
        ("cpu_us_per_request", 1_000.0, True),
        ("request_ratio_to_nginx", 49.0, True),
        ("request_ratio_to_nginx", 51.0, False),
        ("added_ttft_ms_p50", 2.9, True),
        ("added_ttft_ms_p50", 3.1, False),
        ("added_ttft_ms_p99", 11.9, True),
        ("added_ttft_ms_p99", 12.1, False),
        ("added_ttft_ms_p99", float("nan"), False),
    ],
)
def test_ci_holds_ratios_to_a_bar_and_latencies_to_twice_theirs(figure: str, value: float, passes: bool) -> None:
    missed = missed_in_ci(GOOD | {figure: value}, quiet=True)

    assert [sentence.split()[0] for sentence in missed] == ([] if passes else [figure])


def test_on_a_machine_that_others_use_ratios_are_judged_and_latencies_are_not() -> None:
    missed = missed_in_ci({name: 10 * most for name, most in CI.items()}, quiet=False)

    assert [sentence.split()[0] for sentence in missed] == ["chunk_ratio_to_nginx", "request_ratio_to_nginx"]


@pytest.mark.parametrize(("freedom", "exact"), [(5, 2.5706), (10, 2.2281), (30, 2.0423), (1000, 1.9623)])
def test_students_quantile_is_right_to_three_digits(freedom: int, exact: float) -> None:
    assert isclose(students_t(freedom), exact, rel_tol=2e-3)


def test_the_interval_holds_the_ratio_and_narrows_with_more_pairs() -> None:
    few, many = interval_of([0.9, 1.0, 1.1] * 3), interval_of([0.9, 1.0, 1.1] * 30)

    assert few.low < few.ratio < few.high
    assert few.ratio == pytest.approx(0.99667, abs=1e-4)
    assert few.low == pytest.approx(0.9315, abs=2e-3)
    assert many.half_width < few.half_width / 3


def test_pairs_become_the_figures_that_were_promised() -> None:
    pairs = engine.Pairs(direct=[100.0] * 6, gateway=[98.0, 99.0] * 3)
    interval = pairs.interval()
    assert interval is not None

    figures = engine.figures_of(pairs, interval)

    assert list(figures) == ["direct_tokens_per_s", "gateway_tokens_per_s", "ratio", "ci_low", "ci_high"]
    assert figures["ratio"] == pytest.approx(0.985, abs=1e-3)
    assert json.loads(json.dumps(figures)) == figures


def test_too_few_pairs_give_no_interval() -> None:
    assert engine.Pairs(direct=[1.0] * 5, gateway=[1.0] * 5).interval() is None
