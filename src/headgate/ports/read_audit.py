"""Interface to the read log, which records which operator has read which tenant's data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class AuditUnavailable(Exception):
    """The read could not be recorded, or the log could not be read. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """One read of tenants' data."""

    at_ns: int
    """Nanoseconds since the Unix epoch."""
    operator: str
    """Name of the operator. Empty if the page requires no authentication."""
    address: str
    route: str
    tenant: str
    """Tenant whose data was requested. Empty for all tenants."""
    target: str
    """Request ID, if the read was for one request."""
    status: int
    """HTTP status of the response."""


class BadCursor(Exception):
    """The cursor does not come from this log."""


@dataclass(frozen=True, slots=True)
class ReadPage:
    entries: Sequence[ReadEntry]
    """Entries, newest first."""
    next: str | None
    """Cursor of the next page. None if there are no more entries."""
    skipped: int
    """Number of damaged lines that were skipped."""


class ReadAudit(Protocol):
    async def record(self, entry: ReadEntry) -> None:
        """Records a read before its response is sent. Raises `AuditUnavailable`."""
        ...

    async def entries(self, *, before: str | None, tenant: str | None, limit: int) -> ReadPage:
        """`before` is the cursor of the page. Raises `AuditUnavailable` and `BadCursor`."""
        ...
