"""Calibration recovers engine parameters from response times and rejects unusable recordings."""

from dataclasses import replace

import pytest

from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B
from headgate.model.units import Instant
from headgate.planning.accuracy import latency_stats, mean_error, relative_errors
from headgate.planning.calibration import REQUESTS_MIN, Calibration, CalibrationError, calibrate, initial_profile
from headgate.planning.engine_replay import RunRequest, TokenTimes, replay
from tests.planning.workload import demands

DEMANDS = demands(150)
TRUE = replace(RTXPRO6000_LLAMA_8B, sequences_max=64)
UNKNOWN = replace(TRUE, step_ps=1, prefill_token_ps=0, decode_sequence_ps=0, kv_token_ps=0, attention_ps=0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_calibration_recovers_parameters_from_the_first_responses(asynchronous: bool) -> None:
    answers = replay(replace(TRUE, async_scheduling=asynchronous), DEMANDS)

    found = calibrate(replace(UNKNOWN, async_scheduling=asynchronous), DEMANDS, answers[:60]).profile

    assert found.step_ps == pytest.approx(TRUE.step_ps, rel=0.03)
    # Without extremes in the run, the other parameters can compensate for each other, but the time for a full prefill
    # chunk and the time for a decode step with a full batch are determined.
    assert found.prefill_ps(1_000, computed=0) == pytest.approx(TRUE.prefill_ps(1_000, computed=0), rel=0.05)
    assert found.decode_ps(40, kv_tokens=30_000) == pytest.approx(TRUE.decode_ps(40, kv_tokens=30_000), rel=0.05)
    measured, made = answers[60:], replay(found, DEMANDS)[60:]
    assert mean_error(relative_errors(latency_stats(DEMANDS[60:], measured), latency_stats(DEMANDS[60:], made))) < 0.03


def test_calibration_changes_only_the_five_times() -> None:
    found = calibrate(UNKNOWN, DEMANDS[:40], replay(TRUE, DEMANDS[:40])).profile

    times = ("step_ps", "prefill_token_ps", "decode_sequence_ps", "kv_token_ps", "attention_ps")
    assert replace(found, **{name: getattr(UNKNOWN, name) for name in times}) == UNKNOWN
    assert all(getattr(found, name) > 0 for name in times)


def test_calibration_is_deterministic_and_no_round_is_worse() -> None:
    answers = replay(TRUE, DEMANDS[:40])
    told: list[Calibration] = []

    one = calibrate(UNKNOWN, DEMANDS[:40], answers, on_round=told.append)
    other = calibrate(UNKNOWN, DEMANDS[:40], answers)

    assert one == other == told[-1]
    assert [each.squared_error for each in told] == sorted((each.squared_error for each in told), reverse=True)


def test_first_guess_is_within_a_factor_of_four() -> None:
    guess = initial_profile(UNKNOWN, DEMANDS, replay(TRUE, DEMANDS)[:60])

    assert TRUE.step_ps / 4 < guess.step_ps < TRUE.step_ps * 4
    assert TRUE.prefill_token_ps / 4 < guess.prefill_token_ps < TRUE.prefill_token_ps * 4


ANSWERS = replay(TRUE, DEMANDS[:30])
ONE_TOKEN = [replace(each, output_tokens=1) for each in DEMANDS[:30]]


@pytest.mark.parametrize(
    ("asked", "answered", "complaint"),
    [
        (DEMANDS, ANSWERS[: REQUESTS_MIN - 1], "19 answered requests are too few; record at least 20"),
        (DEMANDS[:25], ANSWERS, "30 responses exceed 25 requests; include the request of every response"),
        (
            [*DEMANDS[:2], DEMANDS[0], *DEMANDS[3:]],
            ANSWERS,
            "request 2 arrived before request 1; sort the requests by arrival",
        ),
        (
            [*DEMANDS[:29], RunRequest(DEMANDS[29].arrived_at, prompt_tokens=9, output_tokens=0)],
            ANSWERS,
            "request 29 has no prompt or no output; remove requests that generate nothing",
        ),
        (
            [*DEMANDS[:29], RunRequest(DEMANDS[29].arrived_at, prompt_tokens=600_000, output_tokens=2)],
            ANSWERS,
            "request 29 has 600002 tokens and exceeds the KV cache; set kv_blocks to the engine's value",
        ),
        (
            DEMANDS,
            [*ANSWERS[:7], TokenTimes(Instant(0), Instant(5)), *ANSWERS[8:]],
            "the times of request 7 are out of order; use one clock for arrivals and tokens",
        ),
        (
            DEMANDS,
            [*ANSWERS[:7], replace(ANSWERS[7], last_token_at=ANSWERS[7].first_token_at), *ANSWERS[8:]],
            "the times of request 7 are out of order; use one clock for arrivals and tokens",
        ),
        (
            ONE_TOKEN,
            replay(TRUE, ONE_TOKEN),
            "no response has more than one token; record longer responses to measure the decode step time",
        ),
    ],
)
def test_unusable_recording_is_rejected_with_a_reason(
    asked: list[RunRequest], answered: list[TokenTimes], complaint: str
) -> None:
    with pytest.raises(CalibrationError) as refused:
        calibrate(UNKNOWN, asked, answered)

    assert str(refused.value) == complaint
