"""Catalogue of the metrics of cells (`catalogue.py`)."""

from typing import Final

from headgate.telemetry.metric_definition import counter, gauge

_IN_CELL: Final = "the process is in a [cell](../concepts/cell.md)"
_SHARES: Final = "tenants have [several cells](../guides/several-cells.md) (`cell.share_floor_percent` below 100)"
_RENEWED: Final = "the share controller of [several cells](../guides/several-cells.md) has sent shares to the process"
_LEADS: Final = "the process is its cell's scheduler"

CELL: Final = (
    gauge(
        "headgate_cell_mode",
        "mode",
        "1 for the process's current mode, 0 for all other modes.",
        "`following`: the process follows a scheduler. `island`: the process makes its own decisions within its share. "
        "`seeking`: the process is looking for a scheduler.",
        exposed_when=_IN_CELL,
    ),
    gauge(
        "headgate_cell_is_leader",
        "",
        "1 if the process is its cell's leader, which runs the scheduler, otherwise 0.",
        exposed_when=_IN_CELL,
    ),
    gauge(
        "headgate_cell_epoch",
        "",
        "Epoch of the current scheduler.",
        "Increases each time a new scheduler takes over.",
        exposed_when=_IN_CELL,
    ),
    gauge(
        "headgate_cell_share_divisor",
        "",
        "Divisor N for an island's share, which is 1/N of all slots and limits.",
        exposed_when=_IN_CELL,
    ),
    gauge("headgate_cell_members", "", "Members known to the scheduler.", exposed_when=_LEADS),
    gauge(
        "headgate_cell_members_absent",
        "",
        "Members that are not responding to the scheduler.",
        "The scheduler keeps their shares reserved.",
        exposed_when=_LEADS,
    ),
    gauge(
        "headgate_cell_unacknowledged_messages",
        "",
        "Messages not yet acknowledged by the scheduler.",
        exposed_when=_IN_CELL,
    ),
    gauge("headgate_cell_store_up", "", "1 if the cell's store is responding, otherwise 0.", exposed_when=_IN_CELL),
    gauge(
        "headgate_cell_store_round_trip_seconds",
        "",
        "Slowest round trip to the cell's store in the last two seconds.",
        exposed_when=_IN_CELL,
    ),
    counter("headgate_cell_store_reconnects_total", "", "Reconnections to the cell's store.", exposed_when=_IN_CELL),
    counter(
        "headgate_cell_store_timeouts_total", "", "Timeouts when accessing the cell's store.", exposed_when=_IN_CELL
    ),
    counter(
        "headgate_cell_entries_skipped_total",
        "",
        "Cell entries skipped because this version cannot read them.",
        exposed_when=_IN_CELL,
    ),
    gauge(
        "headgate_cell_share_leases",
        "",
        "Accounts with a leased share of their limits.",
        "0 means that no controller (`headgate cells run`) reaches this process, or that no account has limits.",
        exposed_when=_SHARES,
    ),
    counter(
        "headgate_cell_share_leases_expired_total",
        "",
        "Leased shares that expired because they were not renewed.",
        exposed_when=_SHARES,
    ),
    gauge(
        "headgate_cell_share_leases_lost",
        "",
        "1 if all leased shares of the process have expired, so that it applies the floor, otherwise 0.",
        exposed_when=_SHARES,
    ),
    gauge(
        "headgate_cell_share_renewal_age_seconds",
        "",
        "Time since the leased shares were last renewed.",
        "Normally at most `interval` in `cells.yaml`.",
        exposed_when=_RENEWED,
    ),
)
