"""Request records: times and facts as seen by the gateway.

There is one record per request. The gateway only writes times and a few facts to it while it handles the request. When
the request has ended, `RecordSink.add` receives the record and must return quickly. Spans, sums and files are produced
from it later. Times are nanoseconds of a monotonic clock (`time.monotonic_ns`). One pair of readings relates that clock
to calendar time. A time of 0 means that the step did not happen.

Records contain no prompts, responses or keys.
"""

import time
from typing import Final, Protocol

from headgate.core.events import AttemptEnding
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api
from headgate.model.units import ClassName, EndpointId, Instant, PoolName, RequestId, TenantId

_SPAN_STRIDE: Final = 0x9E3779B97F4A7C15
"""Stride between span ids. It is odd, so that all numbers below 2**64 yield different span ids."""


class AttemptRecord:
    """Record of one attempt."""

    __slots__ = (
        "buffered",
        "detail",
        "dispatched_at",
        "ended_at",
        "ending",
        "endpoint_id",
        "first_byte_at",
        "hedge",
        "last_byte_at",
        "number",
        "pool",
        "reason",
        "sent_at",
        "waited_ns",
    )

    def __init__(
        self,
        number: int,
        endpoint_id: EndpointId,
        pool: PoolName,
        *,
        reason: str,
        hedge: bool,
        waited_ns: int,
        now: int,
    ) -> None:
        self.number = number
        self.endpoint_id = endpoint_id
        self.pool = pool
        self.reason = reason
        self.hedge = hedge
        self.waited_ns = waited_ns
        """Total queue time of the request so far, over all attempts, as given by `Dispatch`."""
        self.dispatched_at = now
        """Time at which the gateway received the dispatch."""
        self.sent_at = 0
        """Time at which the complete engine request had been written to the connection."""
        self.first_byte_at = 0
        """Time at which the first event of the response arrived, or the response head if the engine does not stream."""
        self.last_byte_at = 0
        self.buffered = False
        """Whether tokens are buffered until the response is complete. Until then the request may be retried."""
        self.ended_at = 0
        self.ending: AttemptEnding | None = None
        self.detail = ""

    def mark_sent(self) -> None:
        """Records that the request was sent. If it is split into several calls, the first one counts."""
        if not self.sent_at:
            self.sent_at = time.monotonic_ns()


class RequestRecord:
    __slots__ = (
        "api",
        "arrived_at",
        "attempts",
        "authenticated_at",
        "body_received_at",
        "cached_tokens",
        "caller_stages",
        "class_name",
        "client_retries",
        "degraded",
        "ended_at",
        "head_received_at",
        "held_ns",
        "model",
        "model_served",
        "outcome",
        "output_tokens",
        "parent_span_id",
        "prompt_bytes",
        "prompt_tokens",
        "queued_at",
        "reason",
        "replied_at",
        "request_id",
        "span_seed",
        "started_at",
        "status",
        "stream",
        "tenant",
        "trace_id",
        "trace_sampled",
        "trace_state",
        "waited_ns",
    )

    def __init__(self, request_id: RequestId, arrived: Instant, started_at: int) -> None:
        self.request_id = request_id
        self.arrived_at = arrived
        """Calendar time that corresponds to `started_at`."""
        self.started_at = started_at
        """Time at which the request head started to arrive."""
        self.head_received_at = 0
        """Time at which the request head was complete and the gateway started to process it."""
        self.authenticated_at = 0
        """Time at which the tenant was known."""
        self.body_received_at = 0
        """Time at which the body was complete. Authentication between head and body counts toward the `auth` stage."""
        self.queued_at = 0
        """Time at which the request was submitted to the scheduler."""
        self.replied_at = 0
        """Time at which the end of the response was written to the client connection."""
        self.ended_at = 0
        self.tenant: TenantId | None = None
        self.api: Api | None = None
        self.model: str | None = None
        """Model name in the request."""
        self.model_served: str | None = None
        """Model that served the request, if different."""
        self.stream = False
        self.prompt_bytes = 0
        self.client_retries = 0
        self.class_name: ClassName | None = None
        self.outcome: Outcome | None = None
        """Outcome of the request. None only if an internal error ended it."""
        self.reason = ""
        self.status = 0
        """HTTP status sent to the client. 0 if none was sent."""
        self.waited_ns = 0
        """Total queue time over all attempts, as reported by the scheduler when the request ended."""
        self.held_ns = 0
        self.degraded: tuple[str, ...] = ()
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        """Tokens reported by the engine, or else the number of events received."""
        self.attempts: list[AttemptRecord] = []
        self.caller_stages: tuple[tuple[str, int], ...] = ()
        """Stages of the caller's own work before the request, as reported: name and nanoseconds, in the caller's order.
        """
        self.trace_id = b""
        """Trace id of sixteen bytes. Empty if the request is not traced and the caller sent no trace id."""
        self.parent_span_id = b""
        """The caller's span id of eight bytes. Empty if there is none."""
        self.trace_sampled = False
        """Sampling flag sent to engines."""
        self.trace_state = ""
        self.span_seed = 0
        """Random 64-bit seed for the span ids of this request, if it is traced."""

    def span_id(self, number: int) -> bytes:
        """Returns the unique span id of an attempt by its number. Number 0 is the request itself.

        The id is sent to engines before the sampling decision, so it is derived from a single number.
        """
        return ((self.span_seed + number * _SPAN_STRIDE) % (1 << 64) or 1).to_bytes(8, "big")


class RecordSink(Protocol):
    def add(self, record: RequestRecord) -> None:
        """Accepts the record of an ended request, which no longer changes. Must be fast, because it runs on the event
        loop.
        """
        ...


class NullRecordSink:
    """Discards all records."""

    __slots__ = ()

    def add(self, record: RequestRecord) -> None:
        pass
