"""Does the answer of a server make a client try again, and after how long?

The rule is that of simulated callers too (`headgate.simulation.virtual.manners`); here it is read from an answer.
"""

import math
from email.utils import mktime_tz, parsedate_tz
from typing import Final

from headgate.simulation.virtual import manners

RETRIES: Final = manners.RETRIES

_WAIT_HEADERS: Final = ((b"retry-after-ms", 1000.0), (b"retry-after", 1.0))
_SAID: Final = {b"true": True, b"false": False}


def wait_before_retry_s(
    *, status: int | None, headers: dict[bytes, bytes], retries_taken: int, chance: float, unix_s: float
) -> float | None:
    """How long to wait before the next try, or None if there is none. `status` is None where no answer came."""
    return manners.wait_before_retry_s(
        status=status,
        should_retry=_SAID.get(headers.get(b"x-should-retry", b"")),
        asked_s=_asked_wait_s(headers, unix_s),
        retries_taken=retries_taken,
        chance=chance,
    )


def _asked_wait_s(headers: dict[bytes, bytes], unix_s: float) -> float | None:
    for name, divisor in _WAIT_HEADERS:
        try:
            wait = float(headers[name]) / divisor
        except (KeyError, ValueError):
            continue
        return wait if math.isfinite(wait) else None
    date = parsedate_tz(headers.get(b"retry-after", b"").decode("latin-1"))
    return None if date is None else mktime_tz(date) - unix_s
