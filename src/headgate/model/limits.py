"""How much may a tenant ask, and how much of that is left?"""

from dataclasses import dataclass

from headgate.model.message import message
from headgate.model.units import Duration


@dataclass(frozen=True, slots=True)
class Limits:
    """None means no limit. Rates are refilled evenly; a full minute of them may come at once."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and answers together."""
    concurrency: int | None = None
    """Requests that have not ended; each prompt of an array counts as one."""
    tokens_whole: int | None = None
    """Where these are a part of larger limits: all tokens per minute. A prompt that fits those may come again."""
    concurrency_whole: int | None = None
    """The concurrency of the larger limits, if these limits are a part of them."""


@message
class RateLeft:
    """What is left of a rate: the level of the tenant's path at which least is."""

    limit: int
    remaining: int
    reset_ns: Duration
    """Until it is whole again, if nothing else comes."""


@message
class LimitsLeft:
    """What a caller is told of its limits; None where it has none."""

    requests: RateLeft | None
    tokens: RateLeft | None
