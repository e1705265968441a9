"""What becomes of traces?"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headgate.telemetry.page import Family, family, single


class Kept(StrEnum):
    """Why a trace is kept."""

    REFUSED = "refused"
    FAILED = "failed"
    SLOW = "slow"
    SAMPLED = "sampled"


class Dropped(StrEnum):
    """Why a trace that was to be kept, or to be looked at, is not sent."""

    TOO_MANY = "too_many"
    """More were to be kept in a second than may be."""
    BEHIND = "behind"
    """Requests ended faster than they were looked at."""
    COLLECTOR = "collector"
    """The collector would not take it, or was away for too long."""
    MISTAKE = "mistake"
    """We could not make it: a mistake of our own."""


@dataclass(frozen=True, slots=True)
class TraceFigures:
    kept: Mapping[Kept, int]
    dropped: Mapping[Dropped, int]
    sent: int
    """Traces that the collector has taken."""
    posts_failed: int
    waiting: int
    """Traces that are kept and not sent."""

    def in_the_end(self) -> "TraceFigures":
        """As they are when nobody sends what waits any more."""
        lost = self.dropped[Dropped.COLLECTOR] + self.waiting
        return replace(self, dropped={**self.dropped, Dropped.COLLECTOR: lost}, waiting=0)


def together(all_of: Iterable[TraceFigures]) -> TraceFigures:
    """What several who send traces count to."""
    kept, dropped = dict.fromkeys(Kept, 0), dict.fromkeys(Dropped, 0)
    sent = posts_failed = waiting = 0
    for each in all_of:
        kept = {why: kept[why] + each.kept[why] for why in Kept}
        dropped = {why: dropped[why] + each.dropped[why] for why in Dropped}
        sent, posts_failed, waiting = sent + each.sent, posts_failed + each.posts_failed, waiting + each.waiting
    return TraceFigures(kept, dropped, sent, posts_failed, waiting)


def trace_metrics(figures: TraceFigures) -> Iterator[Family]:
    kept = family("headgate_traces_kept_total")
    for why in Kept:
        kept.add((why,), figures.kept[why])
    yield kept
    dropped = family("headgate_traces_dropped_total")
    for cause in Dropped:
        dropped.add((cause,), figures.dropped[cause])
    yield dropped
    yield single("headgate_traces_sent_total", figures.sent)
    yield single("headgate_trace_posts_failed_total", figures.posts_failed)
    yield single("headgate_traces_waiting", figures.waiting)
