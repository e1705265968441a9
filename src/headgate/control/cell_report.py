"""Cell state as seen by one process, for /status, the console and metrics."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headgate.control.cells.share_leases import ShareLeases
from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.options import CellOptions
from headgate.hosts.cell.protocol.messages import VERSION
from headgate.hosts.cell.protocol.views import MemberPresence
from headgate.model.units import SECOND, Instant
from headgate.telemetry.cell_metrics import CellStats
from headgate.telemetry.live.live_state import CellInfo

if TYPE_CHECKING:
    from headgate.hosts.cell.redis.registry import CellMember


def cell_status(host: CellHost, cell: CellOptions, staged: str | None, now: Instant) -> Mapping[str, object]:
    view, store = host.view(), host.store
    return {
        "name": cell.name,
        "member": host.name,
        "name_problem": host.name_problem,
        "mode": view.mode.value,
        "epoch": None if view.epoch is None else view.epoch.number,
        "scheduler": None if view.epoch is None else view.epoch.id.rpartition("/")[0],
        "leads": view.is_leader,
        "decides": view.is_leader and not view.is_gathering,
        "share": f"{view.share.rank + 1}/{view.share.total}",
        "store": "up" if store.up else "away",
        "store_problem": store.problem,
        "protocol": {"version": VERSION, "lowest_in_cell": view.lowest_version},
        "unacknowledged": view.unacknowledged,
        "members": {
            name: {
                "standing": each.presence.value,
                "policy_hash": each.policy_hash,
                "policy_for_s": round((now - each.policy_since) / SECOND, 1),
                "staged": each.staged_hash or None,
                "protocol": each.version or None,
            }
            for name, each in view.members.items()
        },
        "staged": staged,
    }


def cell_now(host: CellHost, members: "Sequence[CellMember]" = ()) -> CellInfo:
    """Returns the cell state for the console. `members` contains the members whose addresses are known."""
    view = host.view()
    if view.epoch is None:
        return CellInfo(view.mode.value, view.is_leader, None)
    name = view.epoch.id.rpartition("/")[0]
    admin = next((each.admin for each in members if each.name == name), "")
    return CellInfo(view.mode.value, view.is_leader, (name, admin))


def cell_figures(host: CellHost, shares: ShareLeases | None = None) -> CellStats:
    view, store = host.view(), host.store
    absent = sum(each.presence is MemberPresence.ABSENT for each in view.members.values())
    return CellStats(
        mode=view.mode.value,
        is_leader=view.is_leader,
        epoch=0 if view.epoch is None else view.epoch.number,
        share_divisor=view.share.total,
        members=len(view.members),
        members_absent=absent,
        unacknowledged_messages=view.unacknowledged,
        store_up=store.up,
        store_round_trip_s=store.round_trip_ns / SECOND,
        store_reconnects=store.reconnects,
        store_timeouts=store.timeouts,
        entries_skipped=host.unreadable_entries,
        share_leases=None if shares is None else shares.count,
        share_leases_expired=0 if shares is None else shares.expired,
        share_leases_lost=shares is not None and shares.is_lost,
        share_renewal_age_s=_seconds(None if shares is None else shares.renewal_age_ns),
    )


def _seconds(length_ns: int | None) -> float | None:
    return None if length_ns is None else length_ns / SECOND
