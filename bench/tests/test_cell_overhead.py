"""Tests for bench-cell results."""

import pytest

from bench.cell_overhead.__main__ import curve_figures, missed_thresholds, noise_warnings, table_of
from bench.cell_overhead.added_latency import AddedLatency
from bench.cell_overhead.throughput import Point


def a_point(offered: float, ended: float, *, refused: int = 0, left: int = 0) -> Point:
    return Point(
        offered_per_s=offered,
        ended_per_s=ended,
        grant_ms_p50=1.0,
        grant_ms_p99=2.0,
        scheduler_share=0.5,
        scheduler_cpu_us=round(5e5 / ended, 1),
        store_share=0.1,
        members_share=0.5,
        refused=refused,
        left=left,
    )


def test_added_latency_is_difference_of_quantiles() -> None:
    added = AddedLatency({"p50": 1.0, "p99": 4.0}, {"p50": 2.5, "p99": 9.0}, {"p50": 1.5, "p99": 5.0})

    assert (added.ms("p50"), added.ms("p99")) == (1.5, 5.0)
    assert (added.same_process_ms("p50"), added.same_process_ms("p99")) == (0.5, 1.0)


def test_only_sustained_rates_are_counted() -> None:
    curve = [a_point(500, 500), a_point(2_000, 1_990), a_point(3_000, 2_500), a_point(5_000, 4_950, left=10)]

    found = curve_figures(curve, yardstick_us=100.0)

    assert (found["requests_per_s"], found["scheduler_cpu_us_per_request"]) == (1_990, pytest.approx(251.3))
    assert found["scheduler_cpu_over_yardstick"] == pytest.approx(2.51)
    assert curve_figures([a_point(500, 100)], yardstick_us=100.0)["requests_per_s"] == 0


def test_missed_thresholds_reports_missed_limits_and_ignores_unmeasured_results() -> None:
    figures = {
        "added_ms_p50": 4.1,
        "added_ms_p99": 9.0,
        "fairness_added_ms_p99": 6.0,
        "requests_per_s": 900,
        "scheduler_cpu_us_per_request": 100.0,
    }

    assert [sentence.split(";")[0] for sentence in missed_thresholds(figures)] == [
        "missed: added_ms_p50 is 4.1",
        "missed: requests_per_s is 900",
    ]
    table = table_of(figures)
    assert "at most 10: met" in table
    assert table.count("MISSED") == 3
    assert "not measured" in table_of({**figures, "requests_per_s": None})


def test_noise_warnings_reports_differences_within_noise() -> None:
    assert noise_warnings({"local_ms": {"p50": 1.0, "p99": 4.0}}) == []
    [sentence] = noise_warnings({"local_ms": {"p50": 1.0, "p99": 24.0}})
    assert sentence.startswith("added_ms_p99 is unreliable")
