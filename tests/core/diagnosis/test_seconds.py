"""Is what happens of late kept apart from what is usual?"""

from dataclasses import replace

import pytest

from headgate.core.diagnosis.endpoint_seen import EndpointSeen
from headgate.core.diagnosis.seconds_seen import (
    BLOCK_SECONDS,
    BLOCKS,
    FIRST_SECONDS,
    KEPT_SECONDS,
    LATE_SECONDS,
    TENANTS_MAX,
    History,
    Seen,
    Shares,
)
from headgate.model.speed import EngineSpeed
from headgate.model.units import ClassName, EndpointId, TenantId
from testing.builders import at, lasting
from tests.core.diagnosis.pictures import POOL


def one_second(history: History, *, arrivals: int = 10, well: bool = True) -> None:
    seen = history.now
    seen.arrivals += arrivals
    seen.tenants.add("acme", arrivals)
    seen.took(ClassName("c"), 1_000)
    seen.of(ClassName("c")).count += 1
    seen.bad_one(ClassName("c"), TenantId("acme"))
    history.close(well=well)


def test_a_second_is_late_first_and_usual_afterwards() -> None:
    history = History()
    for _ in range(FIRST_SECONDS + LATE_SECONDS + 3):
        one_second(history)

    assert history.late().arrivals == 10 * LATE_SECONDS
    assert history.late(KEPT_SECONDS).seconds == KEPT_SECONDS
    assert (history.usual.seconds, history.usual.arrivals) == (3, 30)
    assert history.usual.ttft_by == {"c": (3, 3_000)}
    assert history.usual.answers[ClassName("c")].count == 3


def test_what_happens_while_something_is_wrong_never_becomes_usual() -> None:
    history = History()
    for _ in range(FIRST_SECONDS + LATE_SECONDS):
        one_second(history)
    for _ in range(30):
        one_second(history, well=False)

    assert history.usual.seconds == 0


def test_seconds_before_anybody_asked_are_not_the_first() -> None:
    history = History()
    for _ in range(60):
        history.close(well=True)
    for _ in range(FIRST_SECONDS + LATE_SECONDS):
        one_second(history)

    assert history.usual.seconds == 0


USUAL_SECONDS = BLOCKS * BLOCK_SECONDS


@pytest.mark.parametrize("permille", [300, 1_050, 2_000], ids=lambda each: f"{each / 1000}/s")
def test_what_is_usual_is_right_at_low_rates_for_hours(permille: int) -> None:
    history, due = History(), 0
    for second in range(3 * 3_600):
        due += permille
        count, due = divmod(due, 1_000)
        history.now.arrivals += count
        for _ in range(count):
            history.now.tenants.add("acme", 1)
            history.now.took(ClassName("c"), 1_000)
            lengths = history.now.of(ClassName("c"))
            lengths.count, lengths.tokens = lengths.count + 1, lengths.tokens + 100
        history.now.retries += second % 40 == 0
        history.close(well=True)

    usual = history.usual
    lengths = usual.answers[ClassName("c")]
    assert USUAL_SECONDS - BLOCK_SECONDS <= usual.seconds <= USUAL_SECONDS
    assert abs(usual.arrivals * 1_000 - permille * usual.seconds) <= 1_000
    assert usual.tenants.by_name == {"acme": usual.arrivals}
    assert (lengths.count, lengths.tokens) == (usual.arrivals, 100 * usual.arrivals)
    assert usual.ttft_by == {"c": (usual.arrivals, 1_000 * usual.arrivals)}
    assert abs(usual.retries * 40 - usual.seconds) <= 40


