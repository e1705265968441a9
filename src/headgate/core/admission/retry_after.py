"""Computes `Retry-After` for rejected requests.

`Retry-After` is the time needed to send the queued requests at the rate observed over the last few seconds. A shorter
value would only cause another rejection. A much longer one would leave capacity unused.
"""

from headgate.core.retry_budget import RetryBudget
from headgate.model.outcome import Outcome
from headgate.model.units import MINUTE, SECOND, Duration, Instant, PoolName

RETRY_AFTER_MIN = SECOND
RETRY_AFTER_MAX = MINUTE
RETRY_AFTER_EXACT_MAX = Duration(60 * MINUTE)
"""Maximum Retry-After for rate limits and budgets.

The wait for these is known exactly, because rates drain evenly and periods end at a known time.
"""


def drain_time(waiting: int, pools: tuple[PoolName, ...], retry_budget: RetryBudget, now: Instant) -> Duration:
    """Returns the expected time until these pools have accepted `waiting` requests and one more."""
    taken, within = retry_budget.recent_first_attempts(pools, now)
    return Duration(min(RETRY_AFTER_MAX, max(RETRY_AFTER_MIN, (waiting + 1) * within // max(1, taken))))


def clamp_retry_after(wait: Duration | None, outcome: Outcome) -> Duration | None:
    return None if wait is None else Duration(min(retry_after_max(outcome), max(RETRY_AFTER_MIN, wait)))


def retry_after_max(outcome: Outcome) -> Duration:
    return RETRY_AFTER_EXACT_MAX if outcome in (Outcome.RATE_LIMITED, Outcome.BUDGET_EXCEEDED) else RETRY_AFTER_MAX
