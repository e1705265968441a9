"""Engine time demanded by ServeGen's clients, in steps of ten seconds.

A client's demand is its request rate in a ten-minute window times the mean cost of its requests. The cost is derived
from the client's length quantiles, as `headgate.simulation.workload.servegen` draws them, or from those of all clients
if the client has none. The demand therefore depends on who sends the requests, not only on their number.

The unit is the time of an endpoint running at full capacity within its targets. Its batch is then as large as the time
per token allows (`full_batch`), and the requests of the batch share the fixed cost of a step.

Within a window, work arrives at random. A client sends n requests per window, with squared coefficient of variation cv²
of the gaps, mean cost m and cost variance s². The work in one step of ten seconds (a fraction f = 1/60) then has

    mean n·f·m        variance (1 - f)·(min(n·f·cv², n²·f)·m² + n·f·s²)

where n²·f is the case in which all requests arrive together. The work that an autoscaler observes in a step is drawn
from a Gamma distribution with the mean and variance of all clients together. The number of requests is derived from the
work through their covariance.

Windows with less than a tenth of the trace's mean rate are gaps in the recording, not in the demand. m-mid and m-small
have some, up to four hours long. They are filled by linear interpolation.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import gamma
from pathlib import Path
from random import Random
from typing import Final

from headgate.model.engine_profile import EngineProfile
from headgate.simulation.workload.quantiles import QUANTILE_LEVELS, Quantiles
from headgate.simulation.workload.servegen import SHAPE_MIN
from headgate.simulation.workload.servegen_files import (
    WINDOW_S,
    ClientLengths,
    ClientWindow,
    LengthQuantiles,
    read_lengths,
    read_rates,
)

STEP_S: Final = 10
STEPS: Final = WINDOW_S // STEP_S
"""Number of steps in a window."""
TPOT_S: Final = 0.1
TPOT_SHARE: Final = 0.75
"""Step time of a full endpoint as a fraction of the TPOT target. Measured with fixed fleets under overload: the
scheduler does not load an endpoint further."""
UNRECORDED_SHARE: Final = 0.1

_POINTS: Final = 4
_CV2_MAX: Final = 1e6
_WEIBULL_SHAPE_MIN: Final = 0.05
"""Smallest Weibull shape for which the variation in the gaps is computed."""
_GRID: Final = tuple(
    (low + (high - low) * (point + 0.5) / _POINTS, (high - low) / _POINTS)
    for low, high in pairwise(QUANTILE_LEVELS)
    for point in range(_POINTS)
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Endpoint capacity that one request uses."""

    mean_s: float
    variance: float
    own_s: float
    """Mean engine time, excluding the share of the fixed step cost, in seconds."""
    output_tokens: float
    tokens: float
    """Mean KV cache usage of a running request, in tokens: its prompt and half of its response."""


@dataclass(frozen=True, slots=True)
class Window:
    """Demand in ten minutes of a trace."""

    rate: float
    """Requests per second."""
    work: float
    """Engine-seconds per second, which is the number of endpoints the demand keeps busy."""
    variance: float
    """Variance of the work in one step, in squared engine-seconds."""
    together: float
    """Covariance of work and requests in one step."""
    cost: Cost
    """Mean cost of the requests in the window."""


@dataclass(frozen=True, slots=True)
class Step:
    """Demand in ten seconds, as an autoscaler observes it."""

    work: float
    """Engine-seconds per second."""
    rate: float
    """Requests per second."""
    window: Window


def demand(windows: Sequence[Window], *, seed: int) -> list[Step]:
    steps: list[Step] = []
    for number, window in enumerate(windows):
        chance = Random(f"{seed} demand {number}")
        mean, variance = window.work * STEP_S, window.variance
        slope = window.together / variance if variance > 0 else 0.0
        for _ in range(STEPS):
            work = chance.gammavariate(mean * mean / variance, variance / mean) if variance > 0 else mean
            requests = max(0.0, window.rate * STEP_S + slope * (work - mean))
            steps.append(Step(work / STEP_S, requests / STEP_S, window))
    return steps