def test_who_has_gone_is_forgotten_within_half_an_hour() -> None:
    history = History()
    history.now.tenants.add("gone", 1)
    history.now.of(ClassName("old")).count += 1
    for _ in range(FIRST_SECONDS + LATE_SECONDS):
        one_second(history)
    history.now.tenants.add("gone", 1)
    history.now.took(ClassName("old"), 1)
    history.now.of(ClassName("old")).count += 1
    for _ in range(USUAL_SECONDS // 2):
        one_second(history)
    assert "gone" in history.usual.tenants.by_name
    for _ in range(USUAL_SECONDS // 2 + LATE_SECONDS):
        one_second(history)

    usual = history.usual
    assert ("gone" in usual.tenants.by_name, "old" in usual.answers, "old" in usual.ttft_by) == (False, False, False)


def test_lengths_that_are_forgotten_are_learned_anew() -> None:
    history = History()
    for _ in range(FIRST_SECONDS + LATE_SECONDS + 50):
        one_second(history)
    history.forget_answers(ClassName("c"))
    history.forget_answers(ClassName("unknown"))
    assert not history.usual.answers
    one_second(history)

    assert (history.usual.answers[ClassName("c")].count, history.usual.seconds) == (1, 51)


def test_of_too_many_names_nothing_is_kept() -> None:
    shares = Shares()
    for number in range(TENANTS_MAX + 5):
        shares.add(str(number), 1)
    shares.add("0", 1)

    assert len(shares.by_name) == TENANTS_MAX
    assert shares.by_name["0"] == 2


def test_bad_and_resolved_add_up() -> None:
    seen = Seen()
    seen.judged, seen.late, seen.slow, seen.refused, seen.missing, seen.failed = 100, 1, 2, 3, 4, 5
    seen.unjudged = 50

    assert (seen.bad, seen.resolved) == (15, 162)


# Endpoints


def an_endpoint() -> EndpointSeen:
    return EndpointSeen(EndpointId("e1"), POOL, at(0))


def test_an_endpoint_is_silent_only_while_streams_are_open() -> None:
    endpoint = an_endpoint()
    assert endpoint.silent_ns(at(5)) == 0
    endpoint.sent(at(5))
    endpoint.sent(at(6))
    assert endpoint.silent_ns(at(8)) == lasting(3)


def test_the_first_failure_of_a_row_is_remembered() -> None:
    endpoint = an_endpoint()
    endpoint.failed(at(1), silently=False)
    endpoint.failed(at(9), silently=True)

    assert (endpoint.failures, endpoint.failing_since, endpoint.failed_at) == (2, at(1), at(9))
    assert endpoint.failed_silently


def test_endpoint_that_went_away_twice_counts_as_restarting_until_it_is_steady() -> None:
    endpoint = an_endpoint()
    endpoint.readied_at = at(0)
    endpoint.note_out(at(1), out=True, gone=False)
    for second, gone in ((2, True), (3, True), (5, False), (10, True)):
        endpoint.note_out(at(second), out=gone, gone=gone)
        assert endpoint.restarts(at(second)) == (2 if second == 10 else 0)
    assert not endpoint.steady(at(11))
    endpoint.note_out(at(12), out=False, gone=False)
    assert not endpoint.steady(at(13))
    assert endpoint.steady(at(12) + lasting(15))
    endpoint.note_out(at(125), out=False, gone=False)
    assert endpoint.restarts(at(125)) == 0


def test_endpoint_that_never_served_does_not_restart() -> None:
    endpoint = an_endpoint()
    for second in range(1, 9):
        endpoint.note_out(at(second), out=second % 2 == 1, gone=second % 2 == 1)

    assert endpoint.restarts(at(9)) == 0


SPEED = EngineSpeed(step_ps=20_000_000_000, decode_sequence_ps=0, kv_token_ps=0, prefill_token_ps=50_000_000)


def test_the_pace_is_measured_against_the_load() -> None:
    endpoint = an_endpoint()
    endpoint.decoding = 10
    for second in range(1, 4):
        endpoint.tokens = 250
        endpoint.look(SPEED, 100, 0, at(second))

    assert endpoint.tpot_ns == lasting(0.04)
    assert endpoint.pace_percent == 200


def test_prompts_that_are_computed_explain_slower_tokens() -> None:
    endpoint = an_endpoint()
    endpoint.decoding, endpoint.tokens, endpoint.prompt_tokens = 10, 250, 20_000
    endpoint.look(SPEED, 50, 0, at(1))

    assert endpoint.pace_percent == 100


def test_long_streams_explain_slower_tokens() -> None:
    endpoint = an_endpoint()
    endpoint.decoding, endpoint.tokens, endpoint.decoding_tokens = 10, 250, 19_000
    endpoint.look(replace(SPEED, kv_token_ps=1_000_000), 100, 200, at(1))

    assert endpoint.pace_percent == 100


def test_an_endpoint_is_compared_with_itself() -> None:
    endpoint = an_endpoint()
    assert endpoint.slower_percent is None
    endpoint.pace_percent = 500
    assert endpoint.slower_percent is None
    for _ in range(10):
        endpoint.pace_usual.add(250)

    assert endpoint.slower_percent == 200


def test_slow_endpoint_is_still_measured_when_it_produces_few_tokens() -> None:
    endpoint = an_endpoint()
    endpoint.decoding = 2
    for _ in range(10):
        endpoint.pace_usual.add(100)
    for second in range(1, 4):
        endpoint.tokens = 15
        endpoint.look(SPEED, 100, 0, at(second))
    assert endpoint.slower_percent is not None
    assert endpoint.slower_percent > 500
    for second in range(4, 10):
        endpoint.tokens = 3
        endpoint.look(SPEED, 100, 0, at(second))
        assert endpoint.pace_percent is not None
    for second in range(10, 17):
        endpoint.look(SPEED, 100, 0, at(second))

    assert endpoint.pace_percent is None


def test_what_is_far_off_becomes_usual_slowly() -> None:
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


def test_prompts_that_came_since_it_was_heard_of_do_not_explain_its_silence() -> None:
    endpoint = an_endpoint()
    endpoint.sent(at(1))
    endpoint.unbegun_ns = 5
    endpoint.look(SPEED, 100, 0, at(2))
    endpoint.unbegun_ns = 500
    endpoint.look(SPEED, 100, 0, at(3))
    assert endpoint.awaited_ns == 5
    endpoint.heard_at = at(3)
    endpoint.look(SPEED, 100, 0, at(4))

    assert endpoint.awaited_ns == 500


def test_of_few_tokens_no_pace_follows() -> None:
    endpoint = an_endpoint()
    endpoint.decoding, endpoint.tokens = 1, 10
    endpoint.look(EngineSpeed(), 100, 0, at(1))
    assert endpoint.pace_percent is None
    idle = an_endpoint()
    idle.tokens = 100
    idle.look(EngineSpeed(), 100, 0, at(1))
    assert idle.tpot_ns is None
