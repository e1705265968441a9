"""What part does this process take in its cell, and how well does it reach the others?"""

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.telemetry.page import Family, family, single

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


def cell_metrics(cell: CellFigures) -> Iterator[Family]:
    mode = family("headgate_cell_mode")
    for name in _MODES:
        mode.add((name,), float(name == cell.mode))
    yield mode
    yield single("headgate_cell_leads", cell.leads)
    yield single("headgate_cell_epoch", cell.epoch)
    yield single("headgate_cell_share_of", cell.share_of)
    if cell.leads:
        yield single("headgate_cell_members", cell.members)
        yield single("headgate_cell_members_absent", cell.members_absent)
    yield single("headgate_cell_unacknowledged", cell.unacknowledged)
    yield single("headgate_cell_store_up", cell.store_up)
    yield single("headgate_cell_store_round_trip_seconds", cell.store_round_trip_s)
    yield single("headgate_cell_store_reconnects_total", cell.store_reconnects)
    yield single("headgate_cell_store_timeouts_total", cell.store_timeouts)
    yield single("headgate_cell_entries_passed_over_total", cell.unintelligible)
