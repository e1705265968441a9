"""Schema of `cells.yaml`, documented in docs/guides/several-cells.md."""

from typing import Annotated

from msgspec import Meta

from headgate.config.pool_schema import EngineTlsSection
from headgate.config.section import Section
from headgate.config.setting_types import Percent, Positive, PositiveDuration, Secret
from headgate.control.cells.options import CellFleet, FleetCell

_FLEET = CellFleet(())
_CELL = FleetCell("", "")

CellUrl = Annotated[
    str, Meta(extra={"next": "set the URL to which the load balancer sends requests, such as http://east:8080"})
]


class FleetCellSection(Section, frozen=True):
    url: CellUrl
    admin_urls: list[str] = []
    admin_key: Secret | None = None
    admin_tls: EngineTlsSection | None = None
    weight: Positive = _CELL.weight
    state: str = _CELL.state.value


class CellsFile(Section, frozen=True):
    cells: dict[str, FleetCellSection]
    cells_per_tenant: Positive = _FLEET.cells_per_tenant
    share_floor_percent: Percent = _FLEET.share_floor_ppm // 10_000
    interval: PositiveDuration = _FLEET.interval_ns
    lease: PositiveDuration = _FLEET.lease_ns
    admin_tls: EngineTlsSection | None = None
    pins: dict[str, list[str]] = {}
