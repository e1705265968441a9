"""Tests for scale-live results."""

from collections.abc import Iterator

from bench.scale_live import BASE_S, TTFT_S, FleetStatus, Plan, RequestTiming, figures_of, missed_thresholds, recovery_s
from headgate.loadtest.request import LoadTestOutcome

PLAN = Plan(cold_start_s=20, burst=3, seed=0)


def burst(*, misses_until_s: float, every_s: float = 0.1) -> Iterator[RequestTiming]:
    """Yield requests at even intervals in the burst. Those due before `misses_until_s` miss their objective."""
    for number in range(int(60 / every_s)):
        at_s = number * every_s
        ttft_s = 2 * TTFT_S if at_s < misses_until_s else TTFT_S / 2
        yield RequestTiming(BASE_S + at_s, ttft_s, LoadTestOutcome.COMPLETED)


def test_recovery_starts_when_99_of_100_requests_are_on_time() -> None:
    found = recovery_s(list(burst(misses_until_s=25)))

    assert found is not None
    assert 24.5 < found < 25


def test_recovery_tolerates_one_miss_in_a_hundred() -> None:
    answers = list(burst(misses_until_s=0))
    late = [RequestTiming(BASE_S + 50 + number, None, LoadTestOutcome.HTTP_ERROR) for number in range(20)]

    assert recovery_s([*answers, late[0]]) == 0
    relapsed = recovery_s([*answers, *late])
    assert relapsed is None or relapsed > 50


def test_recovery_is_none_if_burst_never_recovers() -> None:
    assert recovery_s(list(burst(misses_until_s=60))) is None


def test_arrivals_depend_only_on_seed_and_triple_in_burst() -> None:
    moments = list(PLAN.moments())
    calm = sum(each < BASE_S for each in moments) / BASE_S
    busy = sum(BASE_S <= each < PLAN.burst_ends_s for each in moments) / 60

    assert moments == list(PLAN.moments())
    assert 2 < busy / calm < 4


def test_missed_thresholds_reports_each_missed_limit() -> None:
    before = [RequestTiming(1.0, 0.1, LoadTestOutcome.COMPLETED), RequestTiming(2.0, 0.1, LoadTestOutcome.INTERRUPTED)]
    answers = [*before, *burst(misses_until_s=40)]
    seen = [FleetStatus(1.0, 1, 1), FleetStatus(38.0, 3, 3), FleetStatus(200.0, 3, 3)]

    figures = figures_of(PLAN, answers, seen)

    assert (figures.scaled_up_s, figures.severed, figures.endpoints_last) == (23.0, 1, 3)
    assert [sentence.split(";")[0] for sentence in missed_thresholds(figures, PLAN)] == [
        "missed: p99 TTFT did not meet its objective again within 30 s",
        "missed: 1 responses were severed",
        "missed: none of the engines added for the burst was removed",
    ]
