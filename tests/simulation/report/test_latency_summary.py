"""Tests for percentiles and distribution summaries."""

import pytest

from headgate.simulation.report.latency_summary import LatencySummary, percentile


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7], 50, 7),
        ([7], 99, 7),
        ([1, 2], 50, 1),
        ([1, 2, 3], 50, 2),
        (list(range(1, 101)), 50, 50),
        (list(range(1, 101)), 90, 90),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 11)), 95, 10),
        (list(range(1, 1001)), 99, 990),
    ],
)
def test_percentile_uses_the_nearest_rank(values: list[int], percent: int, expected: int) -> None:
    assert percentile(values, percent) == expected


def test_spread_includes_count_total_percentiles_and_maximum() -> None:
    assert LatencySummary.of([30, 10, 20]) == LatencySummary(3, 60, {50: 20, 90: 30, 95: 30, 99: 30}, 30)
    assert LatencySummary.of([]) is None
