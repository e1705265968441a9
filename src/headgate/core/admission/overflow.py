"""Overflow: when may a hosted provider serve a request that waits for the model's own pools?

A model can have overflow pools. A request may use them if its own pools are expected to keep it waiting for longer than
the bound of the rule, or once it has waited that long. From then on, it waits for both: it keeps its place in the queue
of its own pools, and it competes for slots of the overflow pools by band, fair share and order like any other request.
The first slot that becomes free takes it, and of two free slots the one in its own pools.

A request whose data must stay local, or whose class sets a lower cost limit than the price of the provider, waits only
for its own pools. So does a request whose budget does not cover the provider. If there are several overflow pools, each
is checked by itself. The budget is also checked when the provider has a slot for the request. If it does not cover the
provider, it is checked again from time to time.
"""

from typing import Final

from headgate.core.admission.assignment import assign
from headgate.core.admission.feasibility import expected_queue_ns
from headgate.core.admission.gate import Admitted, exhausted_beyond, expected_wait, overflow_rule
from headgate.core.request_state import Request
from headgate.core.routing.model_tiers import allowed_pools
from headgate.core.routing.router import Candidate
from headgate.core.scheduler_state import SchedulerState
from headgate.model.policy import Overflow, ServiceClass
from headgate.model.units import SECOND, Duration, Instant, PoolName, after, format_seconds

_BUDGET_CHECK_NS_MIN: Final = Duration(SECOND)
"""Minimum interval between two checks of a queued request whose budget does not cover the provider."""


def overflow_on_arrival(request: Request, service_class: ServiceClass, state: SchedulerState, now: Instant) -> bool:
    """Lets a new request wait for its overflow pools if its own pools would serve it too late.

    `service_class` is the class without degradation. Returns whether an overflow pool has a slot for the request now,
    so that the state of its own pools does not matter.
    """
    if (rule := overflow_rule(request, state.rules)) is None:
        return False
    fleet, rules, pools = state.fleet, state.rules, request.pools
    # A request that would miss its target before the bound is reached would be rejected.
    bound = min(rule.after_ns, state.queue.wait_ns_left(request, now))
    if not fleet.live_count(pools):
        wait = expected_wait(pools, fleet, rules, state.queue.holds, now)
        why = f"no endpoint in pool {', '.join(pools)} is available"
    elif (until := exhausted_beyond(pools, fleet, rules, after(now, bound))) is not None:
        wait = Duration(until - now)
        why = f"the provider of pool {', '.join(pools)} accepts no requests for another {format_seconds(wait)}"
    else:
        wait = expected_queue_ns(request, state.queue.backlog, fleet, rules, threshold_ns=bound, now=now)
        why = f"the estimated wait of {format_seconds(wait)} exceeds {format_seconds(bound)}"
    if wait <= bound:
        return False
    usable = _usable_pools(request, service_class, rule, why, state, now=now)
    pools = _covered_pools(request, usable, why, state, now)
    if not pools:
        return False
    request.overflow_pools, request.overflow_reason = usable, why
    backlog, service_class = state.queue.backlog, request.service_class
    # A request of a class that an operator holds would not be sent anywhere.
    if service_class.name in backlog.held_classes:
        return False
    pools = tuple(each for each in pools if backlog.may_use_slots(service_class.band, each))
    return overflow_candidate(request, pools, state) is not None


def overflow_from_queue(request: Request, state: SchedulerState, now: Instant) -> None:
    """Lets a request that has been queued for as long as the rule allows wait for its overflow pools, too.

    If its budget does not cover them, it is checked again later. A request that waits for them already is offered their
    free slots again.
    """
    if request.overflow_pools:
        # The dispatcher checks the budget if one of these pools has a slot.
        state.fleet.queue_changed(request.overflow_pools)
        return
    rule = overflow_rule(request, state.rules)
    assert rule is not None, f"request {request.ticket.request_id} has an overflow timer, but no overflow rule"
    why = overflow_reason(request, now)
    pools = _usable_pools(request, _undegraded_class(request, state), rule, why, state, now=now)
    if _covered_pools(request, pools, why, state, now):
        state.queue.add_overflow(request, pools)
    elif pools:
        check_budget_later(request, rule, state, now)


