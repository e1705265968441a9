"""How hard are those pressed who wait for the same pools?

Pressure is counted in thousandths: at 1,000 the targets of those who wait are about to be missed. It is the greatest of
three, measured each period while anything waits:

- how long the one waited that waited least of all who went, beside a quarter of its time to first token. One who waits
  is no sign of anything; if nobody went without waiting, a queue stands;
- how much of the KV cache is promised;
- how long the endpoints would work on what waits, each request beside its own time to first token; and with it what
  was lost in the last seconds because it could not be served in time. Those who are refused at once, or give up, do not
  wait any more, and without them an overload of any size would look like one that is just met.

It is measured for those whom a step of the ladder protects: who would be refused by the step has no say in whether it
is taken, or a crowd of free callers could have the ladder turn everybody away. Work whose class keeps costs low, such
as batch, has no say at all: it may wait, and that it waits for long is no reason to refuse others.
"""

from typing import Final

from headgate.core.routing.fleet import Fleet
from headgate.core.state import Request
from headgate.model.policy import Promise
from headgate.model.tenant import Plan
from headgate.model.units import Duration, PoolName

WHOLE: Final = 1_000
"""A pressure of one, in the thousandths in which it is counted."""
_LEAST_WAIT: Final = 4 * WHOLE
"""Of the time to first token a quarter."""
_MILLION: Final = 1_000_000
_PERIODS: Final = 16
"""Over about so many periods the losses are averaged."""

IN_SHARE: Final = {Plan.CRITICAL: 0, Plan.STANDARD: 1, Plan.FREE: 2}
OVER_SHARE: Final = {Plan.CRITICAL: 0, Plan.STANDARD: 3, Plan.FREE: 4}
"""The standing of a request: who has the highest is refused first. Plan critical is never over its share."""
_YIELDING: Final = 5
"""The row of what has no say."""
ALL: Final = 4
"""Everybody who has a say."""


def standing(plan: Plan, *, over_share: bool) -> int:
    return (OVER_SHARE if over_share else IN_SHARE)[plan]


def pressing(request: Request) -> int:
    """How much of an endpoint's time it asks for beside its target, in millionths; nothing where it has no target."""
    ttft_ns = request.begin_ns_max
    return 0 if not ttft_ns else 1 + _MILLION * request.cost_ns // ttft_ns


class Pressure:
    """Of those who wait for the same pools, by their standing."""

    __slots__ = ("_least", "_losing", "_lost", "_waits", "_work", "felt")

    def __init__(self) -> None:
        self.felt = [0] * (_YIELDING + 1)
        """As last measured, by those of each standing and of all below it; the last entry is of really everybody."""
        self._work = [0] * (_YIELDING + 1)
        self._lost = [0] * (_YIELDING + 1)
        """Engine time, in this period."""
        self._losing = [0] * (_YIELDING + 1)
        """How many endpoints would have been busy with what was lost, on the mean of some periods, in millionths."""
        self._least: list[int | None] = [None] * (_YIELDING + 1)
        """The least wait of those who went in this period, in thousandths of a quarter of the target."""
        self._waits = [0] * (_YIELDING + 1)
        """The same of the last period in which anybody of this standing or below went."""

    def queued(self, request: Request) -> None:
        self._work[_row(request)] += request.pressing

    def left(self, request: Request) -> None:
        self._work[_row(request)] -= request.pressing

    def went(self, request: Request) -> None:
        """It has been sent, after having waited so long."""
        ttft_ns = request.begin_ns_max
        if ttft_ns:
            # That no endpoint was there is not for want of places at those that are.
            wait, row = _LEAST_WAIT * (request.waited_ns - request.held_ns) // ttft_ns, _row(request)
            least = self._least[row]
            if least is None or wait < least:
                self._least[row] = wait

    def lost(self, request: Request) -> None:
        """It was refused, or has expired, because it could not be served in time."""
        self._lost[_row(request)] += request.cost_ns

    def measure(self, period: Duration, *, endpoints: int, kv: int, learning: bool = False) -> list[int]:
        """Ends a period: what is felt. With no endpoint at work nothing is learned from waiting for one.

        While the engines' speed is a guess (`learning`), the work that waits does not count, since it is estimated.
        """
        work, losing, least = 0, 0, None
        for row in range(_YIELDING + 1):
            self._losing[row] += (_MILLION * self._lost[row] // period - self._losing[row]) // _PERIODS
            losing += self._losing[row]
            work += self._work[row]
            if (wait := self._least[row]) is not None:
                least = wait if least is None else min(least, wait)
            if not work or not endpoints:
                self._waits[row] = self.felt[row] = 0
            else:
                if least is not None:
                    self._waits[row] = least
                estimated = 0 if learning else (work + losing) * WHOLE // _MILLION // endpoints
                self.felt[row] = max(self._waits[row], kv, estimated)
            self._lost[row], self._least[row] = 0, None
        return self.felt


def kv_promised(fleet: Fleet, pools: tuple[PoolName, ...]) -> int:
    """How much of the KV cache of these pools is promised, in thousandths; 0 where nobody said how much there is."""
    promised = capacity = 0
    for name in pools:
        pool = fleet.pools.get(name)
        if pool is None:
            continue
        for endpoint in pool.endpoints.values():
            if endpoint.live and endpoint.terms.kv_tokens is not None:
                promised += endpoint.kv_reserved
                capacity += endpoint.terms.kv_tokens
    return WHOLE * promised // capacity if capacity else 0


def _row(request: Request) -> int:
    return _YIELDING if request.service_class.promise is Promise.COST else request.standing
