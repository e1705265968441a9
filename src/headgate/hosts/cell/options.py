"""Options for a process that participates in a cell."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CellOptions:
    store: str = field(repr=False)
    """Address of the store, with port, database and password."""
    store_shown: str
    """Address of the store without the password, for display."""
    name: str = "headgate"
    """Name of the cell. Several cells may share a store."""
    member_name: str | None = None
    """Name of this process. If None, it is derived from host and port."""
    member_count: int = 1
    """Expected number of gateways. A gateway that does not know a scheduler yet divides capacity by this number."""
    gateways_are_candidates: bool = True
    """Whether gateways may become the scheduler. If false, only scheduler-only processes may."""
    share_floor_ppm: int = 1_000_000
    """Share of a tenant's limits that the cell uses without a lease. The whole if there are no other cells."""
