"""This process's share of tenants' limits, if several cells serve the same tenants."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

from headgate.config.settings import Settings
from headgate.control.cells.messages import ShareMessage
from headgate.control.cells.share_leases import ShareLeases, demand_by_account
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
    return ShareLeases(
        secrets.token_hex(8), cell.share_floor_ppm, now, assign, lambda: demand_by_account(policy(), activities)
    )


def routes_of(leases: ShareLeases) -> dict[bytes, AdminRoute]:
    def assign(asked: ShareAssignment) -> Mapping[str, object]:
        message = ShareMessage(
            "", asked.epoch, asked.version, asked.session, asked.stamp_ns, asked.lease_ns, asked.shares
        )
        return asdict(leases.handle(message))

    return share_routes(assign, lambda: asdict(leases.report()))
