"""Compares two runs, with confidence intervals.

The requests of each run are divided into blocks, in the order of their scheduled times. Block 1 of one run and block 1
of the other form a pair, and so on. The ratios of the pairs give the interval of a latency, and the differences that of
a share. Requests that are close in time affect each other, so an interval over single requests would be too narrow. If
both runs had the same schedule, the blocks of a pair also had the same requests.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from headgate.loadtest.problem import WorkloadError
from headgate.loadtest.request import LoadTestOutcome, LoadTestRequest
from headgate.simulation.report.confidence import DifferenceInterval, RatioInterval, difference_of, interval_of
from headgate.simulation.report.latency_summary import percentile

BLOCKS: Final = 10
"""Number of blocks per run."""
REQUESTS_MIN: Final = 10 * BLOCKS
"""Minimum number of requests in each run."""
_PERCENTILES: Final = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class RequestSample:
    """Result of one request. Times are in nanoseconds."""

    scheduled_ns: int
    ttft_ns: int | None
    tpot_ns: int | None
    e2e_ns: int | None
    """Total time of a completed request. Latencies cover completed requests only."""
    completed: bool
    good: bool

    @classmethod
    def of(cls, story: LoadTestRequest, *, good: bool) -> "RequestSample":
        if story.outcome is not LoadTestOutcome.COMPLETED:
            return cls(story.scheduled_ns, None, None, None, completed=False, good=False)
        return cls(story.scheduled_ns, story.ttft_ns, story.tpot_ns, story.e2e_ns, completed=True, good=good)


class _Line(msgspec.Struct):
    """Line of a record (`--record`)."""

    scheduled_s: float
    outcome: str
    end_s: float
    output_tokens: int
    good: bool
    first_token_s: float | None = None

    def sample(self) -> RequestSample:
        scheduled_ns = _nanoseconds(self.scheduled_s)
        story = LoadTestRequest(0, 0, 0, 0, scheduled_ns)
        story.outcome, story.end_ns = LoadTestOutcome(self.outcome), _nanoseconds(self.end_s)
        story.output_tokens = self.output_tokens
        story.first_token_ns = None if self.first_token_s is None else _nanoseconds(self.first_token_s)
        return RequestSample.of(story, good=self.good)


def read_samples(path: Path) -> list[RequestSample]:
    """Reads the record of a run. Raises `WorkloadError` if it is not one."""
    decoder = msgspec.json.Decoder(_Line)
    with path.open("rb") as file:
        try:
            return [decoder.decode(line).sample() for line in file if line.strip()]
        except (msgspec.DecodeError, ValueError) as problem:
            raise WorkloadError(f"{path}: {problem}; use a file that --record has written") from None


@dataclass(frozen=True, slots=True)
class MeasureComparison:
    """One measure in both runs. For shares, the interval is that of the difference, otherwise that of the ratio."""

    name: str
    base: float
    other: float
    interval: RatioInterval | DifferenceInterval

    @property
    def is_share(self) -> bool:
        return isinstance(self.interval, DifferenceInterval)

    @property
    def differs(self) -> bool:
        """Whether the interval excludes equality."""
        equal = 0.0 if self.is_share else 1.0
        return not self.interval.low <= equal <= self.interval.high


def compare(base: Sequence[RequestSample], other: Sequence[RequestSample]) -> list[MeasureComparison]:
    """Compares all measures for which both runs have enough values in each block."""
    check_sizes(len(base), len(other))
    runs = (_Run.of(base), _Run.of(other))
    return [*_latencies(*runs), *_shares(*runs)]


def check_sizes(base: int, other: int) -> None:
    if min(base, other) < REQUESTS_MIN:
        raise WorkloadError(
            f"a comparison needs {REQUESTS_MIN} requests in each run, but there are {base} and {other}; "
            "raise --duration or --rate"
        )


@dataclass(frozen=True, slots=True)
class _Run:
    whole: Sequence[RequestSample]
    blocks: Sequence[Sequence[RequestSample]]

    @classmethod
    def of(cls, samples: Sequence[RequestSample]) -> "_Run":
        ordered = sorted(samples, key=lambda sample: sample.scheduled_ns)
        bounds = [len(ordered) * number // BLOCKS for number in range(BLOCKS + 1)]
        return cls(ordered, [ordered[start:end] for start, end in pairwise(bounds)])


_LATENCIES: Final[dict[str, Callable[[RequestSample], int | None]]] = {
    "TTFT": lambda sample: sample.ttft_ns,
    "TPOT": lambda sample: sample.tpot_ns,
    "E2E": lambda sample: sample.e2e_ns,
}
_SHARES: Final[dict[str, Callable[[RequestSample], bool]]] = {
    "good requests": lambda sample: sample.good,
    "failed requests": lambda sample: not sample.completed,
}


def _latencies(base: _Run, other: _Run) -> Iterator[MeasureComparison]:
    for kind, value_of in _LATENCIES.items():
        for percent in _PERCENTILES:
            wholes = [_percentile(run.whole, value_of, percent) for run in (base, other)]
            pairs = [
                [_percentile(block, value_of, percent) for block in blocks]
                for blocks in zip(base.blocks, other.blocks, strict=True)
            ]
            ratios = [second / first for first, second in pairs if first and second]
            if len(ratios) == BLOCKS and wholes[0] and wholes[1]:
                name = f"{kind} p{percent}"
                yield MeasureComparison(name, wholes[0] / 1e9, wholes[1] / 1e9, interval_of(ratios))


def _percentile(
    samples: Sequence[RequestSample], value_of: Callable[[RequestSample], int | None], percent: int
) -> int | None:
    """Returns the percentile, or None if too few values lie beyond it."""
    values = sorted(value for sample in samples if (value := value_of(sample)) is not None)
    return percentile(values, percent) if len(values) * (100 - percent) >= 100 else None


def _shares(base: _Run, other: _Run) -> Iterator[MeasureComparison]:
    for name, has in _SHARES.items():
        differences = [
            _share(after, has) - _share(before, has) for before, after in zip(base.blocks, other.blocks, strict=True)
        ]
        yield MeasureComparison(name, _share(base.whole, has), _share(other.whole, has), difference_of(differences))


def _share(samples: Sequence[RequestSample], has: Callable[[RequestSample], bool]) -> float:
    return sum(map(has, samples)) / len(samples)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
