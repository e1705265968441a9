"""Decides, based on a response, whether a client retries and how long it backs off.

Simulated clients use the same rule (`headgate.simulation.virtual.client_retry`). This module reads its inputs from
response headers.
"""

import math
from email.utils import mktime_tz, parsedate_tz
from typing import Final

from headgate.simulation.virtual import client_retry

RETRIES: Final = client_retry.RETRIES_MAX

_WAIT_HEADERS: Final = ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0))
_SHOULD_RETRY_VALUES: Final = {b"true": True, b"false": False}


def wait_before_retry_s(
    *, status: int | None, headers: dict[bytes, bytes], retries_taken: int, chance: float, unix_s: float
) -> float | None:
    """Returns the backoff before the next attempt, or None if there is no retry.

    `status` is None if there was no response.
    """
    return client_retry.retry_delay_s(
        status=status,
        should_retry=_SHOULD_RETRY_VALUES.get(headers.get(b"x-should-retry", b"")),
        retry_after_s=_retry_after_s(headers, unix_s),
        retries_taken=retries_taken,
        random_share=chance,
    )


def _retry_after_s(headers: dict[bytes, bytes], unix_s: float) -> float | None:
    for name, divisor in _WAIT_HEADERS:
        try:
            wait = float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
        return wait if math.isfinite(wait) else None
    date = parsedate_tz(headers.get(b"retry-after", b"").decode("latin-1"))
    return None if date is None else mktime_tz(date) - unix_s
