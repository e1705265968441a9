"""This process's share of tenants' limits, if several cells serve the same tenants."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields

from headgate.config.settings import Settings
from headgate.control.cells.messages import ProcessReport, ShareMessage
from headgate.control.cells.share_leases import AccountDemands, ShareLeases
from headgate.core.events import SharesAssigned
from headgate.edge.admin.api import AdminRoute
from headgate.edge.admin.shares import ShareAssignment, share_routes
from headgate.model.limits import WHOLE_PPM
from headgate.model.policy import Policy
from headgate.model.units import Instant
from headgate.telemetry.tenant_activity import TenantActivity


def open_share_leases(
    settings: Settings,
    now: Callable[[], Instant],
    assign: Callable[[SharesAssigned], None],
    policy: Callable[[], Policy],
    activities: Iterable[TenantActivity],
) -> ShareLeases | None:
    """Returns this process's leases, or None if its cell is the only one."""
    cell = settings.cell
    if cell is None or cell.share_floor_ppm == WHOLE_PPM:
        return None
    demands = AccountDemands()
    return ShareLeases(
        secrets.token_hex(8), cell.share_floor_ppm, now, assign, lambda: demands.measure(policy(), activities)
    )


def routes_of(leases: ShareLeases) -> dict[bytes, AdminRoute]:
    def assign(asked: ShareAssignment) -> Mapping[str, object]:
        message = ShareMessage(
            "",
            asked.epoch,
            asked.version,
            asked.session,
            asked.stamp_ns,
            asked.lease_ns,
            asked.shares,
            asked.token_shares,
        )
        return _fields(leases.handle(message))

    return share_routes(assign, lambda: _fields(leases.report()))


def _fields(report: ProcessReport) -> Mapping[str, object]:
    """Returns the report as a mapping. Its shares and demand can be large, so they are not copied."""
    return {each.name: getattr(report, each.name) for each in fields(report)}
