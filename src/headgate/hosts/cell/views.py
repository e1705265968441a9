"""What does a process of a cell show to those who look?

A picture of one moment, made on demand. A member that follows a scheduler knows of its own requests alone; what waits
and runs in the whole cell is asked of the process that leads.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from headgate.core.classify import classify
from headgate.core.rules import Rules
from headgate.core.summary import EndpointSummary, Summary
from headgate.hosts.cell.held import HeldRequest
from headgate.hosts.cell.messages import EndpointTold, Epoch, Share
from headgate.model.endpoint import EndpointState
from headgate.model.units import ClassName, EndpointId, PoolName


class Mode(StrEnum):
    """Whom a member goes by."""

    SEEKING = "seeking"
    FOLLOWING = "following"
    ISLAND = "island"


class Standing(StrEnum):
    """What a member is to the scheduler."""

    EXPECTED = "expected"
    """Known of, and yet to report, while reports are gathered."""
    PRESENT = "present"
    """Has reported, and answers."""
    ABSENT = "absent"
    """Does not answer: it may be an island, and what it has and may take is kept for it."""
    DEAD = "dead"
    """A life that is over; what it had may still be at the engines."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """What the scheduler knows of a member."""

    standing: Standing
    policy_hash: str
    staged: str
    """Rules that it has read and does not go by; empty where there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    mode: Mode
    epoch: Epoch | None
    """The one that is followed, or would be."""
    leads: bool
    share: Share
    """What this process takes, or would take, by itself."""
    unacknowledged: int
    """Messages that the scheduler has yet to acknowledge."""
    held: int
    """Requests that have not ended, and those that have with something of them under way."""
    unsettled: int
    """Ends that no confirmed snapshot covers."""
    staged: str
    members: Mapping[str, MemberView]
    """By their names; only where this process leads."""


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
