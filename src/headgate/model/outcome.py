"""How can a request end?

The closed list of endings. Each says who is at fault, what the caller is told, and whether
trying again makes sense. A request ends exactly once, with one of these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Outcome(StrEnum):
    COMPLETED = "completed"
    INVALID = "invalid"
    MODEL_NOT_FOUND = "model_not_found"
    TOO_LARGE = "too_large"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    DUPLICATE = "duplicate"
    RATE_LIMITED = "rate_limited"
    OVER_BUDGET = "over_budget"
    QUEUE_FULL = "queue_full"
    UNREACHABLE = "unreachable"
    SHED = "shed"
    RETRY_REFUSED = "retry_refused"
    QUARANTINED = "quarantined"
    NO_ENDPOINTS = "no_endpoints"
    DRAINING = "draining"
    EXPIRED = "expired"
    TOO_LATE = "too_late"
    EVICTED = "evicted"
    CANCELLED = "cancelled"
    ENGINE_FAILED = "engine_failed"
    ENGINE_SILENT = "engine_silent"
    ENGINE_REFUSED = "engine_refused"
    GATEWAY_FAILED = "gateway_failed"
    UNVERIFIED = "unverified"


class RetryAfter(StrEnum):
    """Does the answer carry `Retry-After`, and where does its value come from?"""

    ABSENT = "absent"
    ONE_SECOND = "one second"
    COMPUTED = "computed"
    """The decision brings it: until it fits, predicted drain, or expected warm-up."""


@dataclass(frozen=True, slots=True)
class Face:
    """What a caller sees of an outcome."""

    status: int
    code: str
    type: str
    retry_after: RetryAfter = RetryAfter.ABSENT
    should_retry: bool | None = None
    """What `x-should-retry` says; None leaves it to the caller."""


_INVALID = "invalid_request_error"
_LIMIT = "rate_limit_error"
_SERVER = "server_error"
_SLOW_DOWN = Face(429, "slow_down", _LIMIT, RetryAfter.COMPUTED)

FACES: Mapping[Outcome, Face] = MappingProxyType(
    {
        Outcome.COMPLETED: Face(200, "completed", "none"),
        Outcome.INVALID: Face(400, "invalid_request_error", _INVALID, should_retry=False),
        Outcome.MODEL_NOT_FOUND: Face(404, "model_not_found", _INVALID, should_retry=False),
        Outcome.TOO_LARGE: Face(413, "request_too_large", _INVALID, should_retry=False),
        Outcome.UNAUTHORIZED: Face(401, "invalid_api_key", "authentication_error", should_retry=False),
        Outcome.FORBIDDEN: Face(403, "not_allowed", "permission_error", should_retry=False),
        Outcome.DUPLICATE: Face(409, "duplicate_request", _INVALID, RetryAfter.ONE_SECOND),
        Outcome.RATE_LIMITED: Face(429, "rate_limit_exceeded", _LIMIT, RetryAfter.COMPUTED),
        Outcome.OVER_BUDGET: Face(
            429, "insufficient_quota", "insufficient_quota", RetryAfter.COMPUTED, should_retry=False
        ),
        Outcome.QUEUE_FULL: _SLOW_DOWN,
        Outcome.UNREACHABLE: _SLOW_DOWN,
        Outcome.SHED: _SLOW_DOWN,
        Outcome.RETRY_REFUSED: Face(429, "slow_down", _LIMIT, RetryAfter.COMPUTED, should_retry=False),
        Outcome.QUARANTINED: Face(422, "request_quarantined", _INVALID, RetryAfter.COMPUTED, should_retry=False),
        Outcome.NO_ENDPOINTS: Face(503, "no_endpoints", _SERVER, RetryAfter.COMPUTED),
        Outcome.DRAINING: Face(503, "server_is_overloaded", _SERVER, RetryAfter.ONE_SECOND, should_retry=True),
        Outcome.EXPIRED: _SLOW_DOWN,
        Outcome.TOO_LATE: Face(504, "deadline_exceeded", _SERVER),
        Outcome.EVICTED: _SLOW_DOWN,
        Outcome.CANCELLED: Face(499, "cancelled", "none"),
        Outcome.ENGINE_FAILED: Face(502, "engine_error", _SERVER, RetryAfter.ONE_SECOND),
        Outcome.ENGINE_SILENT: Face(504, "engine_timeout", _SERVER, RetryAfter.ONE_SECOND),
        Outcome.ENGINE_REFUSED: Face(400, "engine_refused", _INVALID, should_retry=False),
        Outcome.GATEWAY_FAILED: Face(503, "gateway_error", _SERVER, RetryAfter.ONE_SECOND, should_retry=True),
        Outcome.UNVERIFIED: Face(503, "key_unverified", _SERVER, RetryAfter.COMPUTED, should_retry=True),
    }
)

STREAM_INTERRUPTED = Face(200, "stream_interrupted", _SERVER)
"""What a caller sees, as an event in the stream, when an ending comes after the first byte."""
