"""Assigns a class and pools to a request: estimates its cost, and applies degradation and the cost limit of its class.

Nothing is spent or reserved, so a copy of a request shows what the request would be in other pools.
"""

from headgate.core.admission.gate import Admitted
from headgate.core.estimate import estimate
from headgate.core.request_state import Request
from headgate.core.scheduler_state import SchedulerState
from headgate.model.units import Instant


def assign(request: Request, admitted: Admitted, state: SchedulerState, now: Instant) -> None:
    """Assigns a class and pools to the request and applies the current degradation level."""
    fleet, budgets, predictions, rules = state.fleet, state.budgets, state.predictions, state.rules
    request.service_class, request.pools, request.model = admitted.service_class, admitted.pools, admitted.model
    request.route = admitted.route
    request.fell_back = admitted.model != request.ticket.model
    if request.overflow_note:
        request.overflow_pools, request.overflow_reason, request.overflow_note = (), "", ""
    estimate(request, predictions, fleet, rules)
    state.overload.degrade(request, fleet, budgets.degradation_level(request))
    if admitted.overflow:
        # An endpoint of these pools has already been chosen, so degradation must not select others.
        request.pools, request.model = admitted.pools, admitted.model
        request.overflow_note = f"; overflow: {admitted.overflow}"
    if request.level:
        estimate(request, predictions, fleet, rules)
    if budgets.cost_capped and budgets.apply_cost_cap(request, fleet, now):
        estimate(request, predictions, fleet, rules)
    request.work_key = (request.pools, request.service_class.band, request.long_prompt)
