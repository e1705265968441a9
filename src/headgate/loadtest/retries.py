"""Does a client try again, and after how long?

As the official `openai` client does it: two more tries at most; after no answer at all and after 408, 409, 429 and
anything from 500 on, unless `x-should-retry` says otherwise; after the wait that `retry-after-ms` or `retry-after`
asks for, else half a second doubled each time, less up to a quarter by chance. A server that asks for more than two
minutes is not asked again.
"""

import math
from email.utils import mktime_tz, parsedate_tz
from typing import Final

RETRIES: Final = 2
RETRY_AFTER_SECONDS_MAX: Final = 120.0

_FIRST_WAIT_S: Final = 0.5
_WAIT_SECONDS_MAX: Final = 8.0
_JITTER: Final = 0.25
_WAIT_HEADERS: Final = ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0))


def wait_before_retry_s(
    *, status: int | None, headers: dict[bytes, bytes], retries_taken: int, chance: float, unix_s: float
) -> float | None:
    """How long to wait before the next try, or None if there is none. `status` is None where no answer came."""
    asked_s = _asked_wait_s(headers, unix_s)
    if asked_s is not None and asked_s > RETRY_AFTER_SECONDS_MAX:
        return None
    if not _is_worth_it(status, headers.get(b"x-should-retry")):
        return None
    if asked_s is not None and asked_s > 0:
        return asked_s
    return min(_FIRST_WAIT_S * 2.0**retries_taken, _WAIT_SECONDS_MAX) * (1 - _JITTER * chance)


def _is_worth_it(status: int | None, said: bytes | None) -> bool:
    if said in (b"true", b"false"):
        return said == b"true"
    return status is None or status in (408, 409, 429) or status >= 500


def _asked_wait_s(headers: dict[bytes, bytes], unix_s: float) -> float | None:
    for name, divisor in _WAIT_HEADERS:
        try:
            wait = float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
        return wait if math.isfinite(wait) else None
    date = parsedate_tz(headers.get(b"retry-after", b"").decode("latin-1"))
    return None if date is None else mktime_tz(date) - unix_s
