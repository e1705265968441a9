"""Does a caller try again, and after how long?

As the official `openai` client does it: two more tries at most; after no answer at all and after 408, 409, 429 and
anything from 500 on, unless the server says otherwise; after the wait that the server asks for, else half a second
doubled each time, less up to a quarter by chance. A server that asks for more than two minutes is not asked again.
"""

from typing import Final

RETRIES: Final = 2
RETRY_AFTER_SECONDS_MAX: Final = 120.0

_FIRST_WAIT_S: Final = 0.5
_WAIT_SECONDS_MAX: Final = 8.0
_JITTER: Final = 0.25


def wait_before_retry_s(
    *, status: int | None, should_retry: bool | None, asked_s: float | None, retries_taken: int, chance: float
) -> float | None:
    """How long to wait before the next try, or None if there is none. `status` is None where no answer came."""
    if asked_s is not None and asked_s > RETRY_AFTER_SECONDS_MAX:
        return None
    worth = should_retry if should_retry is not None else status is None or status in (408, 409, 429) or status >= 500
    if not worth:
        return None
    if asked_s is not None and asked_s > 0:
        return asked_s
    return min(_FIRST_WAIT_S * 2.0**retries_taken, _WAIT_SECONDS_MAX) * (1 - _JITTER * chance)
