"""Record of one call, as its client saw it."""

from enum import StrEnum

import msgspec


class Ending(StrEnum):
    WHOLE = "whole"
    REJECTED = "rejected"
    """The response had a status other than 200."""
    REDIRECTED = "told_to_go"
    """A draining gateway rejected the call; the client immediately tries another gateway."""
    SEVERED = "severed"
    """The response started but did not complete."""
    UNANSWERED = "unanswered"
    """The request was sent completely, but there was no response."""


class Record(msgspec.Struct, kw_only=True):
    """One call. Times are from the monotonic clock, which all processes on a machine share."""

    number: int
    gateway: int
    streamed: bool
    tokens: int
    """Requested output tokens."""
    sent_s: float
    first_s: float | None = None
    """Time of the first byte of the body."""
    end_s: float = 0.0
    ending: Ending = Ending.UNANSWERED
    status: int | None = None
    outcome: str = ""
    """Outcome code of a rejection, as in docs/reference/errors."""
    message: str = ""
    request_id: str = ""
    service_class: str = ""
    engine: str = ""
    """Model name reported by the engine."""
    queue_ms: int | None = None
    events: int = 0
    usage_tokens: int | None = None
    silence_s_max: float = 0.0
    """Longest gap between two parts of the response."""