def read_windows(data: Path, trace: str, profile: EngineProfile, *, keep: float = 1.0) -> list[Window]:
    """Read all windows in chronological order and fill the gaps."""
    processes, lengths = _read(data, trace)
    costs = _Costs(lengths, profile, _batch(processes, lengths, profile))
    by_start = defaultdict[int, list[ClientWindow]](list)
    for process in processes:
        by_start[process.window_s].append(process)
    known = {start: _window(of, costs, keep=keep) for start, of in by_start.items()}
    return _filled(known, last=processes[-1].window_s)


def lengths_batch(data: Path, trace: str, profile: EngineProfile) -> float:
    """Full batch size for the lengths in a complete trace."""
    return _batch(*_read(data, trace), profile)


@lru_cache(maxsize=1)
def _read(data: Path, trace: str) -> tuple[Sequence[ClientWindow], ClientLengths]:
    traces = data / "traces"
    processes = read_rates(traces / f"servegen_{trace}_rates.csv.gz")
    return processes, ClientLengths(read_lengths(traces / f"servegen_{trace}_lengths.jsonl.gz"), processes)


def _batch(processes: Sequence[ClientWindow], lengths: ClientLengths, profile: EngineProfile) -> float:
    return full_batch(profile, ((each.rate, _means(lengths.at(each.client, each.window_s))) for each in processes))


# Request costs


def full_batch(profile: EngineProfile, requests: Iterable[tuple[float, tuple[float, float]]]) -> float:
    """Number of sequences that a fully loaded endpoint decodes at the same time.

    The fixed cost a takes a fraction a/step of the time, and the requests (v each) take the rest. A step takes as long
    as the TPOT target allows. The batch size is (1 - a/step)·output·step/v, capped at the engine's maximum.
    """
    weight = prompt = output = 0.0
    for rate, (prompt_tokens, output_tokens) in requests:
        weight += rate
        prompt += rate * prompt_tokens
        output += rate * output_tokens
    prompt, output = prompt / weight, output / weight
    own_s = profile.prefill_token_ps * prompt + output * _token_ps(profile, prompt, output)
    step_s = TPOT_SHARE * TPOT_S
    fixed_s = profile.step_ps / 1e12
    return min(float(profile.sequences_max), (1 - fixed_s / step_s) * output * step_s / (own_s / 1e12))


def _token_ps(profile: EngineProfile, prompt: float, output: float) -> float:
    return profile.decode_sequence_ps + profile.kv_token_ps * (prompt + output / 2)


@lru_cache(maxsize=10_000)
def _means(texts: LengthQuantiles) -> tuple[float, float]:
    return tuple(sum(mass * tokens for mass, tokens in _points(each)) for each in (texts.prompt, texts.output))


class _Costs:
    """Cache of request costs. Lengths are constant for six hours, so each cost is computed once."""

    def __init__(self, lengths: ClientLengths, profile: EngineProfile, batch: float) -> None:
        self._lengths = lengths
        self._profile = profile
        self._batch = batch
        self._known: dict[int, Cost] = {}

    def of(self, process: ClientWindow) -> Cost:
        texts = self._lengths.at(process.client, process.window_s)
        found = self._known.get(id(texts))
        if found is None:
            found = self._known[id(texts)] = cost_of(texts, self._profile, batch=self._batch)
        return found


