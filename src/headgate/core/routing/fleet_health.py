"""Which endpoints are ejected, on trial, growing or silent, and when is each looked at again?

The rules themselves are in `core/health` and `routing/talk`. Here they are applied to the endpoints of a fleet, with
the alarms that they need.
"""

from typing import Final, assert_never

from headgate.core import health
from headgate.core.alarms import Agenda, Alarms
from headgate.core.commands import Eject, Readmit
from headgate.core.events import AttemptEnded, AttemptEnding, EndpointMeasured, EndpointProbed
from headgate.core.routing import talk
from headgate.core.routing.endpoints import EndpointRecord, Trouble
from headgate.core.routing.placement import Placement
from headgate.core.routing.pools import PoolRecord
from headgate.core.routing.reach import Reach
from headgate.core.rules import Rules
from headgate.model.endpoint import EndpointState, EndpointTrouble
from headgate.model.fault import Fault, FaultOrigin
from headgate.model.policy import HealthRules
from headgate.model.units import SECOND, Duration, EndpointId, Instant, after, seconds

PASSING_EJECT_NS_MAX: Final = Duration(10 * SECOND)
"""An endpoint whose probe passes stays ejected for no longer than this."""
UNTRIED_NS_MAX: Final = Duration(10 * SECOND)
"""A trial without a request for this long ends, if the probe passes."""
DETAIL_CHARS_MAX: Final = 200
_TROUBLES: Final = {
    Fault.CONNECTION: EndpointTrouble.UNREACHABLE,
    Fault.UNAVAILABLE: EndpointTrouble.ERRORS,
    Fault.ANSWER: EndpointTrouble.ERRORS,
    Fault.LIMIT: EndpointTrouble.SILENT,
}


