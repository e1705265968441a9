"""Cell metrics: the role of this process and its connections to the scheduler and the store."""

from collections.abc import Iterator
from dataclasses import dataclass

from headgate.telemetry.exposition import MetricFamily, family, unlabelled

_MODES = ("seeking", "following", "island")


@dataclass(frozen=True, slots=True)
class CellStats:
    mode: str
    """One of `seeking`, `following` or `island`."""
    is_leader: bool
    epoch: int
    """Epoch of the scheduler that this process follows or runs; 0 until it knows one."""
    share_divisor: int
    """Number of equal shares in the cell. As an island, this process may use one share."""
    members: int
    """Number of gateways that the scheduler expects, if this process is the scheduler; otherwise 0."""
    members_absent: int
    """Number of expected gateways that do not respond and may be islands."""
    unacknowledged_messages: int
    """Number of messages that the scheduler has not acknowledged yet."""
    store_up: bool
    store_round_trip_s: float
    store_reconnects: int
    store_timeouts: int
    entries_skipped: int
    share_leases: int | None = None
    """Number of accounts with a leased share of their limits; None if tenants have only one cell."""
    share_leases_expired: int = 0
    share_leases_lost: bool = False
    """Whether all leases of the process have expired."""
    share_renewal_age_s: float | None = None
    """Time since the leases were last renewed; None if they never were."""


def cell_metrics(cell: CellStats) -> Iterator[MetricFamily]:
    mode = family("headgate_cell_mode")
    for name in _MODES:
        mode.add((name,), float(name == cell.mode))
    yield mode
    yield unlabelled("headgate_cell_is_leader", cell.is_leader)
    yield unlabelled("headgate_cell_epoch", cell.epoch)
    yield unlabelled("headgate_cell_share_divisor", cell.share_divisor)
    if cell.is_leader:
        yield unlabelled("headgate_cell_members", cell.members)
        yield unlabelled("headgate_cell_members_absent", cell.members_absent)
    yield unlabelled("headgate_cell_unacknowledged_messages", cell.unacknowledged_messages)
    yield unlabelled("headgate_cell_store_up", cell.store_up)
    yield unlabelled("headgate_cell_store_round_trip_seconds", cell.store_round_trip_s)
    yield unlabelled("headgate_cell_store_reconnects_total", cell.store_reconnects)
    yield unlabelled("headgate_cell_store_timeouts_total", cell.store_timeouts)
    yield unlabelled("headgate_cell_entries_skipped_total", cell.entries_skipped)
    if cell.share_leases is not None:
        yield unlabelled("headgate_cell_share_leases", cell.share_leases)
        yield unlabelled("headgate_cell_share_leases_expired_total", cell.share_leases_expired)
        yield unlabelled("headgate_cell_share_leases_lost", cell.share_leases_lost)
    if cell.share_renewal_age_s is not None:
        yield unlabelled("headgate_cell_share_renewal_age_seconds", cell.share_renewal_age_s)
