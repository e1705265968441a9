"""What is written down of a request when it comes, and when it has gone?

Both run for every request, so they do little: a few readings of the clock, and of the headers only what is there. Where
traces are sent every request belongs to one, its caller's or one of its own; where none are, the caller's is remembered
and passed on as it came.
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
    CALLER_STAGES,
    TRACEPARENT,
    TRACESTATE,
    is_sampled,
    read_caller_stages,
    read_traceparent,
    read_tracestate,
    write_traceparent,
)

MODEL_CHARS_MAX: Final = 256
"""Of a model's name so much is kept: a caller may ask for one of any length."""
_PARENT: Final = TRACEPARENT.encode()
_STATE: Final = TRACESTATE.encode()
_STAGES: Final = CALLER_STAGES.encode()


def begin(client: Client, request_id: RequestId, sample_ppm: int | None) -> RequestRecord:
    """The record of a request whose head has come. `sample_ppm` is None where no traces are sent."""
    now = time.monotonic_ns()
    record = RequestRecord(request_id, Instant(time.time_ns() - now + client.began_at), client.began_at)
    record.headed_at = now
    headers = client.headers
    if (stages := headers.get(_STAGES)) is not None:
        record.caller_stages = read_caller_stages(stages)
    if (parent := read_traceparent(headers.get(_PARENT))) is not None:
        record.trace_id, record.parent, record.trace_sampled = parent
        record.trace_state = read_tracestate(headers.get(_STATE))
    if sample_ppm is not None:
        record.trace_id = record.trace_id or secrets.token_bytes(16)
        # The name is chance already.
        record.span = int(request_id[-16:], 16)
        # Where the caller's trace is kept ours belongs into it, whatever our rate says.
        record.trace_sampled = record.trace_sampled or is_sampled(record.trace_id, sample_ppm)
    return record


def of_none(request_id: RequestId, status: int, reason: str) -> RequestRecord:
    """The record of what never became a request."""
    now = time.monotonic_ns()
    record = RequestRecord(request_id, Instant(time.time_ns()), now)
    record.headed_at = record.replied_at = record.ended_at = now
    record.outcome, record.status, record.reason = Outcome.INVALID, status, reason
    return record


def describe(record: RequestRecord, ticket: Ticket) -> None:
    record.tenant = ticket.tenant
    record.model = ticket.model[:MODEL_CHARS_MAX]
    record.stream = ticket.stream
    record.prompt_bytes = ticket.prompt_bytes
    record.client_retries = ticket.client_retries


def passed_on(record: RequestRecord, number: int) -> Mapping[str, str]:
    """By which an engine knows that it works for this attempt of this trace."""
    sent = {TRACEPARENT: write_traceparent(record.trace_id, record.span_id(number), sampled=record.trace_sampled)}
    if record.trace_state:
        sent[TRACESTATE] = record.trace_state
    return sent


def close(record: RequestRecord, client: Client) -> None:
    """Nothing is written to it from here on."""
    record.received_at = client.received_at
    record.replied_at = client.finished_at
    record.status = client.status or record.status
    record.ended_at = time.monotonic_ns()
