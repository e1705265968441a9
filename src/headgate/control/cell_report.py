"""A process's report on its cell, for /status, the console and metrics."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headgate.hosts.cell.host import CellHost
from headgate.hosts.cell.options import CellOptions
from headgate.hosts.cell.protocol.views import Standing
from headgate.model.units import SECOND
from headgate.telemetry.cell import CellFigures
from headgate.telemetry.live.state import CellNow

if TYPE_CHECKING:
    from headgate.hosts.cell.redis.registry import CellMember


def cell_status(host: CellHost, cell: CellOptions, staged: str | None) -> Mapping[str, object]:
    view, store = host.view(), host.store
    return {
        "name": cell.name,
        "member": host.name,
        "name_problem": host.name_problem,
        "mode": view.mode.value,
        "epoch": None if view.epoch is None else view.epoch.number,
        "scheduler": None if view.epoch is None else view.epoch.id.rpartition("/")[0],
        "leads": view.leads,
        "share": f"{view.share.rank + 1}/{view.share.of}",
        "store": "up" if store.up else "away",
        "store_problem": store.problem,
        "unacknowledged": view.unacknowledged,
        "members": {
            name: {"standing": each.standing.value, "policy_hash": each.policy_hash, "staged": each.staged or None}
            for name, each in view.members.items()
        },
        "staged": staged,
    }


def cell_now(host: CellHost, members: "Sequence[CellMember]" = ()) -> CellNow:
    """`members` are the members with known addresses."""
    view = host.view()
    if view.epoch is None:
        return CellNow(view.mode.value, view.leads, None)
    name = view.epoch.id.rpartition("/")[0]
    admin = next((each.admin for each in members if each.name == name), "")
    return CellNow(view.mode.value, view.leads, (name, admin))


def cell_figures(host: CellHost) -> CellFigures:
    view, store = host.view(), host.store
    absent = sum(each.standing is Standing.ABSENT for each in view.members.values())
    return CellFigures(
        mode=view.mode.value,
        leads=view.leads,
        epoch=0 if view.epoch is None else view.epoch.number,
        share_of=view.share.of,
        members=len(view.members),
        members_absent=absent,
        unacknowledged=view.unacknowledged,
        store_up=store.up,
        store_round_trip_s=store.round_trip_ns / SECOND,
        store_reconnects=store.reconnects,
        store_timeouts=store.timeouts,
        unintelligible=host.unintelligible,
    )
