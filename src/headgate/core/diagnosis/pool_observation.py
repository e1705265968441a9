"""State of a pool at one moment compared with its baseline.

The observation contains everything that the patterns use, as integers. A mean counts as higher than another only if the
difference is several times its standard error. This prevents findings based on too few or widely varying values.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headgate.core.diagnosis.endpoint_stats import EndpointStats
from headgate.core.diagnosis.window_counts import RECENT_SECONDS, AnswerLengths, WindowCounts
from headgate.core.summary import EndpointSummary
from headgate.model.endpoint import EndpointState
from headgate.model.speed import EngineSpeed
from headgate.model.units import Duration, Instant, PoolName
from headgate.model.verdict import Incident

USUAL_SECONDS_MIN: Final = 15
USUAL_ARRIVALS_MIN: Final = 40
"""Minimum duration of a baseline and minimum number of arrivals in it."""
BACKLOG_LOOKS: Final = 20
ERRORS: Final = 4
"""Number of standard errors by which a mean must differ."""
ANSWER_ERRORS: Final = 5
"""Number of standard errors for response lengths. It is higher because growth is reported even without harm."""


@dataclass(frozen=True, slots=True)
class EndpointObservation:
    """One endpoint: the scheduler's summary of it and what has been observed."""

    summary: EndpointSummary
    stats: EndpointStats
    silent_ns: Duration

    @property
    def serves(self) -> bool:
        return self.summary.state is EndpointState.READY and not self.summary.leaving and not self.summary.drained

    @property
    def is_down(self) -> bool:
        """Whether the endpoint fails its probes, is ejected or is on trial."""
        return self.summary.trouble is not None or self.summary.state in (EndpointState.EJECTED, EndpointState.TRIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolObservation:
    pool: PoolName
    now: Instant
    recent: WindowCounts
    """Counts for the last ten seconds."""
    last_seconds: WindowCounts
    """Counts for the last three seconds."""
    longer_window: WindowCounts
    """Counts for the last twenty seconds."""
    baseline: WindowCounts
    endpoints: Sequence[EndpointObservation]
    queued: int
    """Queued requests of the classes that may use this pool."""
    level: int
    """Degradation level."""
    speed: EngineSpeed
    tpot_ns: Duration | None
    """Strictest time-per-token target in this pool."""
    ttft_ns: Duration | None
    transport_ns: Duration | None
    """Connect time to the endpoints, as reported by the slowest process. None if not reported."""
    transport_usual_ns: Duration | None
    earlier_prompt_tokens: int
    """Mean prompt tokens about half a minute ago. 0 if unknown."""
    reported: Incident | None
    """Incident currently reported. None if the pool is healthy."""
    backlog: int
    """Minimum number of queued requests at the last `BACKLOG_LOOKS` checks. 0 if there were fewer checks."""
    first_look_at: Instant
    """Time of the first check."""
    cold_start_ns: Duration
    """Usual cold start duration of an endpoint in the pool."""
    scales: bool
    """Whether the number of endpoints depends on the load."""
    unsent_reason: str
    """Latest reason why a gateway could not send an attempt. Empty if there is none."""
    overrides_enabled: bool
    """Whether operators can set overrides here (`headgate operate`)."""

    @property
    def has_baseline(self) -> bool:
        """Whether there is a baseline."""
        return self.baseline.seconds >= USUAL_SECONDS_MIN and self.baseline.arrivals >= USUAL_ARRIVALS_MIN

    @property
    def serving(self) -> list[EndpointObservation]:
        return [each for each in self.endpoints if each.serves]

    def baseline_count(self, counted: int) -> int:
        """Converts a baseline count to the count expected in ten seconds."""
        return counted * RECENT_SECONDS // max(1, self.baseline.seconds)


def mean(total: int, count: int) -> int:
    return total // count if count else 0


def clearly_above(
    *,
    total: int,
    count: int,
    usual_total: int,
    usual_squares: int,
    usual_count: int,
    percent: int,
    errors: int = ERRORS,
) -> bool:
    """Returns whether a mean is significantly above `percent` percent of the usual mean."""
    if not count or not usual_count:
        return False
    now, usual = total * 100 // count, usual_total * 100 // usual_count
    if now * 100 <= usual * percent:
        return False
    # Assume a standard deviation of at least half of the mean, because it is underestimated when there are few values.
    variance = max(usual * usual // 4, usual_squares * 10_000 // usual_count - usual * usual)
    return (now - usual) ** 2 * count * usual_count >= errors**2 * variance * (count + usual_count)


def more_than_chance(count: int, usual: int) -> bool:
    """Returns whether the number of arrivals is significantly above the usual number, assuming a Poisson process."""
    return count > usual and (count - usual) ** 2 >= ERRORS**2 * max(1, usual)


def is_longer(late: AnswerLengths, usual: AnswerLengths, percent: int, errors: int) -> bool:
    return clearly_above(
        total=late.tokens,
        count=late.count,
        usual_total=usual.tokens,
        usual_squares=usual.squares,
        usual_count=usual.count,
        percent=percent,
        errors=errors,
    )
