"""Arithmetic of drills: counters across restarts, differences between samples, and the time until recovery."""

import pytest

from headgate.cli.drills.figures import (
    GOOD,
    JUDGED,
    REQUESTS,
    TTFT,
    CounterTotals,
    DrillObjective,
    PhaseFigures,
    TimedTotals,
    met,
    read_counters,
    recovered_after_s,
)

OBJECTIVE = DrillObjective("chat", "ttft", 0.9)
PAGE = b"""
# TYPE headgate_requests_total counter
headgate_requests_total{class="chat",outcome="completed"} 7
headgate_requests_total{class="chat",outcome="engine_error"} 2
headgate_time_to_first_token_seconds_bucket{class="chat",size="short",le="0.1"} 1
headgate_time_to_first_token_seconds_bucket{class="chat",size="long",le="0.1"} 2
headgate_other_total{class="chat"} 5
"""


def test_counters_are_read_and_summed_over_labels_that_drills_ignore() -> None:
    assert read_counters(PAGE) == {
        (REQUESTS, "chat", "completed"): 7,
        (REQUESTS, "chat", "engine_error"): 2,
        (TTFT, "chat", "0.1"): 3,
    }


def test_totals_of_several_gateways_survive_a_restart() -> None:
    key, totals = (REQUESTS, "chat", "completed"), CounterTotals()
    totals.add("one", {key: 5})
    totals.add("two", {key: 100})
    before = totals.snapshot()
    totals.add("one", {key: 2})
    totals.add("two", {key: 101})

    assert (before[key], totals.snapshot()[key], totals.restarted) == (105, 108, {"one"})


def test_figures_are_differences_by_outcome_and_class() -> None:
    last = {
        (REQUESTS, "chat", "completed"): 15.0,
        (REQUESTS, "chat", "engine_error"): 3.0,
        (REQUESTS, "batch", "queue_full"): 2.0,
        (REQUESTS, "batch", "cancelled"): 1.0,
        (TTFT, "chat", "1"): 5.0,
        (TTFT, "chat", "inf"): 10.0,
    }
    figures = PhaseFigures.between({(REQUESTS, "chat", "completed"): 10.0}, last, 11)

    assert figures.outcomes("chat") == {"completed": 5, "engine_error": 3}
    assert (figures.requests, figures.per_second, figures.lost, figures.rejected) == (11, 1.0, 3, 2)
    assert figures.quantile_s(TTFT, 0.25, "chat") == 0.5
    assert figures.quantile_s(TTFT, 0.25, "batch") is None


def test_objective_without_requests_is_neither_met_nor_missed() -> None:
    figures = PhaseFigures(1, {})

    assert figures.attained(OBJECTIVE) is None
    assert met([OBJECTIVE], figures)


def samples(*good: int) -> list[TimedTotals]:
    """One sample per second. In each second, 10 requests are judged and this many of them are good."""
    found = [TimedTotals(0.0, {})]
    for number, each in enumerate(good, start=1):
        before = found[-1].totals.get((GOOD, "chat", "ttft"), 0.0)
        totals = {(JUDGED, "chat", "ttft"): 10.0 * number, (GOOD, "chat", "ttft"): before + each}
        found.append(TimedTotals(float(number), totals))
    return found


@pytest.mark.parametrize(
    ("good", "recovered"),
    [
        ((10, 10, 10, 10, 10, 10), 0.0),
        # The window of 2 s contains the miss in second 3 until second 5.
        ((10, 10, 5, 10, 10, 10), 4.0),
        ((10, 5, 10, 10, 5, 10, 10, 10), 6.0),
        ((10, 10, 10, 10, 10, 5), None),
    ],
)
def test_recovery_is_the_time_until_the_window_meets_the_objective_for_good(
    good: tuple[int, ...], recovered: float | None
) -> None:
    assert recovered_after_s(samples(*good), [OBJECTIVE], since_s=1, window_s=2) == recovered
