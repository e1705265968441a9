"""Are the figures of bench-cell what it says they are?"""

import pytest

from bench.cell_live.__main__ import doubts, missed, of_curve, table_of
from bench.cell_live.added import Added
from bench.cell_live.throughput import Point


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


def test_what_is_added_is_the_difference_of_each_sides_quantiles() -> None:
    added = Added({"p50": 1.0, "p99": 4.0}, {"p50": 2.5, "p99": 9.0}, {"p50": 1.5, "p99": 5.0})

    assert (added.ms("p50"), added.ms("p99")) == (1.5, 5.0)
    assert (added.same_process_ms("p50"), added.same_process_ms("p99")) == (0.5, 1.0)


def test_only_a_rate_that_was_kept_up_counts() -> None:
    curve = [a_point(500, 500), a_point(2_000, 1_990), a_point(3_000, 2_500), a_point(5_000, 4_950, left=10)]

    found = of_curve(curve)

    assert (found["requests_per_s"], found["scheduler_cpu_us_per_request"]) == (1_990, pytest.approx(251.3))
    assert of_curve([a_point(500, 100)])["requests_per_s"] == 0


def test_what_is_missed_is_said_and_what_was_not_measured_is_not() -> None:
    figures = {
        "added_ms_p50": 4.1,
        "added_ms_p99": 9.0,
        "fairness_added_ms_p99": 6.0,
        "requests_per_s": 900,
        "scheduler_cpu_us_per_request": 100.0,
    }

    assert [sentence.split(",")[0] for sentence in missed(figures)] == [
        "missed: added_ms_p50 is 4.1",
        "missed: requests_per_s is 900",
    ]
    table = table_of(figures)
    assert "at most 10: met" in table
    assert table.count("MISSED") == 3
    assert "not measured" in table_of({**figures, "requests_per_s": None})


def test_a_difference_of_two_noises_is_said_to_be_one() -> None:
    assert doubts({"local_ms": {"p50": 1.0, "p99": 4.0}}) == []
    [sentence] = doubts({"local_ms": {"p50": 1.0, "p99": 24.0}})
    assert sentence.startswith("added_ms_p99 says little")
