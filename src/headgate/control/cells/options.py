"""Options of a fleet of cells, as written in `cells.yaml`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from headgate.model.units import SECOND, Duration
from headgate.ports.tls import ClientTlsOptions


class FleetCellState(StrEnum):
    ACTIVE = "active"
    DRAINING = "draining"
    """No tenant is assigned to the cell. It keeps a share of a tenant's limits until the tenant's requests stop."""
    LOST = "lost"
    """No tenant is assigned to the cell, and it gets no share above the floor."""


@dataclass(frozen=True, slots=True)
class FleetCell:
    name: str
    url: str
    """Base URL for clients, to which the load balancer sends requests."""
    admin_urls: tuple[str, ...] = ()
    """Admin listeners of all gateways and scheduler processes of the cell."""
    weight: int = 100
    state: FleetCellState = FleetCellState.ACTIVE
    admin_key: str | None = field(default=None, repr=False)
    """Operator key for the admin listeners. None for the default key."""
    admin_tls: ClientTlsOptions | None = None
    """TLS options for admin listeners with https. None for the system's authorities and no client certificate."""


@dataclass(frozen=True, slots=True)
class CellFleet:
    cells: tuple[FleetCell, ...]
    cells_per_tenant: int = 2
    share_floor_ppm: int = 250_000
    """Share of a tenant's limits that a cell uses without a lease. Equal to `cell.share_floor_percent` of its gateways.

    Twice as many cells as a tenant has must not exceed the whole, because a tenant that moves has old and new cells.
    """
    interval_ns: Duration = Duration(2 * SECOND)
    """Time between two rounds of the controller."""
    lease_ns: Duration = Duration(15 * SECOND)
    """How long a cell uses a share after the controller last renewed it."""
    pins: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Cells of tenants that are not assigned by their name, in order of preference."""

    def cell(self, name: str) -> FleetCell | None:
        return next((each for each in self.cells if each.name == name), None)
