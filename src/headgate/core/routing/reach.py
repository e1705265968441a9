"""Which endpoints does each member of a cell stay away from, because it alone cannot reach them?

Failures of one member at an endpoint that serves most other members do not eject the endpoint (`blame`).
But the member's next requests would fail there too. So after as many failures in a row as eject an endpoint, the
member's requests go elsewhere. The rules are those of an ejection: it lasts `eject`, each one in a row twice as long up
to `eject_max`, and ends with a trial of one request. The first answer that begins ends it for good.

A member without any other endpoint may use all of them (`least_seconds`).

This state is not handed to a successor: the next few failures restore it.
"""

from headgate.core import health
from headgate.core.alarms import Agenda, Alarms
from headgate.core.routing.endpoints import EndpointRecord
from headgate.core.routing.placement import Placement
from headgate.model.policy import HealthRules
from headgate.model.units import EndpointId, Instant, after

_Way = tuple[str, EndpointId]
"""A member and an endpoint."""


class _Failing:
    """Failures of one member at one endpoint that are not the endpoint's fault."""

    __slots__ = ("away", "endpoint", "failures", "spells", "trial")

    def __init__(self, endpoint: EndpointRecord) -> None:
        self.endpoint = endpoint
        self.failures = 0
        """Failures in a row."""
        self.spells = 0
        """How many times in a row the member was kept away."""
        self.away = False
        self.trial = False
        """Whether its next failure, or that of the request on trial, keeps it away again."""


class Reach:
    __slots__ = ("_failing", "_looks", "_placement", "away")

    def __init__(self, placement: Placement, agenda: Agenda) -> None:
        self._placement = placement
        self._failing: dict[_Way, _Failing] = {}
        """Each entry has an alarm and is dropped when it fires without news of the member, so departed members leave no
        state behind."""
        self._looks: Alarms[_Way] = Alarms(agenda)
        self.away: dict[str, dict[EndpointId, EndpointRecord]] = {}
        """The endpoints that each member stays away from; no entry for a member that may use all."""

    def failed(self, member: str, endpoint: EndpointRecord, now: Instant, rules: HealthRules) -> bool:
        """Records a failure of the member itself; returns whether the member stays away from now on."""
        way = (member, endpoint.id)
        failing = self._failing.get(way)
        if failing is None:
            failing = self._failing[way] = _Failing(endpoint)
        if failing.away and not failing.trial:
            # The request was sent before the member was kept away.
            return False
        failing.failures += 1
        if not failing.trial and failing.failures < rules.failures_max:
            self._looks.set(way, after(now, rules.eject_ns_max))
            return False
        failing.trial = False
        failing.spells += 1
        self._keep_away(way, failing, now, rules)
        return True

    def served(self, member: str, endpoint: EndpointRecord) -> None:
        """Records that the endpoint has begun to answer a request of this member."""
        if (member, endpoint.id) in self._failing:
            self._forget((member, endpoint.id))

    def sent(self, member: str, endpoint: EndpointRecord, now: Instant, rules: HealthRules) -> None:
        """Records a request to the endpoint. During a trial, no second request is sent until the first has a result."""
        failing = self._failing.get((member, endpoint.id))
        if failing is not None and failing.trial and not failing.away:
            self._keep_away((member, endpoint.id), failing, now, rules)

    def return_due(self, now: Instant, rules: HealthRules) -> None:
        """Puts members on trial after their time away, and drops entries without news since then."""
        for way in self._looks.take():
            failing = self._failing[way]
            if failing.away:
                failing.trial = True
                self._let_back(way, failing)
                self._looks.set(way, after(now, rules.eject_ns_max))
            else:
                self._forget(way)

    def forget(self, endpoint: EndpointRecord) -> None:
        """Drops the entries of an endpoint that is gone or ejected, which concerns all members."""
        for way in [each for each in self._failing if each[1] == endpoint.id]:
            self._forget(way)

    def _keep_away(self, way: _Way, failing: _Failing, now: Instant, rules: HealthRules) -> None:
        failing.away = True
        self.away.setdefault(way[0], {})[way[1]] = failing.endpoint
        self._looks.set(way, after(now, health.ejection_ns(failing.spells - 1, rules)))
        self._placement.look_everywhere()

    def _let_back(self, way: _Way, failing: _Failing) -> None:
        member, endpoint_id = way
        failing.away = False
        if (endpoints := self.away.get(member)) is not None:
            endpoints.pop(endpoint_id, None)
            if not endpoints:
                del self.away[member]
        self._placement.look_everywhere()

    def _forget(self, way: _Way) -> None:
        self._looks.clear(way)
        self._let_back(way, self._failing.pop(way))
