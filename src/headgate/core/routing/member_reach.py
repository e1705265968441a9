"""Tracks the endpoints that each cell member avoids because it cannot reach them.

If one member's requests fail on an endpoint that serves most other members, the endpoint is not ejected
(`fault_attribution`). However, the member's next requests would fail there too. After the number of consecutive
failures that would eject an endpoint, the member therefore avoids it. The rules are the same as for ejections: the
first avoidance lasts `ejection_time`, each consecutive one lasts twice as long, up to `ejection_time_max`, and each
ends with a trial of one request. The avoidance ends when the endpoint starts to respond to a request.

A member that has no other endpoint may use all endpoints (`router`).

A successor does not receive this state. The next few failures restore it.
"""

from headgate.core import health
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.placement import Placement
from headgate.core.timers import TimerHeap, Timers
from headgate.model.policy import HealthRules
from headgate.model.units import EndpointId, Instant, after

_MemberEndpoint = tuple[str, EndpointId]
"""Member and endpoint."""


class _MemberFailures:
    """One member's failures on one endpoint that are the member's fault."""

    __slots__ = ("avoid_count", "avoided", "endpoint", "failures", "trial")

    def __init__(self, endpoint: EndpointRecord) -> None:
        self.endpoint = endpoint
        self.failures = 0
        """Consecutive failures."""
        self.avoid_count = 0
        """Number of consecutive times that the member has avoided the endpoint."""
        self.avoided = False
        self.trial = False
        """Whether the member is on trial, so that its next failure makes it avoid the endpoint again."""


class MemberReach:
    __slots__ = ("_placement", "_timers", "avoided", "failing")

    def __init__(self, placement: Placement, timer_heap: TimerHeap) -> None:
        self._placement = placement
        self.failing: dict[_MemberEndpoint, _MemberFailures] = {}
        """State of each member and endpoint with failures. An entry is dropped when its timer fires without further
        failures, so members that have left the cell leave no state behind."""
        self._timers: Timers[_MemberEndpoint] = Timers(timer_heap)
        self.avoided: dict[str, dict[EndpointId, EndpointRecord]] = {}
        """Endpoints that each member avoids. Members that may use all endpoints have no entry."""

    def record_failure(self, member: str, endpoint: EndpointRecord, now: Instant, rules: HealthRules) -> bool:
        """Records a failure that is the member's fault. Returns whether the member avoids the endpoint from now on."""
        way = (member, endpoint.id)
        failing = self.failing.get(way)
        if failing is None:
            failing = self.failing[way] = _MemberFailures(endpoint)
        if failing.avoided and not failing.trial:
            # The request was sent before the member started to avoid the endpoint.
            return False
        failing.failures += 1
        if not failing.trial and failing.failures < rules.consecutive_failures_max:
            self._timers.set(way, after(now, rules.ejection_ns_max))
            return False
        failing.trial = False
        failing.avoid_count += 1
        self._avoid(way, failing, now, rules)
        return True

    def record_served(self, member: str, endpoint: EndpointRecord) -> None:
        """Records that the endpoint has started to respond to a request from this member."""
        if (member, endpoint.id) in self.failing:
            self._forget((member, endpoint.id))

    def record_sent(self, member: str, endpoint: EndpointRecord, now: Instant, rules: HealthRules) -> None:
        """Records a sent request. During a trial, the member avoids the endpoint until that request has a result."""
        failing = self.failing.get((member, endpoint.id))
        if failing is not None and failing.trial and not failing.avoided:
            self._avoid((member, endpoint.id), failing, now, rules)

    def apply_due(self, now: Instant, rules: HealthRules) -> None:
        """Applies due timers: puts members on trial, and drops entries without further failures."""
        for way in self._timers.pop_fired():
            failing = self.failing[way]
            if failing.avoided:
                failing.trial = True
                self._readmit(way, failing)
                self._timers.set(way, after(now, rules.ejection_ns_max))
            else:
                self._forget(way)

    def forget(self, endpoint: EndpointRecord) -> None:
        """Drops the entries of an endpoint that was removed or ejected for all members."""
        for way in [each for each in self.failing if each[1] == endpoint.id]:
            self._forget(way)

    def _avoid(self, way: _MemberEndpoint, failing: _MemberFailures, now: Instant, rules: HealthRules) -> None:
        failing.avoided = True
        self.avoided.setdefault(way[0], {})[way[1]] = failing.endpoint
        self._timers.set(way, after(now, health.ejection_ns(failing.avoid_count - 1, rules)))
        self._placement.recheck_all_pools()

    def _readmit(self, way: _MemberEndpoint, failing: _MemberFailures) -> None:
        member, endpoint_id = way
        failing.avoided = False
        if (endpoints := self.avoided.get(member)) is not None:
            endpoints.pop(endpoint_id, None)
            if not endpoints:
                del self.avoided[member]
        self._placement.recheck_all_pools()

    def _forget(self, way: _MemberEndpoint) -> None:
        self._timers.clear(way)
        self._readmit(way, self.failing.pop(way))
