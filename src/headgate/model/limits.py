"""Rate and concurrency limits of a tenant."""

from dataclasses import dataclass
from typing import Final, NamedTuple

from headgate.model.message import message
from headgate.model.units import Duration

WHOLE_PPM: Final = 1_000_000


class LimitShare(NamedTuple):
    """Share of a tenant's limits that this cell may use, in parts per million. Other cells may use the rest."""

    requests_ppm: int
    """Share of the request and concurrency limits."""
    tokens_ppm: int
    """Share of the token limits and hard budgets."""


WHOLE_SHARE: Final = LimitShare(WHOLE_PPM, WHOLE_PPM)


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a tenant. None means no limit.

    Rates refill continuously. A full minute's allowance may be used at once.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Prompt and output tokens together, per minute."""
    concurrency: int | None = None
    """Maximum number of open requests. Each prompt of an array counts as one."""
    total_tokens_per_minute: int | None = None
    """Undivided limit on tokens per minute, if these limits are a share of larger ones.

    A prompt that exceeds the share but fits the undivided limit may be retried.
    """
    total_concurrency: int | None = None
    """Undivided concurrency limit, if these limits are a share of larger ones."""
    share: LimitShare = WHOLE_SHARE
    """Share of the tenant's limits that these limits are."""


@message
class RateLeft:
    """Remaining amount of a rate limit, at the level of the tenant's path that has the least left."""

    limit: int
    remaining: int
    reset_ns: Duration
    """Time until the full amount is available again if no further requests arrive."""


@message
class LimitsLeft:
    """Remaining rate limits reported to a caller. None means no limit."""

    requests: RateLeft | None
    tokens: RateLeft | None
