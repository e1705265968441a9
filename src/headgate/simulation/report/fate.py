"""What became of a request, in one word?

Six fates, of which every request has exactly one: the outcomes of the model, drawn together for people, and
`completed` divided by whether its caller's targets were met.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from headgate.model.outcome import Outcome


class Fate(StrEnum):
    GOOD = "good"
    """Completed within all that its caller wanted."""
    LATE = "late"
    """Completed, but not within it."""
    REFUSED = "refused"
    """Turned away by the gateway. Some had been at an engine that failed them."""
    GIVEN_UP = "given_up"
    """Accepted, and ended by the gateway all the same: its time was over, or its place was needed."""
    LEFT = "left"
    """Its caller left."""
    FAILED = "failed"
    """An engine failed it, and no attempt mended that."""


_FATES: Final[Mapping[Outcome, Fate]] = MappingProxyType(
    {
        Outcome.INVALID: Fate.REFUSED,
        Outcome.MODEL_NOT_FOUND: Fate.REFUSED,
        Outcome.TOO_LARGE: Fate.REFUSED,
        Outcome.UNAUTHORIZED: Fate.REFUSED,
        Outcome.FORBIDDEN: Fate.REFUSED,
        Outcome.DUPLICATE: Fate.REFUSED,
        Outcome.RATE_LIMITED: Fate.REFUSED,
        Outcome.OVER_BUDGET: Fate.REFUSED,
        Outcome.QUEUE_FULL: Fate.REFUSED,
        Outcome.UNREACHABLE: Fate.REFUSED,
        Outcome.SHED: Fate.REFUSED,
        Outcome.RETRY_REFUSED: Fate.REFUSED,
        Outcome.QUARANTINED: Fate.REFUSED,
        Outcome.NO_ENDPOINTS: Fate.REFUSED,
        Outcome.DRAINING: Fate.REFUSED,
        Outcome.UNVERIFIED: Fate.REFUSED,
        Outcome.EXPIRED: Fate.GIVEN_UP,
        Outcome.TOO_LATE: Fate.GIVEN_UP,
        Outcome.EVICTED: Fate.GIVEN_UP,
        Outcome.CANCELLED: Fate.LEFT,
        Outcome.ENGINE_FAILED: Fate.FAILED,
        Outcome.ENGINE_SILENT: Fate.FAILED,
        Outcome.ENGINE_REFUSED: Fate.FAILED,
        Outcome.GATEWAY_FAILED: Fate.FAILED,
    }
)


def fate_of(outcome: Outcome, *, in_time: bool) -> Fate:
    if outcome is Outcome.COMPLETED:
        return Fate.GOOD if in_time else Fate.LATE
    return _FATES[outcome]
