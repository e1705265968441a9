"""Messages between the share controller and a gateway process.

The gateway's clock limits each lease: a message contains the clock value that the gateway sent with its last report,
and its shares expire `lease_ns` after that value. A message that arrives late therefore cannot extend a share beyond
the time that the controller has calculated. The clocks of different machines are never compared.

Limits on tokens and on requests have separate shares. A process of an older version uses the share of requests for
both, and its report contains no `revision`. The controller sends it only fields that it knows, and gives both kinds of
limits the same share as long as such a process exists. An older controller ignores fields that it does not know. If a
message contains no share of tokens, a process that has leased a lower one than that of requests keeps it until this
lease has expired. A return to an older controller therefore raises no share of tokens before the others are lowered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

REVISION: Final = 2
"""Revision of the messages. Since revision 2, limits on tokens have a share of their own."""


@dataclass(frozen=True, slots=True)
class LeasedShare:
    ppm: int
    """Share of the limits on requests and concurrency."""
    left_ns: int
    """Time until the share expires."""
    token_ppm: int | None = None
    """Share of the limits on tokens and of budgets. None if it is the same."""

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
    """Tokens of the requests that have arrived, as far as they can be estimated. None before revision 2."""
    open_tokens: int = 0
    """Tokens of queued and running requests."""


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
    """Shares of limits on tokens and of budgets, of accounts for which they differ or did before this message.

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
