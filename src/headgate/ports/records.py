"""When did what happen to a request, as the gateway that carried it saw it?

One record per request, written while it is carried: moments and a few facts, nothing else is done with them on its way.
When it has ended the record is handed to whoever keeps them (`Records.take`), which must be quick; spans, sums and
files are made of it later, elsewhere. Moments are nanoseconds of a clock that never goes back (`time.monotonic_ns`);
one pair of readings ties it to the calendar. A moment that never came is 0.

Neither prompts nor answers nor keys are in it.
"""

import time
from typing import Final, Protocol

from headgate.core.events import AttemptEnding
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api
from headgate.model.units import ClassName, EndpointId, Instant, PoolName, RequestId, TenantId

_SPAN_STRIDE: Final = 0x9E3779B97F4A7C15
"""Odd, so that numbers below 2**64 give as many spans."""


class AttemptRecord:
    """One try at one endpoint."""

    __slots__ = (
        "connected_at",
        "detail",
        "ended_at",
        "ending",
        "endpoint_id",
        "first_byte_at",
        "hedge",
        "held_back",
        "last_byte_at",
        "number",
        "ordered_at",
        "pool",
        "reason",
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
        """As its `Dispatch` has it: in the queue so far, over all attempts."""
        self.ordered_at = now
        """When the order to send it was taken up here."""
        self.connected_at = 0
        """When the question had been handed whole to its connection."""
        self.first_byte_at = 0
        """When the first event of the answer arrived, or its head if the engine did not stream it."""
        self.last_byte_at = 0
        self.held_back = False
        """Whether received tokens are held back until the answer is complete. Until then another attempt may follow."""
        self.ended_at = 0
        self.ending: AttemptEnding | None = None
        self.detail = ""

    def sent(self) -> None:
        """The question has gone. Of one that is asked in several calls the first counts."""
        if not self.connected_at:
            self.connected_at = time.monotonic_ns()


class RequestRecord:
    __slots__ = (
        "api",
        "arrived",
        "attempts",
        "authorised_at",
        "cached_tokens",
        "caller_stages",
        "class_name",
        "client_retries",
        "degraded",
        "ended_at",
        "headed_at",
        "held_ns",
        "model",
        "model_served",
        "outcome",
        "output_tokens",
        "parent",
        "prompt_bytes",
        "prompt_tokens",
        "queued_at",
        "reason",
        "received_at",
        "replied_at",
        "request_id",
        "span",
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
        self.arrived = arrived
        """By the calendar, at the moment that `started_at` has by the other clock."""
        self.started_at = started_at
        """When the head of the request began to come."""
        self.headed_at = 0
        """When its head had come and the door looked at it."""
        self.authorised_at = 0
        """When it was known whose it is."""
        self.received_at = 0
        """When its body had come whole. Authorisation lies between its head and its body, and counts as `auth`."""
        self.queued_at = 0
        """When the scheduler was told of it."""
        self.replied_at = 0
        """When the end of an answer was handed to the caller's connection."""
        self.ended_at = 0
        self.tenant: TenantId | None = None
        self.api: Api | None = None
        self.model: str | None = None
        """As it was asked for."""
        self.model_served: str | None = None
        """The one that served it, where that is another."""
        self.stream = False
        self.prompt_bytes = 0
        self.client_retries = 0
        self.class_name: ClassName | None = None
        self.outcome: Outcome | None = None
        """None only where a mistake of our own cut it off."""
        self.reason = ""
        self.status = 0
        """The HTTP status that the caller got; 0 where it got none."""
        self.waited_ns = 0
        """In the queue, over all attempts, as the scheduler tells with the end."""
        self.held_ns = 0
        self.degraded: tuple[str, ...] = ()
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        """As the engine told; where it told nothing, the events that came."""
        self.attempts: list[AttemptRecord] = []
        self.caller_stages: tuple[tuple[str, int], ...] = ()
        """What the caller told of its own work before: name and nanoseconds, in its order."""
        self.trace_id = b""
        """Sixteen bytes; empty where nothing is traced and the caller sent none."""
        self.parent = b""
        """The caller's span, eight bytes; empty where it has none."""
        self.trace_sampled = False
        """Whether engines are told that this trace is kept."""
        self.trace_state = ""
        self.span = 0
        """From which the spans of this request have their ids: 64 bits of chance, where it is traced."""

    def span_id(self, number: int) -> bytes:
        """The span of the attempt of this number, or of the request itself as number 0: never the same for two.

        It is told to engines before anybody knows whether the trace is kept, so it follows from one number."""
        return ((self.span + number * _SPAN_STRIDE) % (1 << 64) or 1).to_bytes(8, "big")


class Records(Protocol):
    def take(self, record: RequestRecord) -> None:
        """The request has ended; nothing writes to its record any more. Called on the event loop: it must be quick."""
        ...


class NoRecords:
    """Keeps none."""

    __slots__ = ()

    def take(self, record: RequestRecord) -> None:
        pass
