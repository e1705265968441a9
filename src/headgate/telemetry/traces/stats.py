"""Statistics about traces, as metrics."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from headgate.telemetry.exposition import MetricFamily, family, unlabelled


class KeepReason(StrEnum):
    """Why a trace was kept."""

    REJECTED = "rejected"
    FAILED = "failed"
    SLOW = "slow"
    SAMPLED = "sampled"


class DropReason(StrEnum):
    """Why a trace was not sent."""

    RATE_LIMITED = "rate_limited"
    """The limit on traces per second was exceeded."""
    QUEUE_FULL = "queue_full"
    """Requests ended faster than the tracer processed them."""
    EXPORT_FAILED = "export_failed"
    """The collector rejected the trace or was unreachable for too long."""
    INTERNAL_ERROR = "internal_error"
    """A bug in Headgate prevented the trace from being sent."""


@dataclass(frozen=True, slots=True)
class TraceStats:
    kept: Mapping[KeepReason, int]
    dropped: Mapping[DropReason, int]
    exported: int
    """Number of traces that the collector has accepted."""
    exports_failed: int
    waiting: int
    """Number of kept traces that have not been sent yet."""

    def after_shutdown(self) -> "TraceStats":
        """Final statistics of a tracer that has stopped. Traces that are still waiting count as dropped."""
        lost = self.dropped[DropReason.EXPORT_FAILED] + self.waiting
        return replace(self, dropped={**self.dropped, DropReason.EXPORT_FAILED: lost}, waiting=0)


def sum_stats(all_of: Iterable[TraceStats]) -> TraceStats:
    """Totals across several tracers."""
    kept, dropped = dict.fromkeys(KeepReason, 0), dict.fromkeys(DropReason, 0)
    sent = posts_failed = waiting = 0
    for each in all_of:
        kept = {why: kept[why] + each.kept[why] for why in KeepReason}
        dropped = {why: dropped[why] + each.dropped[why] for why in DropReason}
        sent, posts_failed, waiting = sent + each.exported, posts_failed + each.exports_failed, waiting + each.waiting
    return TraceStats(kept, dropped, sent, posts_failed, waiting)


def trace_metrics(stats: TraceStats) -> Iterator[MetricFamily]:
    kept = family("headgate_traces_kept_total")
    for why in KeepReason:
        kept.add((why,), stats.kept[why])
    yield kept
    dropped = family("headgate_traces_dropped_total")
    for cause in DropReason:
        dropped.add((cause,), stats.dropped[cause])
    yield dropped
    yield unlabelled("headgate_traces_exported_total", stats.exported)
    yield unlabelled("headgate_trace_exports_failed_total", stats.exports_failed)
    yield unlabelled("headgate_traces_waiting", stats.waiting)
