"""When is it worth trying again?

As soon as what waits has been taken, at the pace of the last seconds. A caller told to come
back earlier would only be refused again; one told to come back much later would leave us idle.
"""

from headgate.core.retry_budget import RetryBudget
from headgate.model.outcome import Outcome
from headgate.model.units import MINUTE, SECOND, Duration, Instant, PoolName

SHORTEST = SECOND
LONGEST = MINUTE
LONGEST_COUNTED = Duration(60 * MINUTE)
"""Of a wait that is not predicted: rates drain evenly and periods end, so it is known when a request may fit."""


def drain_time(waiting: int, pools: tuple[PoolName, ...], budget: RetryBudget, now: Instant) -> Duration:
    """How long until `waiting` requests, and one more, have been taken by these pools."""
    taken, within = budget.pace(pools, now)
    return Duration(min(LONGEST, max(SHORTEST, (waiting + 1) * within // max(1, taken))))


def bounded(wait: Duration | None, outcome: Outcome) -> Duration | None:
    return None if wait is None else Duration(min(longest(outcome), max(SHORTEST, wait)))


def longest(outcome: Outcome) -> Duration:
    return LONGEST_COUNTED if outcome in (Outcome.RATE_LIMITED, Outcome.OVER_BUDGET) else LONGEST
