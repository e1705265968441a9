"""Measures the pressure on the requests that share a set of pools.

Pressure is measured in thousandths. At 1,000, queued requests are about to miss their targets. It is measured each
period while requests are queued and is the maximum of three values:

- Minimum wait: the shortest queue wait of all requests sent, relative to a quarter of the time-to-first-token target.
  One request that had to wait is not significant, but if every request had to wait, there is a standing queue.
- KV cache: the reserved fraction of the capacity.
- Work: the time that the endpoints need for the queued requests, with each request's time taken relative to its
  time-to-first-token target. Work that was recently lost because it could not be served in time is added. Rejected and
  timed-out requests are no longer queued, so if they were excluded, every overload would look like a load that can just
  about be handled.

Each degradation step uses the pressure on the requests it protects. Requests that a step would reject do not influence
whether the step is taken. Otherwise, many callers on plan free could raise the level until all other callers are
rejected. Cost-optimised classes such as batch are always excluded. They may wait, and their long waits are no reason to
reject other requests.
"""

from typing import Final

from headgate.core.request_state import Request
from headgate.core.routing.fleet import FleetState
from headgate.model.policy import OptimizationGoal
from headgate.model.tenant import Plan
from headgate.model.units import Duration, PoolName

WHOLE: Final = 1_000
"""A pressure of one, in thousandths."""
_MIN_WAIT_SCALE: Final = 4 * WHOLE
"""Factor that relates a wait to a quarter of the time-to-first-token target."""
_MILLION: Final = 1_000_000
_PERIODS: Final = 16
"""Approximate number of periods over which lost work is averaged."""

_CRITICAL: Final = Plan.CRITICAL
_STANDARD: Final = Plan.STANDARD
_COST_ROW: Final = 5
"""Row for cost-optimised classes, which do not count toward the pressure."""
SHEDDABILITY_MAX: Final = 4
"""Row that covers all requests that count toward the pressure."""
_COST: Final = OptimizationGoal.COST


def sheddability(plan: Plan, over_share: bool) -> int:  # noqa: FBT001 - A keyword is slower.
    """Returns the sheddability of a request. The highest value is rejected first.

    Plan critical never counts as over its share.
    """
    # Comparisons instead of a table, because Python 3.11 hashes enum members slowly.
    if plan is _CRITICAL:
        return 0
    if plan is _STANDARD:
        return 3 if over_share else 1
    return 4 if over_share else 2


def added_pressure(request: Request) -> int:
    """Returns the request's engine time relative to its target, in millionths. 0 if it has no target."""
    ttft_ns = request.overload_ttft_ns
    return 0 if not ttft_ns else 1 + _MILLION * request.cost_ns // ttft_ns


class Pressure:
    """Pressure on the requests that share a set of pools, by sheddability."""

    __slots__ = ("_last_min_waits", "_loss_rates", "_lost", "_min_waits", "_work", "values")

    def __init__(self) -> None:
        self.values = [0] * (_COST_ROW + 1)
        """Last measured pressure. Row `s` covers requests with sheddability `s` or lower. The last row covers all
        requests."""
        self._work = [0] * (_COST_ROW + 1)
        self._lost = [0] * (_COST_ROW + 1)
        """Lost engine time in the current period."""
        self._loss_rates = [0] * (_COST_ROW + 1)
        """Number of endpoints that the lost work would have kept busy, averaged over several periods, in millionths."""
        self._min_waits: list[int | None] = [None] * (_COST_ROW + 1)
        """Minimum wait of the requests sent in this period, in thousandths of a quarter of the target."""
        self._last_min_waits = [0] * (_COST_ROW + 1)
        """Minimum wait in the last period in which a request of this row was sent."""

    def enqueued(self, request: Request) -> None:
        self._work[_row(request)] += request.added_pressure

    def dequeued(self, request: Request) -> None:
        self._work[_row(request)] -= request.added_pressure

    def record_dispatched(self, request: Request, ttft_ns: Duration) -> None:
        """When a request is sent, records how long it was queued relative to its time-to-first-token target."""
        # Hold time is excluded, because it does not mean that the existing endpoints are full.
        wait, row = _MIN_WAIT_SCALE * (request.waited_ns - request.held_ns) // ttft_ns, _row(request)
        least = self._min_waits[row]
        if least is None or wait < least:
            self._min_waits[row] = wait

    def record_lost(self, request: Request) -> None:
        """Records a request that was rejected or timed out because it could not be served in time."""
        self._lost[_row(request)] += request.cost_ns

    def measure(self, period: Duration, *, endpoints: int, kv: int, learning: bool = False) -> list[int]:
        """Ends a period and returns the pressure of each row. The pressure is 0 if no endpoint is live.

        Until the engine speed has been learned (`learning`), queued work is ignored because its estimate is a guess.
        """
        work, losing, least = 0, 0, None
        for row in range(_COST_ROW + 1):
            self._loss_rates[row] += (_MILLION * self._lost[row] // period - self._loss_rates[row]) // _PERIODS
            losing += self._loss_rates[row]
            work += self._work[row]
            if (wait := self._min_waits[row]) is not None:
                least = wait if least is None else min(least, wait)
            if not work or not endpoints:
                self._last_min_waits[row] = self.values[row] = 0
            else:
                if least is not None:
                    self._last_min_waits[row] = least
                estimated = 0 if learning else (work + losing) * WHOLE // _MILLION // endpoints
                self.values[row] = max(self._last_min_waits[row], kv, estimated)
            self._lost[row], self._min_waits[row] = 0, None
        return self.values


def kv_reserved_permille(fleet: FleetState, pools: tuple[PoolName, ...]) -> int:
    """Returns the reserved fraction of the pools' KV cache, in thousandths. 0 if the capacity is unknown."""
    promised = capacity = 0
    for name in pools:
        pool = fleet.pools.get(name)
        if pool is None:
            continue
        for endpoint in pool.endpoints.values():
            if endpoint.live and endpoint.settings.kv_tokens is not None:
                promised += endpoint.kv_reserved
                capacity += endpoint.settings.kv_tokens
    return WHOLE * promised // capacity if capacity else 0


def _row(request: Request) -> int:
    return _COST_ROW if request.service_class.optimize_for is _COST else request.sheddability
