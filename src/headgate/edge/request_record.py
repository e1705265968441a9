"""Creates and completes the record of each request.

These functions run for every request, so they do as little as possible: they read the clock a few times and look only
at the headers that are present. With tracing on, every request belongs to a trace, either the client's or a new one.
With tracing off, the client's trace context is recorded and forwarded unchanged.
"""

import secrets
import time
from collections.abc import Mapping
from typing import Final

from headgate.edge.client import Client
from headgate.model.outcome import Outcome
from headgate.model.ticket import Ticket
from headgate.model.units import Instant, RequestId
from headgate.ports.records import RequestRecord
from headgate.wire.trace_context import (
    CALLER_STAGES_HEADER,
    TRACEPARENT,
    TRACESTATE,
    is_sampled,
    read_caller_stages,
    read_traceparent,
    read_tracestate,
    write_traceparent,
)

MODEL_CHARS_MAX: Final = 256
"""Maximum length of a recorded model name. Clients can send names of any length."""
_CONTEXT: Final = (TRACEPARENT, TRACESTATE)
_PARENT: Final = TRACEPARENT.encode()
_STATE: Final = TRACESTATE.encode()
_STAGES: Final = CALLER_STAGES_HEADER.encode()


def begin(client: Client, request_id: RequestId, sample_ppm: int | None) -> RequestRecord:
    """Creates the record of a request whose head has arrived. `sample_ppm` is None if tracing is off."""
    now = time.monotonic_ns()
    record = RequestRecord(request_id, Instant(time.time_ns() - now + client.began_at), client.began_at)
    record.head_received_at = now
    headers = client.headers
    if (stages := headers.get(_STAGES)) is not None:
        record.caller_stages = read_caller_stages(stages)
    if _PARENT in headers and (parent := read_traceparent(headers[_PARENT])) is not None:
        record.trace_id, record.parent_span_id, record.trace_sampled = parent
        record.trace_state = read_tracestate(headers.get(_STATE))
    if sample_ppm is not None:
        record.trace_id = record.trace_id or secrets.token_bytes(16)
        # The request ID is already random, so it can be reused.
        record.span_seed = int(request_id[-16:], 16)
        # If the client's trace is sampled, this request belongs to it, regardless of our own sampling rate.
        record.trace_sampled = record.trace_sampled or is_sampled(record.trace_id, sample_ppm)
    return record


def for_rejected(request_id: RequestId, status: int, reason: str) -> RequestRecord:
    """Creates the record of bytes that were rejected before they became a request."""
    now = time.monotonic_ns()
    record = RequestRecord(request_id, Instant(time.time_ns()), now)
    record.head_received_at = record.replied_at = record.ended_at = now
    record.outcome, record.status, record.reason = Outcome.INVALID_REQUEST, status, reason
    return record


def describe(record: RequestRecord, ticket: Ticket) -> None:
    record.tenant = ticket.tenant
    record.model = ticket.model[:MODEL_CHARS_MAX]
    record.stream = ticket.stream
    record.prompt_bytes = ticket.prompt_bytes
    record.client_retries = ticket.client_retries


def trace_headers(record: RequestRecord, number: int, forwarded: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the headers for the engine, with the trace context of the attempt instead of the client's."""
    sent = {name: value for name, value in forwarded.items() if name not in _CONTEXT}
    sent[TRACEPARENT] = write_traceparent(record.trace_id, record.span_id(number), sampled=record.trace_sampled)
    if record.trace_state:
        sent[TRACESTATE] = record.trace_state
    return sent


def close(record: RequestRecord, client: Client) -> None:
    """Completes the record. Nothing may be written to it afterwards."""
    record.body_received_at = client.received_at
    record.replied_at = client.finished_at
    record.status = client.status or record.status
    record.ended_at = time.monotonic_ns()
