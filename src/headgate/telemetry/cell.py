"""What part does this process take in its cell, and how well does it reach the others?"""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_MODES = ("seeking", "following", "island")


@dataclass(frozen=True, slots=True)
class CellFigures:
    mode: str
    """One of seeking, following, island."""
    leads: bool
    epoch: int
    """Of the scheduler that it follows, or is; 0 before it has heard of one."""
    share_of: int
    """Of so many equal parts one is this process's when it decides by itself."""
    members: int
    """Gateways that the scheduler reckons with, told where it is; else 0."""
    members_absent: int
    """Of these, those that do not answer and may be islands."""
    unacknowledged: int
    """Messages that the scheduler has yet to acknowledge."""
    store_up: bool
    store_round_trip_s: float
    store_reconnects: int
    store_timeouts: int
    unintelligible: int


def cell_metrics(cell: CellFigures) -> Iterator[Metric]:
    mode = GaugeMetricFamily("headgate_cell_mode", "Whom this process goes by: 1 for the present.", labels=["mode"])
    for name in _MODES:
        mode.add_metric([name], float(name == cell.mode))
    yield mode
    yield _gauge("headgate_cell_leads", "Whether this process is the scheduler of its cell.", cell.leads)
    yield _gauge("headgate_cell_epoch", "The number of the epoch that it follows.", cell.epoch)
    yield _gauge("headgate_cell_share_of", "Of so many parts one is its own when it decides alone.", cell.share_of)
    if cell.leads:
        yield _gauge("headgate_cell_members", "Gateways of the cell.", cell.members)
        yield _gauge("headgate_cell_members_absent", "Gateways that do not answer.", cell.members_absent)
    yield _gauge("headgate_cell_unacknowledged", "Messages not acknowledged by the scheduler.", cell.unacknowledged)
    yield _gauge("headgate_cell_store_up", "Whether the store of the cell answers.", cell.store_up)
    yield _gauge("headgate_cell_store_round_trip_seconds", "Of the last parcel.", cell.store_round_trip_s)
    yield _counter("headgate_cell_store_reconnects", "Connections made anew.", cell.store_reconnects)
    yield _counter("headgate_cell_store_timeouts", "Answers that did not come in time.", cell.store_timeouts)
    yield _counter("headgate_cell_entries_passed_over", "Entries that could not be read.", cell.unintelligible)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(name, documentation, value=float(value))


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(name, documentation, value=float(value))
