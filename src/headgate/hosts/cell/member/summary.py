"""Summary of a member that follows a scheduler.

It covers only the member's own requests. Only the scheduler's process knows the queued and running requests of the
whole cell.
"""

from collections.abc import Iterable

from headgate.core.classify import classify
from headgate.core.rules import Rules
from headgate.core.summary import EndpointSummary, Summary
from headgate.hosts.cell.member.held_requests import HeldRequest
from headgate.hosts.cell.protocol.messages import EndpointUpdate
from headgate.model.endpoint import EndpointState
from headgate.model.units import ClassName, EndpointId, PoolName


def summary_of(rules: Rules, held: Iterable[HeldRequest], endpoints: Iterable[EndpointUpdate]) -> Summary:
    """Returns the member's own view. A request that no scheduler has classified counts in the class it would get."""
    queued = {each.name: 0 for each in rules.policy.classes}
    in_flight: dict[EndpointId, int] = {}
    pools: dict[EndpointId, PoolName] = {}
    requests = 0
    for request in held:
        requests += not request.over
        for attempt in request.running.values():
            in_flight[attempt.dispatch.endpoint_id] = in_flight.get(attempt.dispatch.endpoint_id, 0) + 1
            pools[attempt.dispatch.endpoint_id] = attempt.dispatch.pool
        if not request.running and not request.over and (name := _class_of(request, rules)) is not None:
            queued[name] = queued.get(name, 0) + 1
    seen = [_endpoint_summary(told, in_flight.get(told.endpoint.id, 0)) for told in endpoints]
    known = {each.id: None for each in seen}
    gone = [
        _departed_endpoint_summary(name, pools[name], count) for name, count in in_flight.items() if name not in known
    ]
    return Summary(policy_hash=rules.hash, queued=queued, requests=requests, endpoints=(*seen, *gone))


def _class_of(request: HeldRequest, rules: Rules) -> ClassName | None:
    if request.last_attempt is not None:
        return request.last_attempt.dispatch.service_class
    # A copy is sent at once or not at all, so it is never queued.
    named = None if request.ticket.mirror_route else classify(request.ticket, rules)
    return None if named is None else named.name


def _endpoint_summary(told: EndpointUpdate, in_flight: int) -> EndpointSummary:
    state = EndpointState.READY if told.ready else EndpointState.WARMING
    endpoint = told.endpoint
    return EndpointSummary(
        endpoint.id, endpoint.pool, state, leaving=False, in_flight=in_flight, in_flight_max=endpoint.in_flight_max
    )


def _departed_endpoint_summary(endpoint_id: EndpointId, pool: PoolName, in_flight: int) -> EndpointSummary:
    """Returns the summary of an endpoint that has left but is still running this member's attempts."""
    state = EndpointState.READY
    return EndpointSummary(endpoint_id, pool, state, leaving=True, in_flight=in_flight, in_flight_max=in_flight)
