"""Options for the database and the ledger."""

from dataclasses import dataclass, field

from headgate.model.units import SECOND, Duration

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """Options for the database that holds tenants, keys and the ledger."""

    url: str = field(repr=False)
    """Complete URL, including the password if there is one."""
    url_redacted: str
    """The URL without the password."""
    poll_interval_ns: Duration = Duration(5 * SECOND)
    """Interval at which the database is polled, in case a change notification was missed."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Options for the ledger, and for the spool that holds its rows while the database is unreachable."""

    spool_directory: str
    """Local directory in which each process has its own files."""
    spool_bytes_max: int = 1024 * MIB
    retention_days: int = 90
    """How long individual rows are kept, in days. Daily totals are kept indefinitely."""
    metadata_keys: tuple[str, ...] = ()
    """Request metadata keys to store."""
    share_idle_cost: bool = False
    """Whether reports divide the cost of a pool's idle time among its tenants by weight."""
    reject_unrecorded: bool = False
    """Whether to reject requests, rather than serve them unrecorded, while the spool's disk hangs or fails."""
    roll_up_hourly: bool = False
    """Whether individual rows are added to hourly sums when their day is deleted."""
