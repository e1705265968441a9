"""What is known of one call, as its caller saw it?"""

from enum import StrEnum

import msgspec


class Ending(StrEnum):
    WHOLE = "whole"
    REFUSED = "refused"
    """An answer with another status than 200."""
    TOLD_TO_GO = "told_to_go"
    """By a gateway that is leaving; the caller goes to another one at once."""
    SEVERED = "severed"
    """It began, and did not end whole."""
    UNANSWERED = "unanswered"
    """The request was sent whole, and nothing came."""


class Record(msgspec.Struct, kw_only=True):
    """Moments are of the monotonic clock, which all processes of one machine have in common."""

    number: int
    gateway: int
    streamed: bool
    tokens: int
    """Asked for."""
    sent_s: float
    first_s: float | None = None
    """When the first byte of the body came."""
    end_s: float = 0.0
    ending: Ending = Ending.UNANSWERED
    status: int | None = None
    outcome: str = ""
    """Of a refusal, in the words of docs/reference/errors."""
    message: str = ""
    request_id: str = ""
    service_class: str = ""
    engine: str = ""
    """The name that the engine which answered serves its model under."""
    queue_ms: int | None = None
    events: int = 0
    told_tokens: int | None = None
    silence_s_max: float = 0.0
    """The longest time between two pieces of the answer."""
