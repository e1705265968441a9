"""Classification of request results.

Every request has exactly one of six results. These group the model's outcomes, and split `completed` by whether the
client's targets were met.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from headgate.model.outcome import Outcome


class RequestResult(StrEnum):
    GOOD = "good"
    """Completed within all targets."""
    LATE = "late"
    """Completed, but missed a target."""
    REJECTED = "rejected"
    """Rejected by the gateway, in some cases after a failed attempt."""
    DROPPED = "dropped"
    """Accepted, but later dropped by the gateway because a timeout expired or its slot was needed."""
    CANCELLED = "cancelled"
    """The client disconnected."""
    FAILED = "failed"
    """Failed on an engine or in the gateway, without a successful retry."""


_RESULTS: Final[Mapping[Outcome, RequestResult]] = MappingProxyType(
    {
        Outcome.INVALID_REQUEST: RequestResult.REJECTED,
        Outcome.MODEL_NOT_FOUND: RequestResult.REJECTED,
        Outcome.REQUEST_TOO_LARGE: RequestResult.REJECTED,
        Outcome.UNAUTHORIZED: RequestResult.REJECTED,
        Outcome.FORBIDDEN: RequestResult.REJECTED,
        Outcome.DUPLICATE_REQUEST: RequestResult.REJECTED,
        Outcome.RATE_LIMITED: RequestResult.REJECTED,
        Outcome.BUDGET_EXCEEDED: RequestResult.REJECTED,
        Outcome.QUEUE_FULL: RequestResult.REJECTED,
        Outcome.DEADLINE_INFEASIBLE: RequestResult.REJECTED,
        Outcome.SHED: RequestResult.REJECTED,
        Outcome.RETRY_BUDGET_EXHAUSTED: RequestResult.REJECTED,
        Outcome.QUARANTINED: RequestResult.REJECTED,
        Outcome.NO_ENDPOINTS: RequestResult.REJECTED,
        Outcome.DRAINING: RequestResult.REJECTED,
        Outcome.KEY_UNVERIFIED: RequestResult.REJECTED,
        Outcome.QUEUE_TIMEOUT: RequestResult.DROPPED,
        Outcome.DEADLINE_EXCEEDED: RequestResult.DROPPED,
        Outcome.EVICTED: RequestResult.DROPPED,
        Outcome.CANCELLED: RequestResult.CANCELLED,
        Outcome.ENGINE_ERROR: RequestResult.FAILED,
        Outcome.ENGINE_TIMEOUT: RequestResult.FAILED,
        Outcome.ENGINE_REJECTED: RequestResult.FAILED,
        Outcome.INTERNAL_ERROR: RequestResult.FAILED,
    }
)


def result_of(outcome: Outcome, *, in_time: bool) -> RequestResult:
    if outcome is Outcome.COMPLETED:
        return RequestResult.GOOD if in_time else RequestResult.LATE
    return _RESULTS[outcome]
