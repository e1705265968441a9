"""How much engine time do ServeGen's clients ask for, ten seconds after ten seconds?

Each client's rate of ten minutes, times what one of its requests costs on the mean: by the quantiles of its own
lengths, as `headgate.simulation.workload.servegen` draws them, and by those of all clients where it has none. So the
demand does not only follow the number of requests: who sends them matters.

The unit is the time of an endpoint that does all it can within its targets. Its batch then is as great as the time per
token allows (`full_batch`), and among so many the fixed cost of a step is shared.

Within ten minutes work arrives by chance. Of a client that sends n requests in ten minutes, whose gaps vary by cv² and
whose requests cost m on the mean with variance s², the work of one step of ten seconds (a share f = 1/60) has

    mean n·f·m        variance (1 - f)·(min(n·f·cv², n²·f)·m² + n·f·s²)

(n²·f where all its requests come at once). What those who scale see of a step is drawn from a Gamma distribution with
the mean and variance of all clients together. Requests go with the work as far as the two vary together.

Windows of which less than a tenth of the trace's mean was recorded are outages of the recording, not of the demand
(m-mid and m-small have some, up to four hours long): the ones beside them are taken on a straight line.
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
from headgate.simulation.workload.quantiles import LEVELS, Quantiles
from headgate.simulation.workload.servegen import SHAPE_MIN
from headgate.simulation.workload.servegen_files import (
    WINDOW_S,
    ClientLengths,
    Process,
    TextLengths,
    read_lengths,
    read_rates,
)

STEP_S: Final = 10
STEPS: Final = WINDOW_S // STEP_S
"""In one window."""
TPOT_S: Final = 0.1
TPOT_SHARE: Final = 0.75
"""Of the target of the time per token, a full endpoint takes so much: the scheduler gives it no more, measured over
fixed fleets in overload."""
UNRECORDED_SHARE: Final = 0.1

_POINTS: Final = 4
_CV2_MAX: Final = 1e6
_WEIBULL_SHAPE_MIN: Final = 0.05
"""Below it the variation of the gaps is beyond all bounds that matter."""
_GRID: Final = tuple(
    (low + (high - low) * (point + 0.5) / _POINTS, (high - low) / _POINTS)
    for low, high in pairwise(LEVELS)
    for point in range(_POINTS)
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one request takes of an endpoint."""

    mean_s: float
    variance: float
    own_s: float
    """Of it, what is the request's own: all but its share of the fixed cost of steps."""
    output_tokens: float
    tokens: float
    """What it holds of the KV cache on the mean while it is answered: its prompt and half of its answer."""


@dataclass(frozen=True, slots=True)
class Window:
    """Ten minutes."""

    rate: float
    """Requests a second."""
    work: float
    """Engine-seconds a second: so many endpoints would be kept busy."""
    variance: float
    """Of the work of one step, in engine-seconds squared."""
    together: float
    """Covariance of work and requests of one step."""
    cost: Cost
    """Of the requests of these ten minutes, on the mean."""


@dataclass(frozen=True, slots=True)
class Step:
    """Ten seconds, as those see them who scale."""

    work: float
    """Engine-seconds a second."""
    rate: float
    """Requests a second."""
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
    """In the order of time, none missing."""
    processes, lengths = _read(data, trace)
    costs = _Costs(lengths, profile, _batch(processes, lengths, profile))
    by_start = defaultdict[int, list[Process]](list)
    for process in processes:
        by_start[process.window_s].append(process)
    known = {start: _window(of, costs, keep=keep) for start, of in by_start.items()}
    return _filled(known, last=processes[-1].window_s)


def lengths_batch(data: Path, trace: str, profile: EngineProfile) -> float:
    """The full batch by the lengths of a whole trace."""
    return _batch(*_read(data, trace), profile)


@lru_cache(maxsize=1)
def _read(data: Path, trace: str) -> tuple[Sequence[Process], ClientLengths]:
    traces = data / "traces"
    processes = read_rates(traces / f"servegen_{trace}_rates.csv.gz")
    return processes, ClientLengths(read_lengths(traces / f"servegen_{trace}_lengths.jsonl.gz"), processes)


