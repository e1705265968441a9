"""Tests for the counts per second, the baseline and the endpoints' measured pace."""

from dataclasses import replace

import pytest

from headgate.core.diagnosis.endpoint_stats import EndpointStats
from headgate.core.diagnosis.window_counts import (
    BLOCK_SECONDS,
    BLOCKS,
    KEPT_SECONDS,
    RECENT_SECONDS,
    SKIPPED_SECONDS,
    TENANTS_MAX,
    NamedTotals,
    PoolHistory,
    WindowCounts,
)
from headgate.model.speed import EngineSpeed
from headgate.model.units import ClassName, EndpointId, TenantId
from testing.builders import at, duration
from tests.core.diagnosis.pictures import POOL


def one_second(history: PoolHistory, *, arrivals: int = 10, well: bool = True) -> None:
    seen = history.current
    seen.arrivals += arrivals
    seen.tenants.add("acme", arrivals)
    seen.record_ttft(ClassName("c"), 1_000)
    seen.lengths_of(ClassName("c")).count += 1
    seen.count_bad(ClassName("c"), TenantId("acme"))
    history.close(healthy=well)


def test_second_enters_the_recent_window_first_and_the_baseline_later() -> None:
    history = PoolHistory()
    for _ in range(SKIPPED_SECONDS + RECENT_SECONDS + 3):
        one_second(history)

    assert history.recent().arrivals == 10 * RECENT_SECONDS
    assert history.recent(KEPT_SECONDS).seconds == KEPT_SECONDS
    assert (history.baseline.seconds, history.baseline.arrivals) == (3, 30)
    assert history.baseline.ttft_by == {"c": (3, 3_000)}
    assert history.baseline.answers[ClassName("c")].count == 3


def test_seconds_during_an_incident_do_not_enter_the_baseline() -> None:
    history = PoolHistory()
    for _ in range(SKIPPED_SECONDS + RECENT_SECONDS):
        one_second(history)
    for _ in range(30):
        one_second(history, well=False)

    assert history.baseline.seconds == 0


def test_seconds_before_the_first_request_are_not_counted_as_initial() -> None:
    history = PoolHistory()
    for _ in range(60):
        history.close(healthy=True)
    for _ in range(SKIPPED_SECONDS + RECENT_SECONDS):
        one_second(history)

    assert history.baseline.seconds == 0


USUAL_SECONDS = BLOCKS * BLOCK_SECONDS


@pytest.mark.parametrize("permille", [300, 1_050, 2_000], ids=lambda each: f"{each / 1000}/s")
def test_baseline_stays_accurate_at_low_rates_for_hours(permille: int) -> None:
    history, due = PoolHistory(), 0
    for second in range(3 * 3_600):
        due += permille
        count, due = divmod(due, 1_000)
        history.current.arrivals += count
        for _ in range(count):
            history.current.tenants.add("acme", 1)
            history.current.record_ttft(ClassName("c"), 1_000)
            lengths = history.current.lengths_of(ClassName("c"))
            lengths.count, lengths.tokens = lengths.count + 1, lengths.tokens + 100
        history.current.retries += second % 40 == 0
        history.close(healthy=True)

    usual = history.baseline
    lengths = usual.answers[ClassName("c")]
    assert USUAL_SECONDS - BLOCK_SECONDS <= usual.seconds <= USUAL_SECONDS
    assert abs(usual.arrivals * 1_000 - permille * usual.seconds) <= 1_000
    assert usual.tenants.by_name == {"acme": usual.arrivals}
    assert (lengths.count, lengths.tokens) == (usual.arrivals, 100 * usual.arrivals)
    assert usual.ttft_by == {"c": (usual.arrivals, 1_000 * usual.arrivals)}
    assert abs(usual.retries * 40 - usual.seconds) <= 40


