"""Messages between the controller of several cells and a gateway process.

The gateway's clock limits each lease: a message contains the clock value that the gateway sent with its last report,
and its shares expire `lease_ns` after that value. A message that arrives late therefore cannot extend a share beyond
the time that the controller has calculated. The clocks of different machines are never compared.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LeasedShare:
    ppm: int
    left_ns: int
    """Time until the share expires."""


@dataclass(frozen=True, slots=True)
class AccountDemand:
    arrived: int
    """Requests that have arrived since the process started, including rejected ones."""
    open: int
    """Queued and running requests."""
    held_ppm: int = 0
    """Open requests as a part of the concurrency limit, in parts per million."""


@dataclass(frozen=True, slots=True)
class ShareMessage:
    """Shares of one process. A message with an unknown session only claims the epoch and asks for a report."""

    process: str
    """Admin URL of the process."""
    epoch: int
    """Number of the controller. A process ignores controllers with a lower number than one it has seen."""
    version: int
    """Number of the message. A process ignores messages older than the last one it has applied."""
    session: str
    stamp_ns: int
    """Clock value in the last report of the process."""
    lease_ns: int
    shares: Mapping[str, int]
    """Share of each account's limits, in parts per million."""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    session: str
    """Identifies this run of the process."""
    stamp_ns: int
    """Clock of the process."""
    epoch: int
    """Highest controller epoch that the process has seen."""
    version: int
    """Version of the last message that was applied."""
    floor_ppm: int
    """Share that applies without a lease."""
    shares: Mapping[str, LeasedShare] = field(default_factory=dict[str, LeasedShare])
    """Shares in force."""
    demand: Mapping[str, AccountDemand] = field(default_factory=dict[str, AccountDemand])
    """Demand of each account that has limits or budgets."""
