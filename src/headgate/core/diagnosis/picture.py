"""What does a pool look like at one moment, beside what is usual?

All that patterns are recognised by, in whole numbers. Means carry how sure they are: a mean of few, or of things that
differ much, is above another only if it is so by several times its own error.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headgate.core.diagnosis.endpoint_seen import EndpointSeen
from headgate.core.diagnosis.seconds_seen import LATE_SECONDS, Lengths, Seen
from headgate.core.summary import EndpointSummary
from headgate.model.endpoint import EndpointState
from headgate.model.speed import EngineSpeed
from headgate.model.units import Duration, Instant, PoolName
from headgate.model.verdict import Incident

USUAL_SECONDS_MIN: Final = 15
USUAL_ARRIVALS_MIN: Final = 40
"""With less than these nothing counts as usual."""
BACKLOG_LOOKS: Final = 20
ERRORS: Final = 4
"""By so many times its error a mean must differ."""
ANSWER_ERRORS: Final = 5
"""The same of answers: that they have grown is told even where nobody complains."""


@dataclass(frozen=True, slots=True)
class EndpointLook:
    """One endpoint, by the scheduler's picture and by what was seen of it."""

    summary: EndpointSummary
    seen: EndpointSeen
    silent_ns: Duration

    @property
    def serves(self) -> bool:
        return self.summary.state is EndpointState.READY and not self.summary.leaving and not self.summary.drained

    @property
    def out(self) -> bool:
        """Whether it fails its probes, is ejected or on trial."""
        return self.summary.trouble is not None or self.summary.state in (EndpointState.EJECTED, EndpointState.TRIAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    pool: PoolName
    now: Instant
    late: Seen
    """The last ten seconds."""
    latest: Seen
    """The last three seconds."""
    later: Seen
    """The last twenty."""
    usual: Seen
    endpoints: Sequence[EndpointLook]
    queued: int
    """Requests that wait in classes that may use this pool."""
    level: int
    """Of the ladder."""
    speed: EngineSpeed
    tpot_ns: Duration | None
    """The strictest that is promised at this pool."""
    ttft_ns: Duration | None
    transport_ns: Duration | None
    """To connect to its endpoints, by the worst process; None where nobody tells."""
    transport_usual_ns: Duration | None
    prompts_before: int
    """The mean prompt about half a minute ago; 0 where nobody knows."""
    told: Incident | None
    """What is being told of it; None where all is well."""
    backlog: int
    """The smallest number of queued requests at any of the last `BACKLOG_LOOKS` looks; 0 if there were fewer looks."""
    began: Instant
    """The time of the first look."""
    cold_start_ns: Duration
    """The usual start time of an endpoint of the pool."""
    unsent_why: str
    """The reason why a gateway last could not send an attempt; empty if that has not happened."""
    operable: bool
    """Whether operators can give orders here (`headgate operate`)."""

    @property
    def known(self) -> bool:
        """Whether enough has been seen to say what is usual."""
        return self.usual.seconds >= USUAL_SECONDS_MIN and self.usual.arrivals >= USUAL_ARRIVALS_MIN

    @property
    def serving(self) -> list[EndpointLook]:
        return [each for each in self.endpoints if each.serves]

    def usually(self, counted: int) -> int:
        """Of what was counted as usual, what comes within ten seconds."""
        return counted * LATE_SECONDS // max(1, self.usual.seconds)


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
    """Whether a mean is above so many percent of the usual one, and not by chance."""
    if not count or not usual_count:
        return False
    now, usual = total * 100 // count, usual_total * 100 // usual_count
    if now * 100 <= usual * percent:
        return False
    # Lengths differ by half of their mean at least; of few the variance is underestimated.
    variance = max(usual * usual // 4, usual_squares * 10_000 // usual_count - usual * usual)
    return (now - usual) ** 2 * count * usual_count >= errors**2 * variance * (count + usual_count)


def more_than_chance(count: int, usual: int) -> bool:
    """Whether so many arrivals are more than a steady stream of the usual rate brings by chance."""
    return count > usual and (count - usual) ** 2 >= ERRORS**2 * max(1, usual)


def longer(late: Lengths, usual: Lengths, percent: int, errors: int) -> bool:
    return clearly_above(
        total=late.tokens,
        count=late.count,
        usual_total=usual.tokens,
        usual_squares=usual.squares,
        usual_count=usual.count,
        percent=percent,
        errors=errors,
    )
