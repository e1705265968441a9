"""What is written down of every attempt and every endpoint, and by whom?

Rows are only ever added. One that is wrong is corrected by another, whose amounts are differences.
"""

from collections.abc import Sequence
from typing import Protocol

from headgate.model.message import message
from headgate.model.money import NanoUsd
from headgate.model.units import Instant, RequestId


@message
class UsageRow:
    """One attempt of a request, or a request that was never sent (attempt 0). Named by arrival, request and attempt."""

    at: Instant
    """When the request arrived."""
    request: str
    attempt: int
    correction: int
    """0 for what was seen; each correction of it has the next number."""
    tenant: str
    service_class: str
    """Empty where it was refused before it had one, as are pool and endpoint where it was never sent."""
    model: str
    """As the caller named it."""
    served_model: str
    pool: str
    endpoint: str
    api: str
    stream: bool
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    tokens_reasoning: int
    usage_source: str
    """`engine`, `estimated`, or empty where it was never sent."""
    queue_us: int
    ttft_us: int | None
    duration_us: int
    """Of the attempt; of the request where it was never sent."""
    input_us: int
    output_us: int
    overhead_us: int
    """Engine time, in the parts of its bill."""
    outcome: str
    """How the request ended."""
    ending: str
    """How the attempt did; empty where it was never sent."""
    cause: str
    payer: str
    level: int
    input_nano_usd: NanoUsd
    output_nano_usd: NanoUsd
    overhead_nano_usd: NanoUsd
    reserved_nano_usd: NanoUsd
    """Of the request, at its last attempt; 0 at the others."""
    metadata: tuple[tuple[str, str], ...]


@message
class EndpointTimeRow:
    """How the time of one endpoint was spent up to a moment, and what that cost."""

    at: Instant
    source: str
    """The process that decided, by a name of its own for each start."""
    pool: str
    endpoint: str
    whole_us: int
    starting_us: int
    unready_us: int
    idle_us: int
    billed_us: int
    late_us: int
    hour_nano_usd: NanoUsd
    """The price of an hour at that moment."""
    price_kind: str


class AttemptJournal(Protocol):
    async def noted(self, request_id: RequestId, attempt: int) -> str | None:
        """Waits until the note of an attempt that is about to be sent is on disk or could not be written.

        Takes at most a second, even if the disk hangs. Returns why the attempt must not be sent, or None.
        """
        ...


class Ledger(Protocol):
    def add(self, rows: Sequence[UsageRow]) -> None:
        """Takes rows to be written. Quick, without any wait, and never raises."""
        ...

    def add_time(self, rows: Sequence[EndpointTimeRow]) -> None: ...
