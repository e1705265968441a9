"""Bursts of a calibration sweep, their measured times, and the result of the sweep."""

from dataclasses import dataclass
from enum import StrEnum

from headgate.model.units import Instant
from headgate.planning.accuracy import latency_stats, relative_errors
from headgate.planning.calibration import Calibration
from headgate.planning.engine_replay import RunRequest, TokenTimes


class SweepPhase(StrEnum):
    PROMPTS = "prompt lengths"
    CONCURRENCY = "concurrency"
    CONTEXTS = "long contexts"
    UNSEEN = "unseen load"
    MIXED = "mixed load"


@dataclass(frozen=True, slots=True)
class Burst:
    phase: SweepPhase
    requests: tuple[RunRequest, ...]
    """Requests by arrival, relative to the start of the burst."""


@dataclass(frozen=True, slots=True)
class MeasuredBurst:
    """A burst as it was sent: with the actual arrival times and token counts."""

    requests: tuple[RunRequest, ...]
    token_times: tuple[TokenTimes, ...]

    @property
    def end(self) -> Instant:
        return max(each.last_token_at for each in self.token_times)


@dataclass(frozen=True, slots=True)
class SweepResult:
    calibration: Calibration
    unseen: tuple[MeasuredBurst, MeasuredBurst]
    """The unseen load, sent twice."""
    predicted: tuple[tuple[TokenTimes, ...], ...]
    """Simulated responses to each repetition. Its measured responses are not used."""

    @property
    def unseen_requests(self) -> list[RunRequest]:
        """Requests of all repetitions."""
        return [request for each in self.unseen for request in each.requests]

    @property
    def measured_stats(self) -> dict[str, float]:
        return latency_stats(self.unseen_requests, [times for each in self.unseen for times in each.token_times])

    @property
    def predicted_stats(self) -> dict[str, float]:
        return latency_stats(self.unseen_requests, [times for each in self.predicted for times in each])

    @property
    def repeat_errors(self) -> dict[str, float]:
        """Error of predicting the second repetition with the measured latencies of the first."""
        first, second = (latency_stats(each.requests, each.token_times) for each in self.unseen)
        return relative_errors(second, first)
