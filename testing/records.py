"""Builders for request records."""

from typing import Any

from headgate.core.events import AttemptEnding
from headgate.model.outcome import Outcome
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, SECOND, ClassName, EndpointId, Instant, PoolName, RequestId, TenantId
from headgate.ports.records import AttemptRecord, RequestRecord

BEGAN = 1_000 * SECOND
"""Start time of the request on the monotonic clock, in nanoseconds."""
ARRIVED = Instant(1_767_225_600 * SECOND)
NAME = "req_00112233445566778899aabb"


def at(ms: float) -> int:
    """The time this many milliseconds after the start of the request, in nanoseconds."""
    return BEGAN + round(ms * MILLISECOND)


def an_attempt(number: int = 1, *, dispatched_ms: float = 5, waited_ms: float = 2, **fields: Any) -> AttemptRecord:
    """Build an attempt, by default with a complete response. Fields that end in `_ms` are times; others are set as
    given.
    """
    hedge, reason = fields.pop("hedge", False), fields.pop("reason", "the only endpoint")
    endpoint_id = EndpointId(fields.pop("endpoint_id", "small/0"))
    waited_ns = round(waited_ms * MILLISECOND)
    pool = PoolName(endpoint_id.partition("/")[0])
    attempt = AttemptRecord(
        number, endpoint_id, pool, reason=reason, hedge=hedge, waited_ns=waited_ns, now=at(dispatched_ms)
    )
    attempt.ending = AttemptEnding.COMPLETED
    _fill(attempt, {"sent_ms": 6, "first_byte_ms": 20, "last_byte_ms": 90, "ended_ms": 91} | fields)
    return attempt


def a_record(*attempts: AttemptRecord, request_id: str = NAME, **fields: Any) -> RequestRecord:
    """Build the record of a 100 ms stream that was queued for 2 ms. Without attempts, the request was rejected.

    Fields work as in `an_attempt`.
    """
    record = RequestRecord(RequestId(request_id), ARRIVED, BEGAN)
    record.api, record.model, record.stream = Api.CHAT, "m", True
    record.tenant, record.class_name = TenantId("acme"), ClassName("interactive")
    record.attempts = list(attempts)
    record.outcome = Outcome.COMPLETED if attempts else Outcome.QUEUE_FULL
    record.status = 200 if attempts else 429
    record.waited_ns = 2 * MILLISECOND
    moments = {
        "head_received_ms": 0.5,
        "authenticated_ms": 1,
        "body_received_ms": 0.4,
        "queued_ms": 2,
        "replied_ms": 99,
    }
    _fill(record, moments | {"ended_ms": 100} | fields)
    return record


def _fill(found: AttemptRecord | RequestRecord, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if name.endswith("_ms"):
            setattr(found, f"{name.removesuffix('_ms')}_at", 0 if value is None else at(value))
        else:
            setattr(found, name, value)