def cost_of(texts: LengthQuantiles, profile: EngineProfile, *, batch: float) -> Cost:
    """Cost as computed by `headgate.core.cost`, over all pairs of independent prompt and response lengths."""
    kv_s = profile.kv_token_ps / 1e12
    shared_s = profile.step_ps / 1e12 / batch
    token_s = profile.decode_sequence_ps / 1e12 + shared_s
    prefill = [(mass, tokens, profile.prefill_ps(tokens, computed=0) / 1e12) for mass, tokens in _points(texts.prompt)]
    decode = [(mass, tokens, token_s * tokens + kv_s * tokens * tokens / 2) for mass, tokens in _points(texts.output)]
    prompt, prompt_2, own, own_2, own_prompt = _moments(prefill)
    output, output_2, answer, answer_2, answer_output = _moments(decode)
    mean = own + answer + kv_s * prompt * output
    square = own_2 + answer_2 + kv_s * kv_s * prompt_2 * output_2
    square += 2 * (own * answer + kv_s * output * own_prompt + kv_s * prompt * answer_output)
    return Cost(mean, max(0.0, square - mean * mean), mean - shared_s * output, output, prompt + output / 2)


def _moments(points: Sequence[tuple[float, int, float]]) -> tuple[float, float, float, float, float]:
    """Means of tokens, tokens squared, work, work squared, and tokens times work."""
    return (
        sum(mass * tokens for mass, tokens, _ in points),
        sum(mass * tokens * tokens for mass, tokens, _ in points),
        sum(mass * work for mass, _, work in points),
        sum(mass * work * work for mass, _, work in points),
        sum(mass * work * tokens for mass, tokens, work in points),
    )


def _points(lengths: Quantiles) -> list[tuple[float, int]]:
    return [(mass, lengths.value_at(level)) for level, mass in _GRID]


# Demand in ten minutes


def _window(processes: Sequence[ClientWindow], costs: _Costs, *, keep: float) -> Window:
    rate = work = variance = together = square = own = output = tokens = 0.0
    for process in processes:
        cost = costs.of(process)
        sent = process.rate * keep
        in_step = sent * STEP_S
        counted = min(in_step * gaps_cv2(process), sent * WINDOW_S * in_step)
        rate += sent
        work += sent * cost.mean_s
        variance += counted * cost.mean_s * cost.mean_s + in_step * cost.variance
        together += counted * cost.mean_s
        square += sent * (cost.variance + cost.mean_s * cost.mean_s)
        own += sent * cost.own_s
        output += sent * cost.output_tokens
        tokens += sent * cost.tokens
    mean = work / rate
    cost = Cost(mean, square / rate - mean * mean, own / rate, output / rate, tokens / rate)
    kept = 1 - STEP_S / WINDOW_S
    return Window(rate, work, variance * kept, together * kept, cost)


def gaps_cv2(process: ClientWindow) -> float:
    """Squared coefficient of variation of the gaps between a client's requests; 1 for a Poisson process."""
    return _cv2(max(process.shape, SHAPE_MIN), is_weibull=process.is_weibull)


@lru_cache(maxsize=200_000)
def _cv2(shape: float, *, is_weibull: bool) -> float:
    if not is_weibull:
        return 1 / shape
    if shape < _WEIBULL_SHAPE_MIN:
        return _CV2_MAX
    return min(_CV2_MAX, gamma(1 + 2 / shape) / gamma(1 + 1 / shape) ** 2 - 1)


def _filled(known: Mapping[int, Window], *, last: int) -> list[Window]:
    """Fill unrecorded windows by linear interpolation between the recorded ones."""
    enough = UNRECORDED_SHARE * sum(each.work for each in known.values()) / len(known)
    recorded = [start for start in sorted(known) if known[start].work >= enough]
    filled: list[Window] = []
    place = 0
    for start in range(0, last + WINDOW_S, WINDOW_S):
        while place < len(recorded) - 1 and recorded[place] < start:
            place += 1
        before, after = recorded[max(0, place - 1)], recorded[place]
        share = (start - before) / (after - before) if before < start < after else 1.0
        filled.append(known[after] if share == 1.0 else _between(known[before], known[after], share))
    return filled


def _between(left: Window, right: Window, share: float) -> Window:
    return replace(
        right,
        rate=left.rate + share * (right.rate - left.rate),
        work=left.work + share * (right.work - left.work),
        variance=left.variance + share * (right.variance - left.variance),
        together=left.together + share * (right.together - left.together),
    )
