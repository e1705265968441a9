"""Calibrates an engine profile by fitting the five time parameters of a step to measured token times.

The inputs are all requests to an engine (later requests are load for earlier ones) and the measured times of the first
responses. The requests are replayed in the simulated engine, and the parameters are adjusted until the simulated times
of the same responses match. No other measured times are used, so the calibrated engine's times for later requests are
predictions.

The fit compares individual requests, not percentiles: the logarithms of the ratios of TTFT, time per output token and
end-to-end latency. TTFT has the lowest weight, because it depends on when during a step the request arrives, which is
random. Differences beyond a few percent count linearly instead of squared, so that a few requests that took a different
path, for example through a preemption, do not dominate.

Some parameters are hard to distinguish in a single run: while the batch is full, only the total duration of a step is
visible. A weak regularization toward the first guess keeps such parameters plausible.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import copysign, exp, log, sqrt
from statistics import mean, median
from typing import Final

from headgate.model.engine_profile import EngineProfile
from headgate.planning.accuracy import e2e_s, tpot_s, ttft_s
from headgate.planning.engine_replay import RunRequest, TokenTimes, replay
from headgate.planning.least_squares import Point, minimize

PARAMETERS: Final = ("step_ps", "prefill_token_ps", "decode_sequence_ps", "kv_token_ps", "attention_ps")
"""Fitted parameters, which the documentation calls a, bp, bd, c and q."""
REQUESTS_MIN: Final = 20
TRIALS_MAX: Final = 300
TTFT_WEIGHT: Final = 0.2
"""Weight of TTFT differences relative to differences in time per output token and end-to-end latency."""
HUBER_DELTA: Final = 0.03
PRIOR_WEIGHT: Final = 0.02
"""Weight of the regularization. A parameter that differs from the first guess by a factor of e counts as much as one
request with this error.
"""
ATTENTION_RATIO: Final = 3e-5
"""First guess for the time per pair of prompt tokens relative to the time per token.

At 67,000 tokens, attention takes as long as everything else.
"""
PS_PER_S: Final = 1_000_000_000_000


class CalibrationError(ValueError):
    """The recorded run cannot be used for calibration. The message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Calibration:
    profile: EngineProfile
    squared_error: float
    """Remaining sum of squared differences."""


def calibrate(
    profile: EngineProfile,
    requests: Sequence[RunRequest],
    token_times: Sequence[TokenTimes],
    *,
    on_round: Callable[[Calibration], None] = lambda _: None,
) -> Calibration:
    """Fits the profile. `token_times` are the responses to the first demands. `on_round` is called after each round."""
    _check(profile, requests, token_times)
    guess = initial_profile(profile, requests, token_times)
    told = list(zip(requests, token_times, strict=False))

    def residuals(point: Point) -> list[float]:
        made = replay(_scaled(guess, point), requests, count=len(token_times))
        found = [
            each
            for (demand, answer), own in zip(told, made, strict=True)
            for each in _differences(demand, measured=answer, made=own)
        ]
        return found + [PRIOR_WEIGHT * each for each in point]

    calibration = Calibration(guess, 0.0)
    for best in minimize(residuals, (0.0,) * len(PARAMETERS), trials_max=TRIALS_MAX):
        calibration = Calibration(_scaled(guess, best.point), best.squared_error)
        on_round(calibration)
    return calibration


def initial_profile(
    profile: EngineProfile, demands: Sequence[RunRequest], answers: Sequence[TokenTimes]
) -> EngineProfile:
    """Initial estimate from the median time per token and from the first request, which ran alone on the engine."""
    told = list(zip(demands, answers, strict=False))
    step_s = median(tpot_s(*each) for each in told if each[0].output_tokens > 1)
    tokens = mean(each.prompt_tokens + each.output_tokens / 2 for each in demands)
    batch = max(1.0, min(profile.sequences_max, len(demands), profile.kv_blocks * profile.block_tokens / tokens))
    prompt, prompt_s = demands[0].prompt_tokens, ttft_s(*told[0])
    token_ps = _ps(max(prompt_s - step_s / 2, prompt_s / 4) / prompt)
    # Assume that reading the weights takes half of a step, and reading the KV cache a third.
    return replace(
        profile,
        step_ps=_ps(step_s / 2),
        decode_sequence_ps=_ps(step_s / 6 / batch),
        kv_token_ps=_ps(step_s / 3 / (batch * tokens)),
        prefill_token_ps=token_ps,
        attention_ps=max(1, round(ATTENTION_RATIO * token_ps)),
    )


def _check(profile: EngineProfile, demands: Sequence[RunRequest], answers: Sequence[TokenTimes]) -> None:
    if len(answers) < REQUESTS_MIN:
        raise CalibrationError(f"{len(answers)} answered requests are too few; record at least {REQUESTS_MIN}")
    if len(answers) > len(demands):
        raise CalibrationError(
            f"{len(answers)} responses exceed {len(demands)} requests; include the request of every response"
        )
    for number, (one, other) in enumerate(pairwise(demands), start=1):
        if other.arrived_at < one.arrived_at:
            raise CalibrationError(
                f"request {number} arrived before request {number - 1}; sort the requests by arrival"
            )
    for number, demand in enumerate(demands):
        if demand.prompt_tokens < 1 or demand.output_tokens < 1:
            raise CalibrationError(
                f"request {number} has no prompt or no output; remove requests that generate nothing"
            )
        if not profile.fits(tokens := demand.prompt_tokens + demand.output_tokens):
            raise CalibrationError(
                f"request {number} has {tokens} tokens and exceeds the KV cache; set kv_blocks to the engine's value"
            )
    for number, (demand, answer) in enumerate(zip(demands, answers, strict=False)):
        later = demand.output_tokens > 1
        if not demand.arrived_at < answer.first_token_at <= answer.last_token_at - later:
            raise CalibrationError(
                f"the times of request {number} are out of order; use one clock for arrivals and tokens"
            )
    if not any(demand.output_tokens > 1 for demand in demands[: len(answers)]):
        raise CalibrationError(
            "no response has more than one token; record longer responses to measure the decode step time"
        )


def _differences(demand: RunRequest, *, measured: TokenTimes, made: TokenTimes) -> Iterator[float]:
    yield _huber(TTFT_WEIGHT * log(ttft_s(demand, made) / ttft_s(demand, measured)))
    yield _huber(log(e2e_s(demand, made) / e2e_s(demand, measured)))
    if demand.output_tokens > 1:
        yield _huber(log(tpot_s(demand, made) / tpot_s(demand, measured)))


def _huber(difference: float) -> float:
    """Square root of the Huber loss, which is quadratic for small differences and linear for large ones."""
    size = abs(difference)
    if size <= HUBER_DELTA:
        return difference
    return copysign(sqrt(HUBER_DELTA * (2 * size - HUBER_DELTA)), difference)


def _scaled(guess: EngineProfile, point: Point) -> EngineProfile:
    """Scales the parameters. `point` contains logarithmic factors, because parameters are positive and differ by orders
    of magnitude.
    """
    return replace(
        guess,
        **{name: max(1, round(getattr(guess, name) * exp(by))) for name, by in zip(PARAMETERS, point, strict=True)},
    )


def _ps(length_s: float) -> int:
    return max(1, round(length_s * PS_PER_S))
