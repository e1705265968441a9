"""Options of a process that shares a queue with other gateways: its cell, and the store between them."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CellOptions:
    store: str = field(repr=False)
    """Complete address, with port and database, and the password if there is one."""
    store_shown: str
    """The same address without the password."""
    name: str = "headgate"
    """Name of the cell; several cells may share a store."""
    member: str | None = None
    """Name of this process; None names it after its host and port."""
    members: int = 1
    """Expected number of gateways. A gateway that has not heard of a scheduler yet divides capacity by it."""
    gateways_schedule: bool = True
    """Whether a gateway may be the scheduler, or only a scheduler-only process."""
