"""Messages between the share controller and a gateway process.

The gateway's clock limits each lease: a message contains the clock value that the gateway sent with its last report,
and its shares expire `lease_ns` after that value. A message that arrives late therefore cannot extend a share beyond
the time that the controller has calculated. The clocks of different machines are never compared.

Token limits have their own shares (token shares), separate from those of request and concurrency limits (request
shares). A process of an older version uses the request share for both, and its report contains no `revision`. The
controller sends such a process only fields that it knows. While one exists, token shares equal request shares.

An older controller ignores fields that it does not know and sends no token shares. A process whose token share is lower
than its request share then keeps the lower one until its lease expires. A rollback of the controller therefore raises
no token share before it has lowered the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

REVISION: Final = 2
"""Revision of the messages. Revision 2 added token shares."""


@dataclass(frozen=True, slots=True)
class LeasedShare:
    ppm: int
    """Share of request and concurrency limits."""
    left_ns: int
    """Time until the share expires."""
    token_ppm: int | None = None
    """Share of token limits and budgets. None if it equals `ppm`."""

    @property
    def tokens(self) -> int:
        return self.ppm if self.token_ppm is None else self.token_ppm


@dataclass(frozen=True, slots=True)
class AccountDemand:
    arrived: int
    """Requests that have arrived since the process started, including rejected ones."""
    open: int
    """Queued and running requests."""
    held_ppm: int = 0
    """Open requests as a part of the concurrency limit, in parts per million."""
    tokens: int | None = None
    """Estimated tokens of the requests that have arrived. None before revision 2."""
    open_tokens: int = 0
    """Estimated tokens of queued and running requests."""


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
    token_shares: Mapping[str, int] = field(default_factory=dict[str, int])
    """Token shares of accounts for which they differ from `shares`, or did before this message.

    Empty before revision 2.
    """


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
    revision: int = 1
