"""What does a member that follows a scheduler know of the queue and the endpoints by itself?

Its own requests alone. What waits and runs in the whole cell is asked of the process that leads.
"""

from collections.abc import Iterable

from headgate.core.classify import classify
from headgate.core.rules import Rules
from headgate.core.summary import EndpointSummary, Summary
from headgate.hosts.cell.member.held import HeldRequest
from headgate.hosts.cell.protocol.messages import EndpointTold
from headgate.model.endpoint import EndpointState
from headgate.model.units import ClassName, EndpointId, PoolName


def summary_of(rules: Rules, held: Iterable[HeldRequest], endpoints: Iterable[EndpointTold]) -> Summary:
    """What a member knows by itself. A class that no scheduler has named yet is the one that would be asked for."""
    queued = {each.name: 0 for each in rules.policy.classes}
    in_flight: dict[EndpointId, int] = {}
    pools: dict[EndpointId, PoolName] = {}
    requests = 0
    for request in held:
        requests += not request.over
        for attempt in request.running.values():
            in_flight[attempt.order.endpoint_id] = in_flight.get(attempt.order.endpoint_id, 0) + 1
            pools[attempt.order.endpoint_id] = attempt.order.pool
        if not request.running and not request.over and (name := _class_of(request, rules)) is not None:
            queued[name] = queued.get(name, 0) + 1
    seen = [_seen(told, in_flight.get(told.endpoint.id, 0)) for told in endpoints]
    known = {each.id: None for each in seen}
    gone = [_gone(name, pools[name], count) for name, count in in_flight.items() if name not in known]
    return Summary(policy_hash=rules.hash, queued=queued, requests=requests, endpoints=(*seen, *gone))


def _class_of(request: HeldRequest, rules: Rules) -> ClassName | None:
    if request.last is not None:
        return request.last.order.service_class
    named = classify(request.ticket, rules)
    return None if named is None else named.name


def _seen(told: EndpointTold, in_flight: int) -> EndpointSummary:
    state = EndpointState.READY if told.ready else EndpointState.WARMING
    endpoint = told.endpoint
    return EndpointSummary(
        endpoint.id, endpoint.pool, state, leaving=False, in_flight=in_flight, in_flight_max=endpoint.in_flight_max
    )


def _gone(endpoint_id: EndpointId, pool: PoolName, in_flight: int) -> EndpointSummary:
    """One that has left, with something of ours still under way there."""
    state = EndpointState.READY
    return EndpointSummary(endpoint_id, pool, state, leaving=True, in_flight=in_flight, in_flight_max=in_flight)
