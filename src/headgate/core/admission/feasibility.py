"""Can its deadline be met?

The wait of a new request follows from the requests that are already queued: those of all bands before its own, those of
its own tenant, and for every other tenant of its band at most that tenant's weighted share beside its own. Their sum is
divided by the number of endpoints that work on it. Where `in_flight_max` binds, the endpoints work only as fast as
places become free. Long prompts have their own lane and are estimated separately. A request is rejected immediately if
the estimated wait is longer than it may wait, so that its caller can go elsewhere in time.

The two errors differ in cost: a request that is rejected in error is lost, while one that is admitted in error expires
in the queue and costs no engine time. So the wait is estimated from below: later arrivals in the bands before its own
do not count, and a lower band still gets the capacity that is idle in a lull. While the speed of the engines is still a
guess, no request is rejected by an estimate.
"""

from math import isqrt
from typing import Final

from headgate.core.admission.gate import Refusal
from headgate.core.queues.bands import Backlog
from headgate.core.routing.fleet import Fleet
from headgate.core.routing.turnover import MILLE
from headgate.core.rules import Rules
from headgate.core.state import Request
from headgate.model.outcome import Outcome
from headgate.model.units import Duration, Instant, TenantId, seconds

_TENANTS_LOOKED_AT: Final = 64
"""So many others are reckoned one by one; beyond them the share of each is not bounded by what it has waiting."""


def unreachable(
    request: Request, allowed: Duration, backlog: Backlog, fleet: Fleet, rules: Rules, *, now: Instant
) -> Refusal | None:
    """Whether it would wait for longer than is allowed if it is to be worth sending."""
    certainty = rules.policy.admission.certainty_percent
    if certainty is None or fleet.learning(request.pools):
        return None
    enough = Duration(certainty * allowed // 100)
    wait = wait_ns(request, backlog, fleet, rules, enough=enough)
    if wait is None:
        if fleet.has_places(request.pools):
            return None
        wait = fleet.free_in_ns(request.pools, _ahead(request, backlog, rules), now)
        if wait <= enough:
            return None
    reason = (
        f"it would wait about {seconds(wait)} and may wait {seconds(allowed)} "
        f'in class "{request.service_class.name}"; come back later or ask in a class that waits longer'
    )
    return Refusal(Outcome.UNREACHABLE, reason, request.service_class, Duration(wait - allowed))


def wait_ns(request: Request, backlog: Backlog, fleet: Fleet, rules: Rules, *, enough: Duration) -> Duration | None:
    """How long it would wait behind what waits already, at the least; None where that is not more than `enough`."""
    pools, band = request.pools, request.service_class.band
    most = backlog.work.before(pools, band) + backlog.work.all_beside(request)
    if not most and enough >= 0:
        return None
    pace = fleet.pace(pools, long=request.long)
    grain = fleet.grain_ns(pools)
    if _late(most, pace, grain) <= enough:
        return None
    late = _late(_ahead(request, backlog, rules), pace, grain)
    return late if late > enough else None


def _late(work: int, pace: int, grain: Duration) -> Duration:
    """A cautious estimate of how long `work` takes: one standard deviation above the mean.

    Places become free at random moments. After the mean wait, half of the requests would still be waiting.
    """
    wait = work * MILLE // pace
    return Duration(wait + isqrt(wait * grain * MILLE // pace))


def _ahead(request: Request, backlog: Backlog, rules: Rules) -> Duration:
    """The engine time that is served before the request."""
    before, waiting = backlog.work.before(request.pools, request.service_class.band), backlog.work.beside(request)
    own = waiting.get(request.account, 0)
    if not before and not own:
        # Whoever has nothing waiting is the next of its band, and what waits of others is no matter.
        return Duration(0)
    return Duration(before + own + _of_others(waiting, request.account, own + request.cost_ns, rules))


def _of_others(waiting: dict[TenantId, int], account: TenantId, own: int, rules: Rules) -> int:
    """What is served of the other tenants while `own` of this one is."""
    weight, total = rules.weight(account), 0
    for number, (other, work) in enumerate(waiting.items()):
        if number > _TENANTS_LOOKED_AT:
            break
        if other != account:
            total += min(work, own * rules.weight(other) // weight)
    return total
