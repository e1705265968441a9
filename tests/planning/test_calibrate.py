"""Are an engine's parameters found again from the times of its answers, and is it said when they cannot be?"""

from dataclasses import replace

import pytest

from headgate.model.engine_profile import RTXPRO6000_LLAMA_8B
from headgate.model.units import Instant
from headgate.planning.accuracy import errors, figures, mean_error
from headgate.planning.answers import Answer, Demand, simulated
from headgate.planning.calibrate import ANSWERS_MIN, Calibration, Unusable, calibrate, first_guess
from tests.planning.workload import demands

DEMANDS = demands(150)
TRUE = replace(RTXPRO6000_LLAMA_8B, sequences_max=64)
UNKNOWN = replace(TRUE, step_ps=1, prefill_token_ps=0, decode_sequence_ps=0, kv_token_ps=0, attention_ps=0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_parameters_are_found_again_from_the_first_answers(asynchronous: bool) -> None:
    answers = simulated(replace(TRUE, asynchronous=asynchronous), DEMANDS)

    found = calibrate(replace(UNKNOWN, asynchronous=asynchronous), DEMANDS, answers[:60]).profile

    assert found.step_ps == pytest.approx(TRUE.step_ps, rel=0.03)
    # Others trade places in a run that has no extremes: what a whole chunk and a whole batch take is known.
    assert found.prefill_ps(1_000, done=0) == pytest.approx(TRUE.prefill_ps(1_000, done=0), rel=0.05)
    assert found.decode_ps(40, kv_tokens=30_000) == pytest.approx(TRUE.decode_ps(40, kv_tokens=30_000), rel=0.05)
    measured, made = answers[60:], simulated(found, DEMANDS)[60:]
    assert mean_error(errors(figures(DEMANDS[60:], measured), figures(DEMANDS[60:], made))) < 0.03


def test_only_the_five_times_are_changed() -> None:
    found = calibrate(UNKNOWN, DEMANDS[:40], simulated(TRUE, DEMANDS[:40])).profile

    times = ("step_ps", "prefill_token_ps", "decode_sequence_ps", "kv_token_ps", "attention_ps")
    assert replace(found, **{name: getattr(UNKNOWN, name) for name in times}) == UNKNOWN
    assert all(getattr(found, name) > 0 for name in times)


def test_the_same_record_gives_the_same_parameters_and_each_round_is_no_worse() -> None:
    answers = simulated(TRUE, DEMANDS[:40])
    told: list[Calibration] = []

    one = calibrate(UNKNOWN, DEMANDS[:40], answers, tell=told.append)
    other = calibrate(UNKNOWN, DEMANDS[:40], answers)

    assert one == other == told[-1]
    assert [each.square for each in told] == sorted((each.square for each in told), reverse=True)


def test_the_first_guess_is_of_the_right_size() -> None:
    guess = first_guess(UNKNOWN, DEMANDS, simulated(TRUE, DEMANDS)[:60])

    assert TRUE.step_ps / 4 < guess.step_ps < TRUE.step_ps * 4
    assert TRUE.prefill_token_ps / 4 < guess.prefill_token_ps < TRUE.prefill_token_ps * 4


ANSWERS = simulated(TRUE, DEMANDS[:30])
ONE_TOKEN = [replace(each, output_tokens=1) for each in DEMANDS[:30]]


@pytest.mark.parametrize(
    ("asked", "answered", "complaint"),
    [
        (DEMANDS, ANSWERS[: ANSWERS_MIN - 1], "19 answered requests tell too little; record at least 20"),
        (DEMANDS[:25], ANSWERS, "there are 30 answers to 25 demands; give the demand of every answer"),
        ([*DEMANDS[:2], DEMANDS[0], *DEMANDS[3:]], ANSWERS, "demand 2 arrived before demand 1; sort them by arrival"),
        (
            [*DEMANDS[:29], Demand(DEMANDS[29].arrived_at, prompt_tokens=9, output_tokens=0)],
            ANSWERS,
            "demand 29 has no prompt or no output; leave out what generates nothing",
        ),
        (
            [*DEMANDS[:29], Demand(DEMANDS[29].arrived_at, prompt_tokens=600_000, output_tokens=2)],
            ANSWERS,
            "demand 29 has 600002 tokens and can never fit; raise kv_blocks to what the engine has",
        ),
        (
            DEMANDS,
            [*ANSWERS[:7], Answer(Instant(0), Instant(5)), *ANSWERS[8:]],
            "request 7 has its tokens out of order; give arrivals and tokens by one clock",
        ),
        (
            DEMANDS,
            [*ANSWERS[:7], replace(ANSWERS[7], last_token_at=ANSWERS[7].first_token_at), *ANSWERS[8:]],
            "request 7 has its tokens out of order; give arrivals and tokens by one clock",
        ),
        (
            ONE_TOKEN,
            simulated(TRUE, ONE_TOKEN),
            "no answered request has a second token; record some, or the time of a decoding step stays unknown",
        ),
    ],
)
def test_a_record_that_cannot_be_used_is_refused_with_a_reason(
    asked: list[Demand], answered: list[Answer], complaint: str
) -> None:
    with pytest.raises(Unusable) as refused:
        calibrate(UNKNOWN, asked, answered)

    assert str(refused.value) == complaint
