"""How fast is this engine? The five times of a step, found from when real requests got their tokens.

Given are what was asked of an engine (all arrivals and lengths, since those who come later are load for those before)
and when it answered the first of these requests. The demands are played into the simulated engine again and again, and
the parameters are moved until its answers to those same requests come at the same times. No other measured time is
looked at, so what the calibrated engine says of the later requests is a prediction.

What is compared are single requests, not percentiles of them: the logarithms of the ratios of time to first token, time
per further token and time to the end. The first of these counts least: where in a step a request arrives is chance, and
that chance is a good part of a short time to first token. Beyond a few percent a difference counts in proportion and
not squared, so that a few requests that went another way (a preemption more or less) do not decide.

A run tells some parameters apart badly: while the batch stays full, a longer step is a longer step, whatever it comes
from. A weak pull towards the first guess keeps such parameters plausible.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import copysign, exp, log, sqrt
from statistics import mean, median
from typing import Final

from headgate.model.engine_profile import EngineProfile
from headgate.planning.accuracy import e2e_s, tpot_s, ttft_s
from headgate.planning.answers import Answer, Demand, simulated
from headgate.planning.least_squares import Point, rounds

PARAMETERS: Final = ("step_ps", "prefill_token_ps", "decode_sequence_ps", "kv_token_ps", "attention_ps")
"""a, bp, bd, c, q."""
ANSWERS_MIN: Final = 20
TRIALS_MAX: Final = 300
TTFT_SHARE: Final = 0.2
"""How much a difference in time to first token counts beside one in time per token or to the end."""
SQUARED_UP_TO: Final = 0.03
PULL: Final = 0.02
"""What a parameter that is e times its first guess counts as: a request whose time is off by so much."""
ATTENTION: Final = 3e-5
"""What a pair of tokens of a prompt takes, beside a token, as a first guess: as much as all else at 67,000 tokens."""
PS: Final = 1_000_000_000_000


class Unusable(ValueError):
    """The record does not allow a calibration; the message says why and what would."""


@dataclass(frozen=True, slots=True)
class Calibration:
    profile: EngineProfile
    square: float
    """The sum of squared differences that is left."""


def calibrate(
    profile: EngineProfile,
    demands: Sequence[Demand],
    answers: Sequence[Answer],
    *,
    tell: Callable[[Calibration], None] = lambda _: None,
) -> Calibration:
    """The profile with its five times fitted. `answers` are those to the first demands; `tell` hears of each round."""
    _check(profile, demands, answers)
    guess = first_guess(profile, demands, answers)
    told = list(zip(demands, answers, strict=False))

    def residuals(point: Point) -> list[float]:
        made = simulated(_scaled(guess, point), demands, first=len(answers))
        found = [
            each
            for (demand, answer), own in zip(told, made, strict=True)
            for each in _differences(demand, measured=answer, made=own)
        ]
        return found + [PULL * each for each in point]

    calibration = Calibration(guess, 0.0)
    for best in rounds(residuals, (0.0,) * len(PARAMETERS), trials_max=TRIALS_MAX):
        calibration = Calibration(_scaled(guess, best.point), best.square)
        tell(calibration)
    return calibration


def first_guess(profile: EngineProfile, demands: Sequence[Demand], answers: Sequence[Answer]) -> EngineProfile:
    """From the typical time per token and from the very first request, which had the engine to itself."""
    told = list(zip(demands, answers, strict=False))
    step_s = median(tpot_s(*each) for each in told if each[0].output_tokens > 1)
    tokens = mean(each.prompt_tokens + each.output_tokens / 2 for each in demands)
    batch = max(1.0, min(profile.sequences_max, len(demands), profile.kv_blocks * profile.block_tokens / tokens))
    prompt, prompt_s = demands[0].prompt_tokens, ttft_s(*told[0])
    token_ps = _ps(max(prompt_s - step_s / 2, prompt_s / 4) / prompt)
    # Half of a step is reading the weights; of the rest, two thirds are reading the KV cache.
    return replace(
        profile,
        step_ps=_ps(step_s / 2),
        decode_sequence_ps=_ps(step_s / 6 / batch),
        kv_token_ps=_ps(step_s / 3 / (batch * tokens)),
        prefill_token_ps=token_ps,
        attention_ps=max(1, round(ATTENTION * token_ps)),
    )


def _check(profile: EngineProfile, demands: Sequence[Demand], answers: Sequence[Answer]) -> None:
    if len(answers) < ANSWERS_MIN:
        raise Unusable(f"{len(answers)} answered requests tell too little; record at least {ANSWERS_MIN}")
    if len(answers) > len(demands):
        raise Unusable(f"there are {len(answers)} answers to {len(demands)} demands; give the demand of every answer")
    for number, (one, other) in enumerate(pairwise(demands), start=1):
        if other.arrived_at < one.arrived_at:
            raise Unusable(f"demand {number} arrived before demand {number - 1}; sort them by arrival")
    for number, demand in enumerate(demands):
        if demand.prompt_tokens < 1 or demand.output_tokens < 1:
            raise Unusable(f"demand {number} has no prompt or no output; leave out what generates nothing")
        if not profile.fits(tokens := demand.prompt_tokens + demand.output_tokens):
            raise Unusable(
                f"demand {number} has {tokens} tokens and can never fit; raise kv_blocks to what the engine has"
            )
    for number, (demand, answer) in enumerate(zip(demands, answers, strict=False)):
        later = demand.output_tokens > 1
        if not demand.arrived_at < answer.first_token_at <= answer.last_token_at - later:
            raise Unusable(f"request {number} has its tokens out of order; give arrivals and tokens by one clock")
    if not any(demand.output_tokens > 1 for demand in demands[: len(answers)]):
        raise Unusable(
            "no answered request has a second token; record some, or the time of a decoding step stays unknown"
        )


def _differences(demand: Demand, *, measured: Answer, made: Answer) -> Iterator[float]:
    yield _robust(TTFT_SHARE * log(ttft_s(demand, made) / ttft_s(demand, measured)))
    yield _robust(log(e2e_s(demand, made) / e2e_s(demand, measured)))
    if demand.output_tokens > 1:
        yield _robust(log(tpot_s(demand, made) / tpot_s(demand, measured)))


def _robust(difference: float) -> float:
    """Huber's: what, squared, is the square of a small difference, and grows in proportion to a great one."""
    size = abs(difference)
    if size <= SQUARED_UP_TO:
        return difference
    return copysign(sqrt(SQUARED_UP_TO * (2 * size - SQUARED_UP_TO)), difference)


def _scaled(guess: EngineProfile, point: Point) -> EngineProfile:
    """Parameters are searched by logarithm: they differ by orders of magnitude, and none is negative."""
    return replace(
        guess,
        **{name: max(1, round(getattr(guess, name) * exp(by))) for name, by in zip(PARAMETERS, point, strict=True)},
    )


def _ps(length_s: float) -> int:
    return max(1, round(length_s * PS))
