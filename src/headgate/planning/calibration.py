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
from headgate.model.units import Duration
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
    overhead_ns: Duration = Duration(0)
    """Time per request outside the engine's steps, such as network and tokenizer."""


def calibrate(
    profile: EngineProfile,
    requests: Sequence[RunRequest],
    token_times: Sequence[TokenTimes],
    *,
    on_round: Callable[[Calibration], None] = lambda _: None,
) -> Calibration:
    """Fits the profile. `token_times` are the responses to the first demands. `on_round` is called after each round."""
    _check(profile, requests, token_times)
    guess = Calibration(initial_profile(profile, requests, token_times), 0.0)
    return fit(guess, requests, token_times, ttft_weight=TTFT_WEIGHT, trials_max=TRIALS_MAX, on_round=on_round)


def fit(
    guess: Calibration,
    requests: Sequence[RunRequest],
    token_times: Sequence[TokenTimes],
    *,
    ttft_weight: float,
    noise_ns: float = 0.0,
    trials_max: int,
    on_round: Callable[[Calibration], None] = lambda _: None,
) -> Calibration:
    """Improves a first guess. The overhead is fitted only if the guess has one.

    `noise_ns` is the typical error of a measured time, for example because the machine is busy. The shorter a time is
    compared with it, the less it counts.
    """
    told = list(zip(requests, token_times, strict=False))

    def residuals(point: Point) -> list[float]:
        tried = _scaled(guess, point)
        made = replay(tried.profile, requests, count=len(token_times), overhead_ns=tried.overhead_ns)
        found = [
            each
            for (demand, answer), own in zip(told, made, strict=True)
            for each in _differences(demand, measured=answer, made=own, ttft_weight=ttft_weight, noise_ns=noise_ns)
        ]
        return found + [PRIOR_WEIGHT * each for each in point]

    calibration = guess
    start = (0.0,) * (len(PARAMETERS) + (guess.overhead_ns > 0))
    for best in minimize(residuals, start, trials_max=trials_max):
        calibration = replace(_scaled(guess, best.point), squared_error=best.squared_error)
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


def _differences(
    demand: RunRequest, *, measured: TokenTimes, made: TokenTimes, ttft_weight: float, noise_ns: float
) -> Iterator[float]:
    def certainty(length_ns: int) -> float:
        return 1.0 if noise_ns == 0 else length_ns / (length_ns + noise_ns / HUBER_DELTA)

    first_ns, all_ns = measured.first_token_at - demand.arrived_at, measured.last_token_at - demand.arrived_at
    yield _huber(ttft_weight * certainty(first_ns) * log(ttft_s(demand, made) / ttft_s(demand, measured)))
    yield _huber(certainty(all_ns) * log(e2e_s(demand, made) / e2e_s(demand, measured)))
    # A very short response may arrive in one piece.
    if demand.output_tokens > 1 and all_ns > first_ns:
        yield _huber(certainty(all_ns - first_ns) * log(tpot_s(demand, made) / tpot_s(demand, measured)))


def _huber(difference: float) -> float:
    """Square root of the Huber loss, which is quadratic for small differences and linear for large ones."""
    size = abs(difference)
    if size <= HUBER_DELTA:
        return difference
    return copysign(sqrt(HUBER_DELTA * (2 * size - HUBER_DELTA)), difference)


def _scaled(guess: Calibration, point: Point) -> Calibration:
    """Scales the parameters. `point` contains logarithmic factors, because parameters are positive and differ by orders
    of magnitude. The last one is the factor of the overhead, if it is fitted.
    """
    factors = [exp(by) for by in point]
    scaled = {
        name: max(1, round(getattr(guess.profile, name) * by)) for name, by in zip(PARAMETERS, factors, strict=False)
    }
    overhead_ns = round(guess.overhead_ns * factors[-1]) if len(factors) > len(PARAMETERS) else guess.overhead_ns
    return Calibration(replace(guess.profile, **scaled), 0.0, Duration(overhead_ns))


def _ps(length_s: float) -> int:
    return max(1, round(length_s * PS_PER_S))
