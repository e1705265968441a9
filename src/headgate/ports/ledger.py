"""Interface to the usage ledger, which has one row per attempt and rows for endpoint time.

Rows are never changed. A wrong row is corrected by adding another row whose amounts are the differences.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headgate.model.message import message
from headgate.model.money import NanoUsd
from headgate.model.units import Instant, RequestId


class UsageRow(NamedTuple):
    """Usage of one attempt, or of a request that was never sent (attempt 0).

    The key consists of arrival time, request and attempt. A tuple is the fastest to create and to encode.
    """

    at: Instant
    """Arrival time of the request."""
    request: str
    attempt: int
    correction: int
    """0 for the original row. Each correction has the next number."""
    tenant: str
    service_class: str
    """Class of the request. Empty if the request was rejected before it had one."""
    model: str
    """Model name in the request."""
    served_model: str
    pool: str
    """Pool of the attempt. Like `endpoint`, empty if the request was never sent."""
    endpoint: str
    api: str
    stream: bool
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    tokens_reasoning: int
    usage_source: str
    """`engine`, `estimated`, or empty if the request was never sent."""
    queue_us: int
    ttft_us: int | None
    duration_us: int
    """Duration of the attempt, or of the request if it was never sent."""
    input_us: int
    output_us: int
    overhead_us: int
    """Parts of the billed engine time."""
    outcome: str
    """Outcome of the request."""
    ending: str
    """How the attempt ended. Empty if the request was never sent."""
    cause: str
    payer: str
    level: int
    input_nano_usd: NanoUsd
    output_nano_usd: NanoUsd
    overhead_nano_usd: NanoUsd
    reserved_nano_usd: NanoUsd
    """Amount reserved for the request, stored in the row of its last attempt. 0 in all other rows."""
    metadata: tuple[tuple[str, str], ...]


@message
class EndpointTimeRow:
    """How one endpoint spent its time up to a given time, and the cost."""

    at: Instant
    source: str
    """Id of the process that schedules the endpoint. It is different after each start."""
    pool: str
    endpoint: str
    total_us: int
    starting_us: int
    unready_us: int
    idle_us: int
    billed_us: int
    abort_lag_us: int
    hour_nano_usd: NanoUsd
    """Price per endpoint-hour at that time."""
    price_kind: str


class AttemptJournal(Protocol):
    async def wait_journaled(self, request_id: RequestId, attempt: int) -> str | None:
        """Waits until the journal entry for an attempt that is about to be sent is on disk or has failed.

        Takes at most one second, even if the disk hangs. Returns why the attempt must not be sent, or None.
        """
        ...


class Ledger(Protocol):
    def add(self, rows: Sequence[UsageRow]) -> None:
        """Queues rows for writing. Returns immediately and never raises."""
        ...

    def add_endpoint_times(self, rows: Sequence[EndpointTimeRow]) -> None: ...