def test_inactive_tenant_and_class_leave_the_baseline_within_half_an_hour() -> None:
    history = PoolHistory()
    history.current.tenants.add("gone", 1)
    history.current.lengths_of(ClassName("old")).count += 1
    for _ in range(SKIPPED_SECONDS + RECENT_SECONDS):
        one_second(history)
    history.current.tenants.add("gone", 1)
    history.current.record_ttft(ClassName("old"), 1)
    history.current.lengths_of(ClassName("old")).count += 1
    for _ in range(USUAL_SECONDS // 2):
        one_second(history)
    assert "gone" in history.baseline.tenants.by_name
    for _ in range(USUAL_SECONDS // 2 + RECENT_SECONDS):
        one_second(history)

    usual = history.baseline
    assert ("gone" in usual.tenants.by_name, "old" in usual.answers, "old" in usual.ttft_by) == (False, False, False)


def test_forgotten_response_lengths_are_learned_again() -> None:
    history = PoolHistory()
    for _ in range(SKIPPED_SECONDS + RECENT_SECONDS + 50):
        one_second(history)
    history.forget_answers(ClassName("c"))
    history.forget_answers(ClassName("unknown"))
    assert not history.baseline.answers
    one_second(history)

    assert (history.baseline.answers[ClassName("c")].count, history.baseline.seconds) == (1, 51)


def test_names_beyond_the_limit_are_not_counted() -> None:
    shares = NamedTotals()
    for number in range(TENANTS_MAX + 5):
        shares.add(str(number), 1)
    shares.add("0", 1)

    assert len(shares.by_name) == TENANTS_MAX
    assert shares.by_name["0"] == 2


def test_bad_and_resolved_are_sums_of_their_parts() -> None:
    seen = WindowCounts()
    seen.judged, seen.late, seen.slow, seen.rejected, seen.missing, seen.failed = 100, 1, 2, 3, 4, 5
    seen.unjudged = 50

    assert (seen.bad, seen.resolved) == (15, 162)


# Endpoints


def an_endpoint() -> EndpointStats:
    return EndpointStats(EndpointId("e1"), POOL, at(0))


def test_endpoint_is_silent_only_while_streams_are_open() -> None:
    endpoint = an_endpoint()
    assert endpoint.silent_ns(at(5)) == 0
    endpoint.record_sent(at(5))
    endpoint.record_sent(at(6))
    assert endpoint.silent_ns(at(8)) == duration(3)


def test_first_and_last_of_consecutive_failures_are_recorded() -> None:
    endpoint = an_endpoint()
    endpoint.record_failure(at(1), silently=False)
    endpoint.record_failure(at(9), silently=True)

    assert (endpoint.failures, endpoint.failing_since, endpoint.failed_at) == (2, at(1), at(9))
    assert endpoint.failed_silently


def test_endpoint_is_restarting_after_two_disappearances_until_it_has_served_continuously() -> None:
    endpoint = an_endpoint()
    endpoint.readied_at = at(0)
    endpoint.record_state(at(1), out=True, gone=False)
    for second, gone in ((2, True), (3, True), (5, False), (10, True)):
        endpoint.record_state(at(second), out=gone, gone=gone)
        assert endpoint.restarts(at(second)) == (2 if second == 10 else 0)
    assert not endpoint.is_steady(at(11))
    endpoint.record_state(at(12), out=False, gone=False)
    assert not endpoint.is_steady(at(13))
    assert endpoint.is_steady(at(12) + duration(15))
    endpoint.record_state(at(125), out=False, gone=False)
    assert endpoint.restarts(at(125)) == 0


def test_endpoint_that_never_served_is_not_restarting() -> None:
    endpoint = an_endpoint()
    for second in range(1, 9):
        endpoint.record_state(at(second), out=second % 2 == 1, gone=second % 2 == 1)

    assert endpoint.restarts(at(9)) == 0


SPEED = EngineSpeed(step_ps=20_000_000_000, decode_sequence_ps=0, kv_token_ps=0, prefill_token_ps=50_000_000)


def test_pace_is_relative_to_the_load() -> None:
    endpoint = an_endpoint()
    endpoint.decoding = 10
    for second in range(1, 4):
        endpoint.tokens = 250
        endpoint.update_pace(SPEED, 100, 0, at(second))

    assert endpoint.tpot_ns == duration(0.04)
    assert endpoint.pace_percent == 200


def test_prefill_explains_slower_tokens() -> None:
    endpoint = an_endpoint()
    endpoint.decoding, endpoint.tokens, endpoint.prompt_tokens = 10, 250, 20_000
    endpoint.update_pace(SPEED, 50, 0, at(1))

    assert endpoint.pace_percent == 100


def test_long_contexts_explain_slower_tokens() -> None:
    endpoint = an_endpoint()
    endpoint.decoding, endpoint.tokens, endpoint.decoding_tokens = 10, 250, 19_000
    endpoint.update_pace(replace(SPEED, kv_token_ps=1_000_000), 100, 200, at(1))

    assert endpoint.pace_percent == 100


def test_endpoint_pace_is_compared_with_its_own_usual_pace() -> None:
    endpoint = an_endpoint()
    assert endpoint.slower_percent is None
    endpoint.pace_percent = 500
    assert endpoint.slower_percent is None
    for _ in range(10):
        endpoint.pace_baseline.add(250)

    assert endpoint.slower_percent == 200


def test_slow_endpoint_is_still_measured_when_it_produces_few_tokens() -> None:
    endpoint = an_endpoint()
    endpoint.decoding = 2
    for _ in range(10):
        endpoint.pace_baseline.add(100)
    for second in range(1, 4):
        endpoint.tokens = 15
        endpoint.update_pace(SPEED, 100, 0, at(second))
    assert endpoint.slower_percent is not None
    assert endpoint.slower_percent > 500
    for second in range(4, 10):
        endpoint.tokens = 3
        endpoint.update_pace(SPEED, 100, 0, at(second))
        assert endpoint.pace_percent is not None
    for second in range(10, 17):
        endpoint.update_pace(SPEED, 100, 0, at(second))

    assert endpoint.pace_percent is None


def test_outlier_pace_slowly_becomes_normal() -> None:
    endpoint = an_endpoint()
    endpoint.learn()
    endpoint.pace_percent = 100
    for _ in range(10):
        endpoint.learn()
    endpoint.pace_percent = 600
    for _ in range(60):
        endpoint.learn()

    assert endpoint.slower_percent is not None
    assert endpoint.slower_percent > 300


def test_prompts_sent_after_the_last_token_do_not_explain_silence() -> None:
    endpoint = an_endpoint()
    endpoint.record_sent(at(1))
    endpoint.pending_prefill_ns = 5
    endpoint.update_pace(SPEED, 100, 0, at(2))
    endpoint.pending_prefill_ns = 500
    endpoint.update_pace(SPEED, 100, 0, at(3))
    assert endpoint.pending_prefill_at_progress_ns == 5
    endpoint.last_progress_at = at(3)
    endpoint.update_pace(SPEED, 100, 0, at(4))

    assert endpoint.pending_prefill_at_progress_ns == 500


def test_pace_is_unknown_with_too_few_tokens() -> None:
    endpoint = an_endpoint()
    endpoint.decoding, endpoint.tokens = 1, 10
    endpoint.update_pace(EngineSpeed(), 100, 0, at(1))
    assert endpoint.pace_percent is None
    idle = an_endpoint()
    idle.tokens = 100
    idle.update_pace(EngineSpeed(), 100, 0, at(1))
    assert idle.tpot_ns is None
