"""Request outcomes and their HTTP replies.

There are no other outcomes. A request ends exactly once, with one of them. Each one defines the HTTP status, the error
code and whether a retry makes sense.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Outcome(StrEnum):
    COMPLETED = "completed"
    INVALID_REQUEST = "invalid_request"
    MODEL_NOT_FOUND = "model_not_found"
    REQUEST_TOO_LARGE = "request_too_large"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    DUPLICATE_REQUEST = "duplicate_request"
    RATE_LIMITED = "rate_limited"
    BUDGET_EXCEEDED = "budget_exceeded"
    QUEUE_FULL = "queue_full"
    DEADLINE_INFEASIBLE = "deadline_infeasible"
    SHED = "shed"
    RETRY_BUDGET_EXHAUSTED = "retry_budget_exhausted"
    QUARANTINED = "quarantined"
    NO_ENDPOINTS = "no_endpoints"
    DRAINING = "draining"
    QUEUE_TIMEOUT = "queue_timeout"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    EVICTED = "evicted"
    CANCELLED = "cancelled"
    ENGINE_ERROR = "engine_error"
    ENGINE_TIMEOUT = "engine_timeout"
    ENGINE_REJECTED = "engine_rejected"
    INTERNAL_ERROR = "internal_error"
    KEY_UNVERIFIED = "key_unverified"


class RetryAfter(StrEnum):
    """Whether the response has a `Retry-After` header, and the source of its value."""

    ABSENT = "absent"
    ONE_SECOND = "one second"
    COMPUTED = "computed"
    """The decision supplies the value: time until the request fits, predicted drain time or expected warm-up."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """HTTP reply for an outcome."""

    status: int
    code: str
    type: str
    retry_after: RetryAfter = RetryAfter.ABSENT
    should_retry: bool | None = None
    """Value of the `x-should-retry` header. None omits the header and leaves the decision to the caller."""


_INVALID = "invalid_request_error"
_LIMIT = "rate_limit_error"
_SERVER = "server_error"
_SLOW_DOWN = HttpReply(429, "slow_down", _LIMIT, RetryAfter.COMPUTED)

HTTP_REPLIES: Mapping[Outcome, HttpReply] = MappingProxyType(
    {
        Outcome.COMPLETED: HttpReply(200, "completed", "none"),
        Outcome.INVALID_REQUEST: HttpReply(400, "invalid_request_error", _INVALID, should_retry=False),
        Outcome.MODEL_NOT_FOUND: HttpReply(404, "model_not_found", _INVALID, should_retry=False),
        Outcome.REQUEST_TOO_LARGE: HttpReply(413, "request_too_large", _INVALID, should_retry=False),
        Outcome.UNAUTHORIZED: HttpReply(401, "invalid_api_key", "authentication_error", should_retry=False),
        Outcome.FORBIDDEN: HttpReply(403, "not_allowed", "permission_error", should_retry=False),
        Outcome.DUPLICATE_REQUEST: HttpReply(409, "duplicate_request", _INVALID, RetryAfter.ONE_SECOND),
        Outcome.RATE_LIMITED: HttpReply(429, "rate_limit_exceeded", _LIMIT, RetryAfter.COMPUTED),
        Outcome.BUDGET_EXCEEDED: HttpReply(
            429, "insufficient_quota", "insufficient_quota", RetryAfter.COMPUTED, should_retry=False
        ),
        Outcome.QUEUE_FULL: _SLOW_DOWN,
        Outcome.DEADLINE_INFEASIBLE: _SLOW_DOWN,
        Outcome.SHED: _SLOW_DOWN,
        Outcome.RETRY_BUDGET_EXHAUSTED: HttpReply(429, "slow_down", _LIMIT, RetryAfter.COMPUTED, should_retry=False),
        Outcome.QUARANTINED: HttpReply(422, "request_quarantined", _INVALID, RetryAfter.COMPUTED, should_retry=False),
        Outcome.NO_ENDPOINTS: HttpReply(503, "no_endpoints", _SERVER, RetryAfter.COMPUTED),
        Outcome.DRAINING: HttpReply(503, "server_is_overloaded", _SERVER, RetryAfter.ONE_SECOND, should_retry=True),
        Outcome.QUEUE_TIMEOUT: _SLOW_DOWN,
        Outcome.DEADLINE_EXCEEDED: HttpReply(504, "deadline_exceeded", _SERVER),
        Outcome.EVICTED: _SLOW_DOWN,
        Outcome.CANCELLED: HttpReply(499, "cancelled", "none"),
        Outcome.ENGINE_ERROR: HttpReply(502, "engine_error", _SERVER, RetryAfter.ONE_SECOND),
        Outcome.ENGINE_TIMEOUT: HttpReply(504, "engine_timeout", _SERVER, RetryAfter.ONE_SECOND),
        Outcome.ENGINE_REJECTED: HttpReply(400, "engine_rejected", _INVALID, should_retry=False),
        Outcome.INTERNAL_ERROR: HttpReply(503, "gateway_error", _SERVER, RetryAfter.ONE_SECOND, should_retry=True),
        Outcome.KEY_UNVERIFIED: HttpReply(503, "key_unverified", _SERVER, RetryAfter.COMPUTED, should_retry=True),
    }
)

STREAM_INTERRUPTED = HttpReply(200, "stream_interrupted", _SERVER)
"""Error event sent in the stream if a request fails after the first byte of its response."""
