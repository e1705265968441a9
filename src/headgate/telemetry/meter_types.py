"""Counters and histograms for a class, a pool and a tenant.

`meters.py` updates them, and `prometheus.py` renders them.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from headgate.core.events import AttemptEnding
from headgate.model.fault import Fault
from headgate.model.outcome import HTTP_REPLIES, Outcome
from headgate.model.units import BYTES_PER_TOKEN, Duration
from headgate.ports.fleet import Phase
from headgate.telemetry.histogram import BATCH_SIZE_BUCKETS, LATENCY_BUCKETS, Histogram

OTHER: Final = "other"
"""Label of everything that has no metrics of its own."""

MEDIUM_PROMPT_TOKENS: Final = 1_000
LARGE_PROMPT_TOKENS: Final = 8_000
"""A request with at least this many estimated prompt tokens is large.

`MEDIUM_PROMPT_TOKENS` is the minimum for medium.
"""
_MEDIUM_BYTES: Final = MEDIUM_PROMPT_TOKENS * BYTES_PER_TOKEN
_LARGE_BYTES: Final = LARGE_PROMPT_TOKENS * BYTES_PER_TOKEN


class PromptSize(IntEnum):
    SMALL = 0
    MEDIUM = 1
    LARGE = 2


# Looked up once: in Python 3.11, access to a member through its enum takes as long as several function calls.
_SMALL, _MEDIUM, _LARGE = PromptSize


def prompt_size(prompt_bytes: int) -> PromptSize:
    if prompt_bytes < _MEDIUM_BYTES:
        return _SMALL
    return _MEDIUM if prompt_bytes < _LARGE_BYTES else _LARGE


class ObjectiveKind(StrEnum):
    TTFT = "ttft"
    """The first token of a stream arrives within the class's target."""
    DURATION = "duration"
    """A completed request took no longer than its target."""
    AVAILABILITY = "availability"
    """A request completed. Requests that failed because of the client are excluded."""


UNAVAILABLE_OUTCOMES: Final = frozenset(
    {
        Outcome.QUEUE_FULL,
        Outcome.DEADLINE_INFEASIBLE,
        Outcome.SHED,
        Outcome.NO_ENDPOINTS,
        Outcome.DRAINING,
        Outcome.QUEUE_TIMEOUT,
    }
    | {Outcome.DEADLINE_EXCEEDED, Outcome.EVICTED, Outcome.ENGINE_ERROR, Outcome.ENGINE_TIMEOUT, Outcome.KEY_UNVERIFIED}
    | {Outcome.INTERNAL_ERROR}
)
"""Outcomes that violate the availability objective. All other failures are caused by the client or its limits."""


@dataclass(frozen=True, slots=True)
class ClassTargets:
    """Latency targets for each request of a class."""

    ttft_ns: Duration | None = None
    tpot_ns: Duration | None = None
    duration_ns: Duration | None = None
    """Time limit for the whole response in the objective. It does not affect goodput."""
    e2e_ns: Duration | None = None


