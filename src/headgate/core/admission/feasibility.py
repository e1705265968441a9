"""Rejects requests on arrival if they cannot meet their deadline.

The estimated wait of a new request is the queued work ahead of it divided by the number of endpoints that serve it. The
work ahead is the work of all higher-priority bands, the work of its own tenant and, for every other tenant in its band,
at most that tenant's weighted share. If `in_flight_max` is the bottleneck, endpoints serve only as fast as slots become
free. Long prompts have their own lane and are estimated separately. A request whose estimated wait exceeds its limit is
rejected immediately, so that the caller can try elsewhere in time.

The two possible errors have different costs. A request that is wrongly rejected is lost, but one that is wrongly
admitted expires in the queue without using engine time. The estimate is therefore a lower bound: it ignores later
arrivals in higher-priority bands and assumes that a lower band gets all idle capacity. While the engine speed is still
a guess, no request is rejected because of an estimate.
"""

from math import isqrt
from typing import Final

from headgate.core.admission.gate import Rejection
from headgate.core.queues.backlog import Backlog
from headgate.core.request_state import Request
from headgate.core.routing.fleet import FleetState
from headgate.core.routing.turnover import MILLE
from headgate.core.rules import Rules
from headgate.model.outcome import Outcome
from headgate.model.units import Duration, Instant, TenantId, format_seconds

_TENANTS_SCANNED_MAX: Final = 64
"""Maximum number of other tenants whose queued work is added up. The work of any additional tenants is ignored."""


def deadline_infeasible_rejection(
    request: Request, allowed: Duration, backlog: Backlog, fleet: FleetState, rules: Rules, *, now: Instant
) -> Rejection | None:
    """Returns a rejection if the estimated wait exceeds `allowed`, the longest wait that still meets the deadline."""
    certainty = rules.policy.admission.predicted_wait_percent_max
    if certainty is None or fleet.is_learning(request.pools):
        return None
    enough = Duration(certainty * allowed // 100)
    wait = wait_ns(request, backlog, fleet, rules, threshold_ns=enough)
    if wait is None:
        if fleet.has_places(request.pools):
            return None
        wait = fleet.free_in_ns(request.pools, _work_ahead(request, backlog, rules), now)
        if wait <= enough:
            return None
    reason = (
        f"the estimated wait is {format_seconds(wait)}, but the request may wait at most {format_seconds(allowed)} "
        f'in class "{request.service_class.name}"; retry later or use a class that allows a longer wait'
    )
    return Rejection(Outcome.DEADLINE_INFEASIBLE, reason, request.service_class, Duration(wait - allowed))


def expected_queue_ns(
    request: Request, backlog: Backlog, fleet: FleetState, rules: Rules, *, threshold_ns: Duration, now: Instant
) -> Duration:
    """Returns a lower bound on the request's queue wait. 0 if it is at most `threshold_ns` or cannot be estimated."""
    if (not backlog.length and fleet.has_places(request.pools)) or fleet.is_learning(request.pools):
        return Duration(0)
    wait = wait_ns(request, backlog, fleet, rules, threshold_ns=threshold_ns)
    if wait is None and not fleet.has_places(request.pools):
        wait = fleet.free_in_ns(request.pools, _work_ahead(request, backlog, rules), now)
    return Duration(0) if wait is None or wait <= threshold_ns else wait


def wait_ns(
    request: Request, backlog: Backlog, fleet: FleetState, rules: Rules, *, threshold_ns: Duration
) -> Duration | None:
    """Returns a lower bound on the request's wait behind the queued work, or None if it is at most `threshold_ns`."""
    pools, band = request.pools, request.service_class.band
    most = backlog.work.ahead_of_band(pools, band) + backlog.work.peers_total(request)
    if not most and threshold_ns >= 0:
        return None
    pace = fleet.service_rate(pools, long=request.long_prompt)
    grain = fleet.mean_request_ns(pools)
    if _cautious_wait(most, pace, grain) <= threshold_ns:
        return None
    late = _cautious_wait(_work_ahead(request, backlog, rules), pace, grain)
    return late if late > threshold_ns else None


def _cautious_wait(work: int, pace: int, grain: Duration) -> Duration:
    """Returns a cautious estimate of the time to serve `work`: one standard deviation above the mean.

    Slots become free at random times, so half of the requests would still be waiting after the mean wait.
    """
    wait = work * MILLE // pace
    return Duration(wait + isqrt(wait * grain * MILLE // pace))


def _work_ahead(request: Request, backlog: Backlog, rules: Rules) -> Duration:
    """Returns the engine time of the queued work that is served before the request."""
    before, waiting = (
        backlog.work.ahead_of_band(request.pools, request.service_class.band),
        backlog.work.peers_by_tenant(request),
    )
    own = waiting.get(request.account, 0)
    if not before and not own:
        # A tenant with nothing queued is served next in its band, regardless of other tenants' work.
        return Duration(0)
    return Duration(before + own + _others_work_ahead(waiting, request.account, own + request.cost_ns, rules))


def _others_work_ahead(waiting: dict[TenantId, int], account: TenantId, own: int, rules: Rules) -> int:
    """Returns the engine time that other tenants get while this tenant gets `own`."""
    weight, total = rules.weight(account), 0
    for number, (other, work) in enumerate(waiting.items()):
        if number > _TENANTS_SCANNED_MAX:
            break
        if other != account:
            total += min(work, own * rules.weight(other) // weight)
    return total
