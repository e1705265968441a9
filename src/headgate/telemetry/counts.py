"""What is counted of one class, one pool, one tenant?

Plain integers and histograms; who raises them is said in `meters.py`, who shows them in `prometheus.py`.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from headgate.core.events import AttemptEnding
from headgate.model.fault import Fault
from headgate.model.outcome import FACES, Outcome
from headgate.model.units import BYTES_PER_TOKEN, Duration
from headgate.ports.fleet import Phase
from headgate.telemetry.histogram import BATCH, LATENCY, Histogram

MEDIUM_TOKENS: Final = 1_000
LARGE_TOKENS: Final = 8_000
"""From so many prompt tokens on a request is of this size, by the length of its text."""
_MEDIUM_BYTES: Final = MEDIUM_TOKENS * BYTES_PER_TOKEN
_LARGE_BYTES: Final = LARGE_TOKENS * BYTES_PER_TOKEN


class Size(IntEnum):
    SMALL = 0
    MEDIUM = 1
    LARGE = 2


def size_of(prompt_bytes: int) -> Size:
    if prompt_bytes < _MEDIUM_BYTES:
        return Size.SMALL
    return Size.MEDIUM if prompt_bytes < _LARGE_BYTES else Size.LARGE


class Objective(StrEnum):
    TTFT = "ttft"
    """Of streams, that the first token comes within the class's target."""
    DURATION = "duration"
    """Of requests that completed, that they took no longer."""
    SERVED = "served"
    """Of requests that were no doing of the caller's, that they completed."""


NOT_SERVED: Final = frozenset(
    {Outcome.QUEUE_FULL, Outcome.UNREACHABLE, Outcome.SHED, Outcome.NO_ENDPOINTS, Outcome.DRAINING, Outcome.EXPIRED}
    | {Outcome.TOO_LATE, Outcome.EVICTED, Outcome.ENGINE_FAILED, Outcome.ENGINE_SILENT, Outcome.UNVERIFIED}
    | {Outcome.GATEWAY_FAILED}
)
"""Endings that break the promise to serve. All others but completion are the caller's own doing, or its limits."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What each request of a class is measured by."""

    ttft_ns: Duration | None = None
    tpot_ns: Duration | None = None
    duration_ns: Duration | None = None


class ClassMeter:
    __slots__ = (
        "admitted",
        "asked",
        "between_tokens",
        "degraded",
        "good",
        "nano_usd",
        "objective_good",
        "objective_requests",
        "output_tokens",
        "prompt_tokens",
        "requests",
        "targets",
        "to_first_token",
        "total",
        "useful_output_tokens",
        "useful_prompt_tokens",
        "wait",
    )

    def __init__(self) -> None:
        self.targets = Targets()
        self.requests = dict.fromkeys(Outcome, 0)
        self.asked = 0
        """Arrived, whatever became of it."""
        self.admitted = 0
        self.degraded = 0
        """Sent at a level of the ladder, or to another model than was asked for."""
        self.good = 0
        """Completed within every target."""
        self.prompt_tokens = self.output_tokens = 0
        self.useful_prompt_tokens = self.useful_output_tokens = 0
        self.nano_usd = 0
        self.objective_requests = dict.fromkeys(Objective, 0)
        self.objective_good = dict.fromkeys(Objective, 0)
        self.wait = Histogram(LATENCY)
        """In our queue, before the first attempt."""
        self.to_first_token = tuple(Histogram(LATENCY) for _ in Size)
        """From arrival to the first token of a stream, by size."""
        self.between_tokens = Histogram(LATENCY)
        """Each token after the first, by the mean of the report it came in."""
        self.total = tuple(Histogram(LATENCY) for _ in Size)
        """From arrival to the end of requests that completed, by size."""

    def first_token(self, size: Size, took_ns: int) -> None:
        self.to_first_token[size].add(took_ns)
        target_ns = self.targets.ttft_ns
        if target_ns is not None:
            self._judge(Objective.TTFT, kept=took_ns <= target_ns)

    def completed(self, size: Size, took_ns: int) -> None:
        self.total[size].add(took_ns)
        target_ns = self.targets.duration_ns
        if target_ns is not None:
            self._judge(Objective.DURATION, kept=took_ns <= target_ns)

    def unserved(self) -> None:
        """A stream ended without a first token, and not by its caller's doing."""
        if self.targets.ttft_ns is not None:
            self._judge(Objective.TTFT, kept=False)

    def _judge(self, objective: Objective, *, kept: bool) -> None:
        self.objective_requests[objective] += 1
        if kept:
            self.objective_good[objective] += 1

    def figures(self) -> dict[str, object]:
        return {
            "ended": {outcome.value: count for outcome, count in self.requests.items() if count},
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "queue_wait": self.wait.counts,
            "time_to_first_token": _together(self.to_first_token),
            "inter_token_latency": self.between_tokens.counts,
            "duration": _together(self.total),
        }


class PoolMeter:
    __slots__ = (
        "batch_size",
        "batch_wait",
        "disbelieved",
        "drains",
        "ejections",
        "endings",
        "faults",
        "hedges",
        "retries",
        "starts",
        "warmings",
    )

    def __init__(self) -> None:
        self.batch_size = Histogram(BATCH)
        """Inputs in each call to an engine, where requests are asked together."""
        self.batch_wait = Histogram()
        """How long each request waited for company."""
        self.starts = {phase: Histogram() for phase in Phase}
        """How long endpoints were in each phase of their start."""
        self.warmings = Histogram()
        """How long endpoints were known before they served, whoever started them."""
        self.drains = Histogram()
        """How long endpoints that were given up still had attempts."""
        self.endings = dict.fromkeys(AttemptEnding, 0)
        self.faults = dict.fromkeys(Fault, 0)
        self.disbelieved = 0
        """Attempts whose engine reported impossible usage."""
        self.retries = 0
        self.hedges = 0
        self.ejections = 0


class Ended(StrEnum):
    """How a tenant's requests end, roughly: by the status that its caller sees."""

    COMPLETED = "completed"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


def _ended(outcome: Outcome) -> Ended:
    if outcome in (Outcome.COMPLETED, Outcome.CANCELLED):
        return Ended(outcome.value)
    return Ended.FAILED if FACES[outcome].status >= 500 else Ended.REFUSED


ENDED: Final = {outcome: _ended(outcome) for outcome in Outcome}


class TenantMeter:
    __slots__ = ("nano_usd", "output_tokens", "prompt_tokens", "requests")

    def __init__(self) -> None:
        self.requests = dict.fromkeys(Ended, 0)
        self.prompt_tokens = self.output_tokens = 0
        self.nano_usd = 0
        """Of the attempts that it pays for."""


def _together(histograms: tuple[Histogram, ...]) -> list[int]:
    return [sum(counts) for counts in zip(*(each.counts for each in histograms), strict=True)]