def _batch(processes: Sequence[Process], lengths: ClientLengths, profile: EngineProfile) -> float:
    return full_batch(profile, ((each.rate, _means(lengths.at(each.client, each.window_s))) for each in processes))


# What a request costs


def full_batch(profile: EngineProfile, requests: Iterable[tuple[float, tuple[float, float]]]) -> float:
    """How many sequences an endpoint decodes at once that does all it can, for requests of so many tokens each.

    Of its time a share a/step goes to the fixed cost of steps and the rest to what is the requests' own (v each), and
    a step takes as long as a token may: the batch is (1 - a/step)·output·step/v, and no more than the engine takes.
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
def _means(texts: TextLengths) -> tuple[float, float]:
    return tuple(sum(mass * tokens for mass, tokens in _points(each)) for each in (texts.prompt, texts.output))


class _Costs:
    """Lengths hold for six hours, so that each is reckoned once."""

    def __init__(self, lengths: ClientLengths, profile: EngineProfile, batch: float) -> None:
        self._lengths = lengths
        self._profile = profile
        self._batch = batch
        self._known: dict[int, Cost] = {}

    def of(self, process: Process) -> Cost:
        texts = self._lengths.at(process.client, process.window_s)
        found = self._known.get(id(texts))
        if found is None:
            found = self._known[id(texts)] = cost_of(texts, self._profile, batch=self._batch)
        return found


def cost_of(texts: TextLengths, profile: EngineProfile, *, batch: float) -> Cost:
    """As `headgate.core.cost` reckons it, over all pairs of a prompt and an answer, which are independent."""
    kv_s = profile.kv_token_ps / 1e12
    shared_s = profile.step_ps / 1e12 / batch
    token_s = profile.decode_sequence_ps / 1e12 + shared_s
    prefill = [(mass, tokens, profile.prefill_ps(tokens, done=0) / 1e12) for mass, tokens in _points(texts.prompt)]
    decode = [(mass, tokens, token_s * tokens + kv_s * tokens * tokens / 2) for mass, tokens in _points(texts.output)]
    prompt, prompt_2, own, own_2, own_prompt = _moments(prefill)
    output, output_2, answer, answer_2, answer_output = _moments(decode)
    mean = own + answer + kv_s * prompt * output
    square = own_2 + answer_2 + kv_s * kv_s * prompt_2 * output_2
    square += 2 * (own * answer + kv_s * output * own_prompt + kv_s * prompt * answer_output)
    return Cost(mean, max(0.0, square - mean * mean), mean - shared_s * output, output, prompt + output / 2)


def _moments(points: Sequence[tuple[float, int, float]]) -> tuple[float, float, float, float, float]:
    """Means of tokens, of their square, of the work, of its square, and of the product of both."""
    return (
        sum(mass * tokens for mass, tokens, _ in points),
        sum(mass * tokens * tokens for mass, tokens, _ in points),
        sum(mass * work for mass, _, work in points),
        sum(mass * work * work for mass, _, work in points),
        sum(mass * work * tokens for mass, tokens, work in points),
    )


def _points(lengths: Quantiles) -> list[tuple[float, int]]:
    return [(mass, lengths.at(level)) for level, mass in _GRID]


# What comes in ten minutes


def _window(processes: Sequence[Process], costs: _Costs, *, keep: float) -> Window:
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


def gaps_cv2(process: Process) -> float:
    """How much the gaps between a client's requests vary: 1 for plain chance."""
    return _cv2(max(process.shape, SHAPE_MIN), is_weibull=process.is_weibull)


@lru_cache(maxsize=200_000)
def _cv2(shape: float, *, is_weibull: bool) -> float:
    if not is_weibull:
        return 1 / shape
    if shape < _WEIBULL_SHAPE_MIN:
        return _CV2_MAX
    return min(_CV2_MAX, gamma(1 + 2 / shape) / gamma(1 + 1 / shape) ** 2 - 1)


def _filled(known: Mapping[int, Window], *, last: int) -> list[Window]:
    """What was not recorded lies on a straight line between what was."""
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