class ClassMeter:
    __slots__ = (
        "admitted",
        "arrived",
        "degraded",
        "duration",
        "goodput",
        "inter_token_latency",
        "nano_usd",
        "objective_good",
        "objective_requests",
        "output_tokens",
        "prompt_tokens",
        "queue_wait",
        "requests",
        "targets",
        "time_to_first_token",
        "useful_output_tokens",
        "useful_prompt_tokens",
    )

    def __init__(self) -> None:
        self.targets = ClassTargets()
        self.requests = dict.fromkeys(Outcome, 0)
        self.arrived = 0
        """Requests received, regardless of outcome."""
        self.admitted = 0
        self.degraded = 0
        """Requests sent at a degradation level above 0 or to a model other than the one requested."""
        self.goodput = 0
        """Completed requests that met all targets."""
        self.prompt_tokens = self.output_tokens = 0
        self.useful_prompt_tokens = self.useful_output_tokens = 0
        self.nano_usd = 0
        self.objective_requests = dict.fromkeys(ObjectiveKind, 0)
        self.objective_good = dict.fromkeys(ObjectiveKind, 0)
        self.queue_wait = Histogram(LATENCY_BUCKETS)
        """Time in the queue before the first attempt."""
        self.time_to_first_token = tuple(Histogram(LATENCY_BUCKETS) for _ in PromptSize)
        """Time from arrival to the first token of a stream, by prompt size."""
        self.inter_token_latency = Histogram(LATENCY_BUCKETS)
        """Time per output token after the first, averaged over each progress report."""
        self.duration = tuple(Histogram(LATENCY_BUCKETS) for _ in PromptSize)
        """Time from arrival to completion, for completed requests, by prompt size."""

    def record_first_token(self, size: PromptSize, took_ns: int) -> None:
        self.time_to_first_token[size].add(took_ns)
        target_ns = self.targets.ttft_ns
        if target_ns is not None:
            self._count_objective(ObjectiveKind.TTFT, met=took_ns <= target_ns)

    def record_completion(self, size: PromptSize, took_ns: int) -> None:
        self.duration[size].add(took_ns)
        target_ns = self.targets.duration_ns
        if target_ns is not None:
            self._count_objective(ObjectiveKind.DURATION, met=took_ns <= target_ns)

    def record_unserved(self) -> None:
        """Counts a stream that ended without a first token for a reason other than the client."""
        if self.targets.ttft_ns is not None:
            self._count_objective(ObjectiveKind.TTFT, met=False)

    def _count_objective(self, objective: ObjectiveKind, *, met: bool) -> None:
        self.objective_requests[objective] += 1
        if met:
            self.objective_good[objective] += 1

    def snapshot(self) -> dict[str, object]:
        return {
            "ended": {outcome.value: count for outcome, count in self.requests.items() if count},
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "queue_wait": self.queue_wait.counts,
            "time_to_first_token": _merged_counts(self.time_to_first_token),
            "inter_token_latency": self.inter_token_latency.counts,
            "duration": _merged_counts(self.duration),
        }


class PoolMeter:
    __slots__ = (
        "batch_size",
        "batch_wait",
        "drains",
        "ejections",
        "endings",
        "faults",
        "hedges",
        "retries",
        "start_phases",
        "usage_implausible",
        "warmings",
    )

    def __init__(self) -> None:
        self.batch_size = Histogram(BATCH_SIZE_BUCKETS)
        """Number of inputs in each batched engine call."""
        self.batch_wait = Histogram()
        """How long each request waited to be batched."""
        self.start_phases = {phase: Histogram() for phase in Phase}
        """Duration of each phase of an endpoint's start."""
        self.warmings = Histogram()
        """Time endpoints took to become ready after joining or becoming unready."""
        self.drains = Histogram()
        """Time during which draining endpoints still had attempts in flight."""
        self.endings = dict.fromkeys(AttemptEnding, 0)
        self.faults = dict.fromkeys(Fault, 0)
        self.usage_implausible = 0
        """Attempts whose engine reported implausible usage."""
        self.retries = 0
        self.hedges = 0
        self.ejections = 0


class OutcomeGroup(StrEnum):
    """Coarse outcome of a tenant's request, derived from the HTTP status."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    FAILED = "failed"
    CANCELLED = "cancelled"


def _outcome_group(outcome: Outcome) -> OutcomeGroup:
    if outcome in (Outcome.COMPLETED, Outcome.CANCELLED):
        return OutcomeGroup(outcome.value)
    return OutcomeGroup.FAILED if HTTP_REPLIES[outcome].status >= 500 else OutcomeGroup.REJECTED


OUTCOME_GROUPS: Final = {outcome: _outcome_group(outcome) for outcome in Outcome}


class TenantMeter:
    __slots__ = ("nano_usd", "output_tokens", "prompt_tokens", "requests")

    def __init__(self) -> None:
        self.requests = dict.fromkeys(OutcomeGroup, 0)
        self.prompt_tokens = self.output_tokens = 0
        self.nano_usd = 0
        """Cost of the attempts billed to the tenant."""


def _merged_counts(histograms: tuple[Histogram, ...]) -> list[int]:
    return [sum(counts) for counts in zip(*(each.counts for each in histograms), strict=True)]