class FleetHealth:
    __slots__ = ("_growths", "_placement", "_returns", "_rules", "_silences", "_stalls", "_trials", "agenda", "reach")

    def __init__(self, rules: Rules, placement: Placement) -> None:
        self._rules = rules
        self._placement = placement
        self.agenda = agenda = Agenda()
        """When endpoints must be looked at again."""
        self._returns: Alarms[EndpointId] = Alarms(agenda)
        self._growths: Alarms[EndpointId] = Alarms(agenda)
        self._stalls: Alarms[EndpointId] = Alarms(agenda)
        self._silences: Alarms[EndpointId] = Alarms(agenda)
        self._trials: Alarms[EndpointId] = Alarms(agenda)
        self.reach = Reach(placement, agenda)

    @property
    def rules(self) -> HealthRules:
        return self._rules.policy.health

    def change_rules(self, rules: Rules) -> None:
        self._rules = rules
        for endpoint in self._placement.endpoints.values():
            if endpoint.streams:
                self._stalls.set(endpoint.id, after(endpoint.last_heard, self.rules.stall_ns_max))

    # Readiness, as its engine says

    def readied(self, endpoint: EndpointRecord, now: Instant) -> Readmit | None:
        """Its engine says that it can serve."""
        trusted = health.readied(endpoint)
        endpoint.probe_trouble = None
        endpoint.ready_at = now
        endpoint.time.turn_ready(now)
        endpoint.grown_percent = 0 if self._starts_slowly(endpoint, now) else 100
        self._grow(endpoint, now)
        if not trusted:
            return None
        endpoint.attempt_trouble = None
        return Readmit(endpoint.id, "the engine says it is ready")

    def unreadied(self, endpoint: EndpointRecord, now: Instant) -> None:
        """Its engine says that it cannot serve, or says nothing any more."""
        endpoint.time.turn_unready(now)
        endpoint.state = EndpointState.WARMING
        self._placement.forget_prefixes(endpoint)
        self._returns.clear(endpoint.id)
        self._growths.clear(endpoint.id)
        self._silences.clear(endpoint.id)
        self._trials.clear(endpoint.id)
        endpoint.probe_passes = False
        endpoint.grown_percent = 100
        talk.forget(endpoint)
        self.judge_silence(endpoint)
        self._placement.place(endpoint)

    def probed(self, endpoint: EndpointRecord, result: EndpointProbed, now: Instant) -> None:
        """Records a probe that fails or passes again. An ejected endpoint is on trial once its probe passes."""
        endpoint.probe_passes = result.trouble is None
        if result.trouble is not None:
            endpoint.probe_trouble = Trouble(result.trouble, result.detail[:DETAIL_CHARS_MAX])
            return
        endpoint.probe_trouble = None
        if endpoint.state is EndpointState.EJECTED:
            self._returns.clear(endpoint.id)
            self._put_on_trial(endpoint, now)
        elif endpoint.state is EndpointState.TRIAL:
            self._trials.set(endpoint.id, after(now, UNTRIED_NS_MAX))

    def measured(self, endpoint: EndpointRecord, said: EndpointMeasured, now: Instant) -> None:
        """Its engine has told of itself."""
        self._silences.set(endpoint.id, after(now, self._rules.policy.routing.stale_ns))
        before = (endpoint.foreign, endpoint.kv_foreign, endpoint.sequences.learned)
        if talk.hear(endpoint, said):
            self.judge_silence(endpoint)
        if before != (endpoint.foreign, endpoint.kv_foreign, endpoint.sequences.learned):
            self._placement.place(endpoint)

    def forget(self, endpoint: EndpointRecord) -> None:
        """It is gone: nothing of it is looked at again."""
        for alarms in (self._returns, self._growths, self._stalls, self._silences, self._trials):
            alarms.clear(endpoint.id)
        self.reach.forget(endpoint)

    # What its attempts say of it

    def member_failed(self, endpoint: EndpointRecord, member: str, now: Instant) -> bool:
        """Records a member's own failure; returns whether the member's requests go elsewhere from now on."""
        return self.reach.failed(member, endpoint, now, self.rules)

    def sent(self, endpoint: EndpointRecord, member: str, now: Instant) -> None:
        """Records that this member sends a request to the endpoint."""
        self.reach.sent(member, endpoint, now, self.rules)

    def watch_streams(self, endpoint: EndpointRecord, now: Instant) -> None:
        """It has begun to stream: silence now means something."""
        self._stalls.set(endpoint.id, after(now, self.rules.stall_ns_max))

    def unwatch_streams(self, endpoint: EndpointRecord) -> None:
        self._stalls.clear(endpoint.id)

    def succeeded(self, endpoint: EndpointRecord, now: Instant) -> Readmit | None:
        endpoint.last_heard = now
        endpoint.service.succeeded()
        endpoint.attempt_trouble = None
        if endpoint.state is not EndpointState.TRIAL:
            endpoint.failures = 0
            return None
        health.passed_trial(endpoint)
        self._trials.clear(endpoint.id)
        self._placement.place(endpoint)
        return Readmit(endpoint.id, "its trial request succeeded")

    def failed(self, endpoint: EndpointRecord, detail: str, now: Instant) -> list[Eject]:
        return self._eject(endpoint, detail, now) if health.failed(endpoint, self.rules) else []

    def failed_after_all(self, endpoint: EndpointRecord, now: Instant) -> list[Eject]:
        """Counts a failure that was attributed to a tenant, a model or a gateway until another endpoint answered."""
        is_there = self._placement.endpoints.get(endpoint.id) is endpoint
        if not is_there or not endpoint.serving:
            return []
        return self.failed(endpoint, "a request that failed there was answered elsewhere", now)

    def attempt_ended(
        self, endpoint: EndpointRecord, event: AttemptEnded, now: Instant, origin: FaultOrigin
    ) -> list[Eject] | list[Readmit]:
        """Applies the end of an attempt to the health of its endpoint; `origin` is the cause of a failure."""
        match event.ending:
            case AttemptEnding.COMPLETED:
                readmitted = self.succeeded(endpoint, now)
                return [] if readmitted is None else [readmitted]
            case AttemptEnding.FAILED | AttemptEnding.SILENT:
                if origin is not FaultOrigin.ENDPOINT:
                    return []
                endpoint.attempt_trouble = _trouble(event)
                return self.failed(endpoint, event.detail, now)
            case AttemptEnding.REFUSED | AttemptEnding.ABORTED:
                # An engine that cannot generate may still refuse invalid requests.
                return []
            case _:
                assert_never(event.ending)

    def return_due(self, now: Instant) -> list[Readmit]:
        """Puts endpoints on trial after their ejection, advances slow starts, and marks silent endpoints.

        Ends the trials that no request has used.
        """
        for endpoint_id in self._growths.take():
            self._grow(self._placement.endpoints[endpoint_id], now)
        for endpoint_id in self._silences.take():
            self._placement.endpoints[endpoint_id].silent = True
            self.judge_silence(self._placement.endpoints[endpoint_id])
        for endpoint_id in self._returns.take():
            self._put_on_trial(self._placement.endpoints[endpoint_id], now)
        self.reach.return_due(now, self.rules)
        untried = [self._placement.endpoints[endpoint_id] for endpoint_id in self._trials.take()]
        return [each for endpoint in untried for each in self._end_unused_trial(endpoint, now)]

    def _put_on_trial(self, endpoint: EndpointRecord, now: Instant) -> None:
        endpoint.state = EndpointState.TRIAL
        endpoint.time.turn_ready(now)
        if endpoint.probe_passes:
            self._trials.set(endpoint.id, after(now, UNTRIED_NS_MAX))
        self._placement.place(endpoint)

    def _end_unused_trial(self, endpoint: EndpointRecord, now: Instant) -> list[Readmit]:
        """Trusts an endpoint whose probe passes and to which no request came; its next failure ejects it again."""
        if not endpoint.probe_passes:
            return []
        if endpoint.in_flight:
            self._trials.set(endpoint.id, after(now, UNTRIED_NS_MAX))
            return []
        endpoint.state = EndpointState.READY
        endpoint.failures = self.rules.failures_max - 1
        self._placement.place(endpoint)
        return [Readmit(endpoint.id, "its probe passes and no request came to try it")]

    def _starts_slowly(self, endpoint: EndpointRecord, now: Instant) -> bool:
        return health.starts_slowly(endpoint, self._placement.siblings(endpoint), now, self.rules)

    def _grow(self, endpoint: EndpointRecord, now: Instant) -> None:
        next_in_ns = health.grow(endpoint, self.rules)
        if next_in_ns is not None:
            self._growths.set(endpoint.id, after(now, next_in_ns))
        self._placement.place(endpoint)

    def judge_silence(self, endpoint: EndpointRecord) -> None:
        for each in talk.judge(self._placement.siblings(endpoint)):
            self._placement.place(each)

    def stalled(self, now: Instant) -> dict[EndpointId, EndpointRecord]:
        """Those that hold streams and have given no sign of life for too long."""
        stalled: dict[EndpointId, EndpointRecord] = {}
        for endpoint_id in self._stalls.take():
            endpoint = self._placement.endpoints[endpoint_id]
            silent = now - endpoint.last_heard
            if silent >= self.rules.stall_ns_max:
                stalled[endpoint_id] = endpoint
                silent = 0
            self._stalls.set(endpoint_id, after(now, Duration(self.rules.stall_ns_max - silent)))
        return stalled

    def eject_stalled(self, endpoint: EndpointRecord, now: Instant) -> list[Eject]:
        if not endpoint.serving:
            return []
        silence = seconds(Duration(now - endpoint.last_heard))
        detail = f"no sign of life for {silence}; streams in flight: {endpoint.streams}"
        endpoint.attempt_trouble = Trouble(EndpointTrouble.SILENT, detail)
        return self._eject(endpoint, detail, now)

    def _eject(self, endpoint: EndpointRecord, reason: str, now: Instant) -> list[Eject]:
        """The endpoint, and with it the rest of a zone that goes down."""
        is_news = endpoint.state is EndpointState.READY
        ejections = [self._eject_one(endpoint, reason, now)]
        if not endpoint.zone or not is_news:
            return ejections
        zone = [each for each in self._placement.endpoints.values() if each.zone == endpoint.zone and not each.leaving]
        if health.zone_is_down(zone, self.rules):
            reason = f'most endpoints of zone "{endpoint.zone}" have been ejected'
            # Whose pool nobody serves from elsewhere goes on trying.
            rest = [each for each in zone if each.live and self._is_served_elsewhere(each)]
            ejections += [self._eject_one(each, reason, now) for each in rest]
        return ejections

    def _is_served_elsewhere(self, endpoint: EndpointRecord) -> bool:
        pool = self._placement.siblings(endpoint)
        # One that is on trial takes a single request, and has yet to show that it can.
        return any(each.live and each.state is EndpointState.READY and each.zone != endpoint.zone for each in pool)

    def _eject_one(self, endpoint: EndpointRecord, reason: str, now: Instant) -> Eject:
        health.eject(endpoint, now, self.rules)
        self._trials.clear(endpoint.id)
        if endpoint.probe_passes:
            endpoint.returns_at = min(endpoint.returns_at, after(now, PASSING_EJECT_NS_MAX))
        self.reach.forget(endpoint)
        endpoint.time.turn_unready(now)
        self._placement.forget_prefixes(endpoint)
        self._returns.set(endpoint.id, endpoint.returns_at)
        self._placement.place(endpoint)
        self.call_back(now)
        return Eject(endpoint.id, endpoint.returns_at, reason)

    def call_back(self, now: Instant) -> None:
        """Lets the ejected return soon where nobody is left who takes work, and who starts slowly take all."""
        while self._placement.lost:
            name, _ = self._placement.lost.popitem()
            if (pool := self._placement.pools.get(name)) is not None:
                if not pool.live:
                    self._return_soon(pool, now)
                elif not any(health.carries(each) for each in pool.endpoints.values()):
                    self._grow_at_once(pool)

    def _return_soon(self, pool: PoolRecord, now: Instant) -> None:
        for endpoint in pool.endpoints.values():
            if health.shorten(endpoint, now, self.rules):
                self._returns.set(endpoint.id, endpoint.returns_at)

    def _grow_at_once(self, pool: PoolRecord) -> None:
        for endpoint in pool.endpoints.values():
            endpoint.grown_percent = 100
            endpoint.bound()
            self._growths.clear(endpoint.id)
            self._placement.place(endpoint)


def _trouble(event: AttemptEnded) -> Trouble:
    """The reason why an endpoint failed an attempt."""
    kind = EndpointTrouble.SILENT if event.ending is AttemptEnding.SILENT else EndpointTrouble.ERRORS
    if event.fault is not None and event.ending is AttemptEnding.FAILED:
        kind = _TROUBLES.get(event.fault, EndpointTrouble.ERRORS)
    return Trouble(kind, event.detail[:DETAIL_CHARS_MAX])
