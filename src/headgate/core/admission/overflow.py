"""Overflow: does a request leave its own pools for a hosted provider?

A model can have overflow pools. The scheduler sends a request there if its own pools are expected to keep it waiting
for longer than the bound of the rule, on arrival or once it has waited that long, provided that an overflow pool has a
free slot. In every other case, the model's own pools come first. A request whose data must stay local keeps its own
pools.
"""

from typing import Final

from headgate.core.admission.feasibility import expected_queue_ns
from headgate.core.admission.gate import Admitted, exhausted_beyond, expected_wait, overflow_rule
from headgate.core.request_state import Request
from headgate.core.routing.model_tiers import allowed_pools
from headgate.core.scheduler_state import SchedulerState
from headgate.model.policy import Overflow, ServiceClass
from headgate.model.units import MILLISECOND, Duration, Instant, after, format_seconds

CHECK_NS_MIN: Final = Duration(250 * MILLISECOND)
"""Minimum interval between two checks of a queued request."""


def overflow_on_arrival(
    request: Request, service_class: ServiceClass, state: SchedulerState, now: Instant
) -> Admitted | None:
    """Returns the overflow pools for a new request that its own pools would serve too late.

    `service_class` is the class without degradation. If the request must stay, the reason is noted for explanations.
    """
    if (rule := overflow_rule(request, state.rules)) is None or _is_held_by_operator(request, state):
        return None
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
    return _overflow(request, service_class, rule, why, state) if wait > bound else None


def overflow_from_queue(request: Request, rule: Overflow, state: SchedulerState, now: Instant) -> Admitted | None:
    """Returns the overflow pools for a request that has been queued for as long as the rule allows."""
    if _is_held_by_operator(request, state):
        return None
    rules, name = state.rules, request.service_class.name
    service_class = rules.class_for(rules.classes.get(name, request.service_class), request.ticket.tenant)
    waited = Duration(request.waited_ns + now - request.queued_since)
    other = _overflow(request, service_class, rule, f"the request has waited {format_seconds(waited)}", state)
    return other if other is not None and state.budgets.allows_pools(request, other.pools, now) else None


def next_check(rule: Overflow, now: Instant) -> Instant:
    """Returns when to check a queued request again for which the overflow pools had no free slot."""
    return after(now, max(rule.after_ns, CHECK_NS_MIN))


def _is_held_by_operator(request: Request, state: SchedulerState) -> bool:
    """Returns whether an operator holds the request's class, so that the request would not be sent anywhere."""
    return request.service_class.name in state.queue.backlog.held_classes


def _overflow(
    request: Request, service_class: ServiceClass, rule: Overflow, why: str, state: SchedulerState
) -> Admitted | None:
    pools = allowed_pools(rule.pools, service_class)
    if not pools:
        local = state.rules.stays_local(service_class, request.ticket.tenant)
        cause = "data_residency: local excludes" if local else f'class "{service_class.name}" may not use'
        request.overflow_note = f"; no overflow although {why}: {cause} pool {', '.join(rule.pools)}"
        return None
    if state.router.choose(request, pools, state.fleet) is None:
        request.overflow_note = f"; no overflow although {why}: pool {', '.join(pools)} has no free slot"
        return None
    # No route, because its rollout and mirror must not measure the provider.
    return Admitted(service_class, pools, request.ticket.model, overflow=why)