def check_budget_later(request: Request, rule: Overflow, state: SchedulerState, now: Instant) -> None:
    """Sets the time of the next check of a queued request whose budget does not cover its overflow pools."""
    timers = state.queue.overflow_timers
    if request.ticket.request_id not in timers.live:
        timers.set(request.ticket.request_id, after(now, max(rule.after_ns, _BUDGET_CHECK_NS_MIN)))


def overflow_candidate(request: Request, pools: tuple[PoolName, ...], state: SchedulerState) -> Candidate | None:
    """Returns the best endpoint in these overflow pools, or None if none of them has a slot for the request."""
    own = request.pools, request.excluded, request.unreachable_endpoints
    request.pools = request.overflow_pools
    chosen = state.router.choose(request, pools, state.fleet)
    request.pools, request.excluded, request.unreachable_endpoints = own
    return chosen


def overflow_reason(request: Request, now: Instant) -> str:
    """Returns why a queued request may overflow."""
    waited = Duration(request.waited_ns + now - request.queued_since)
    return request.overflow_reason or f"the request has waited {format_seconds(waited)}"


def _covered_pools(
    request: Request, pools: tuple[PoolName, ...], why: str, state: SchedulerState, now: Instant
) -> tuple[PoolName, ...]:
    """Returns the overflow pools that the budgets cover for a request. If they cover none, notes why."""
    note = request.overflow_note
    covered = tuple(each for each in pools if not is_over_budget(request, each, why, state, now))
    if covered:
        request.overflow_note = note
    return covered


def is_over_budget(request: Request, pool: PoolName, why: str, state: SchedulerState, now: Instant) -> bool:
    """Returns whether a budget does not cover this overflow pool for a request, and notes which one."""
    if not state.budgets.has_budget(request):
        return False
    admitted = overflow_admission(request, pool, why, state)
    # Its own pools may have shortened its response, but this one would send it with the limits of its class.
    sent = Request(request.ticket, admitted.service_class, admitted.pools, request.sequence, now)
    assign(sent, admitted, state, now)
    if shortage := state.budgets.budget_shortage(sent, now):
        request.overflow_note = f"; no overflow although {why}: {shortage}"
    return bool(shortage)


def overflow_admission(request: Request, pool: PoolName, why: str, state: SchedulerState) -> Admitted:
    """Returns the class and the model with which this overflow pool serves the request.

    It has no route, because its rollout and mirror must not measure the provider.
    """
    return Admitted(_undegraded_class(request, state), (pool,), request.ticket.model, overflow=why)


def _undegraded_class(request: Request, state: SchedulerState) -> ServiceClass:
    """Returns the request's class without the degradation that the load of its own pools has caused."""
    rules = state.rules
    declared = rules.classes.get(request.service_class.name, request.service_class)
    return rules.class_for(declared, request.ticket.tenant)


def _usable_pools(
    request: Request, service_class: ServiceClass, rule: Overflow, why: str, state: SchedulerState, *, now: Instant
) -> tuple[PoolName, ...]:
    """Returns the overflow pools that the request may use, and notes what keeps it from being sent there."""
    usable: tuple[PoolName, ...] = ()
    pools = allowed_pools(rule.pools, service_class)
    shortages = {each: state.budgets.cost_limit_shortage(request, each, now) for each in pools}
    if not pools:
        local = state.rules.stays_local(service_class, request.ticket.tenant)
        cause = "data_residency: local excludes" if local else f'class "{service_class.name}" may not use'
        obstacle = f"{cause} pool {', '.join(rule.pools)}"
    elif usable := tuple(each for each in pools if not shortages[each]):
        # Its pools may have free slots, for example if an operator holds the class or an own slot is free as well.
        obstacle = f"it got no slot of pool {', '.join(usable)}"
    else:
        obstacle = shortages[pools[-1]]
    request.overflow_note = f"; no overflow although {why}: {obstacle}"
    return usable
