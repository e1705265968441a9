"""Options of the database and of the ledger that is written to it."""

from dataclasses import dataclass, field

from headgate.model.units import SECOND, Duration

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """The database of tenants, keys and the ledger."""

    url: str = field(repr=False)
    """Complete address, with the password if there is one."""
    url_shown: str
    """The same address without the password."""
    poll_ns: Duration = Duration(5 * SECOND)
    """Interval at which the database is asked for changes whose notification was missed."""


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """The ledger, and the spool in which its rows wait while the database is away."""

    spool: str
    """A folder of this machine, in which each process has files of its own."""
    spool_bytes_max: int = 1024 * MIB
    retention_days: int = 90
    """Days that single rows are kept; their daily sums stay."""
    metadata: tuple[str, ...] = ()
    """Keys of the request metadata that are kept."""
    shares_idle: bool = False
    """Whether reports share the idle time of a pool among its tenants by their weights."""
    refuses_unrecorded: bool = False
    """Whether requests are rejected, instead of served without a record, while the disk of the spool hangs or fails."""
