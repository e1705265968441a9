"""Retry behaviour of simulated clients, modelled on the official `openai` client.

A request is retried at most twice. The client retries after connection errors and statuses 408, 409, 429 and 500 or
higher, unless the server's `x-should-retry` header says otherwise. The backoff is taken from `Retry-After`. Without
that header, it is half a second, doubled for each retry and reduced by a random jitter of up to a quarter. If the
server asks for more than two minutes, the client does not retry.
"""

from typing import Final

RETRIES_MAX: Final = 2
RETRY_AFTER_SECONDS_MAX: Final = 120.0

_FIRST_WAIT_S: Final = 0.5
_WAIT_SECONDS_MAX: Final = 8.0
_JITTER: Final = 0.25


def retry_delay_s(
    *,
    status: int | None,
    should_retry: bool | None,
    retry_after_s: float | None,
    retries_taken: int,
    random_share: float,
) -> float | None:
    """Returns the backoff before the next try, or None for no retry. `status` is None if there was no response."""
    if retry_after_s is not None and retry_after_s > RETRY_AFTER_SECONDS_MAX:
        return None
    worth = should_retry if should_retry is not None else status is None or status in (408, 409, 429) or status >= 500
    if not worth:
        return None
    if retry_after_s is not None and retry_after_s > 0:
        return retry_after_s
    return min(_FIRST_WAIT_S * 2.0**retries_taken, _WAIT_SECONDS_MAX) * (1 - _JITTER * random_share)
