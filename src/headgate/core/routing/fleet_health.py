"""Health of all endpoints: ejections, trials, slow starts, stalls and missing metrics, with their timers.

The rules are in `core/health` and `routing/metric_staleness`. This module applies them to the endpoints of a fleet.
"""

from typing import Final, assert_never

from headgate.core import health
from headgate.core.commands import Eject, Readmit
from headgate.core.events import AttemptEnded, AttemptEnding, EndpointMetricsReported, EndpointProbed
from headgate.core.routing import metric_staleness
from headgate.core.routing.endpoints import EndpointRecord, Trouble
from headgate.core.routing.failing_probes import FailingProbes
from headgate.core.routing.member_reach import MemberReach
from headgate.core.routing.placement import Placement
from headgate.core.routing.pools import PoolRecord
from headgate.core.rules import Rules
from headgate.core.timers import TimerHeap, Timers
from headgate.model.endpoint import EndpointProblem, EndpointState
from headgate.model.fault import Fault, FaultOrigin
from headgate.model.policy import HealthRules
from headgate.model.units import SECOND, Duration, EndpointId, Instant, after, format_seconds

PASSING_EJECT_NS_MAX: Final = Duration(10 * SECOND)
"""Maximum ejection time for an endpoint whose probe passes."""
TRIAL_IDLE_NS_MAX: Final = Duration(10 * SECOND)
"""Time after which a trial without any request ends if the probe passes."""
DETAIL_CHARS_MAX: Final = 200
# Enum members that every request needs: Python 3.11 looks them up slowly.
_COMPLETED: Final = AttemptEnding.COMPLETED
_TRIAL: Final = EndpointState.TRIAL
_TROUBLE_BY_FAULT: Final = {
    Fault.CONNECTION: EndpointProblem.UNREACHABLE,
    Fault.UNAVAILABLE: EndpointProblem.ERRORS,
    Fault.RESPONSE: EndpointProblem.ERRORS,
    Fault.TIME_LIMIT: EndpointProblem.UNRESPONSIVE,
}


class FleetHealth:
    __slots__ = (
        "_failing_probes",
        "_placement",
        "_return_timers",
        "_rules",
        "_slow_start_timers",
        "_staleness_timers",
        "_stall_timers",
        "_trial_timers",
        "reach",
        "timer_heap",
    )

    def __init__(self, rules: Rules, placement: Placement) -> None:
        self._rules, self._placement = rules, placement
        self.timer_heap = agenda = TimerHeap()
        """Heap of all endpoint timers."""
        self._return_timers: Timers[EndpointId] = Timers(agenda)
        self._slow_start_timers: Timers[EndpointId] = Timers(agenda)
        self._stall_timers: Timers[EndpointId] = Timers(agenda)
        self._staleness_timers: Timers[EndpointId] = Timers(agenda)
        self._trial_timers: Timers[EndpointId] = Timers(agenda)
        self._failing_probes = FailingProbes(agenda)
        self.reach = MemberReach(placement, agenda)

    @property
    def rules(self) -> HealthRules:
        return self._rules.policy.health

    def change_rules(self, rules: Rules) -> None:
        self._rules = rules
        for endpoint in self._placement.endpoints.values():
            if endpoint.streams:
                self._stall_timers.set(endpoint.id, after(endpoint.last_progress_at, self.rules.stall_ns_max))

    # Readiness and metrics

    def mark_ready(self, endpoint: EndpointRecord, now: Instant) -> Readmit | None:
        """Marks the endpoint as ready. Returns a readmission unless the endpoint starts on trial."""
        trusted = health.mark_ready(endpoint)
        endpoint.probe_trouble = None
        endpoint.ready_at = now
        endpoint.engine_time.mark_ready(now)
        starts_slowly = health.starts_slowly(endpoint, self._placement.siblings(endpoint), now, self.rules)
        endpoint.slow_start_percent = 0 if starts_slowly else 100
        self._advance_slow_start(endpoint, now)
        if not trusted:
            return None
        endpoint.attempt_trouble = None
        return Readmit(endpoint.id, "the engine reports that it is ready")

    def mark_not_ready(self, endpoint: EndpointRecord, now: Instant) -> None:
        """Marks the endpoint as not ready, because its engine says so or no longer responds."""
        endpoint.mark_unready(now)
        endpoint.state = EndpointState.WARMING
        self._placement.forget_prefixes(endpoint)
        self._return_timers.clear(endpoint.id)
        self._slow_start_timers.clear(endpoint.id)
        self._staleness_timers.clear(endpoint.id)
        self._trial_timers.clear(endpoint.id)
        self._failing_probes.unwatch(endpoint)
        endpoint.probe_passes = False
        endpoint.slow_start_percent = 100
        metric_staleness.reset(endpoint)
        self.update_staleness(endpoint)
        self._placement.place(endpoint)

    def record_probe(self, endpoint: EndpointRecord, result: EndpointProbed, now: Instant) -> None:
        """Records a probe result that has changed.

        An ejected endpoint goes on trial when its probe passes. A serving endpoint is watched while its probe fails.
        """
        endpoint.probe_passes = result.trouble is None
        if result.trouble is not None:
            if endpoint.probe_trouble is None:
                endpoint.probe_failed_at = now
                if endpoint.serving:
                    self._failing_probes.watch(endpoint, now)
            endpoint.probe_trouble = Trouble(result.trouble, result.detail[:DETAIL_CHARS_MAX])
            return
        endpoint.probe_trouble = None
        self._failing_probes.unwatch(endpoint)
        if endpoint.state is EndpointState.EJECTED:
            self._return_timers.clear(endpoint.id)
            self._put_on_trial(endpoint, now)
        elif endpoint.state is EndpointState.TRIAL:
            self._trial_timers.set(endpoint.id, after(now, TRIAL_IDLE_NS_MAX))

    def record_metrics(self, endpoint: EndpointRecord, metrics: EndpointMetricsReported, now: Instant) -> None:
        """Applies the engine's metrics and restarts the staleness timer."""
        self._staleness_timers.set(endpoint.id, after(now, self._rules.policy.routing.metrics_stale_ns))
        before = (endpoint.foreign, endpoint.kv_foreign, endpoint.sequence_limit.learned)
        if metric_staleness.record(endpoint, metrics):
            self.update_staleness(endpoint)
        if before != (endpoint.foreign, endpoint.kv_foreign, endpoint.sequence_limit.learned):
            self._placement.place(endpoint)

    def forget(self, endpoint: EndpointRecord) -> None:
        """Clears the timers and member state of an endpoint that has been removed."""
        for timers in (
            self._return_timers,
            self._slow_start_timers,
            self._stall_timers,
            self._staleness_timers,
            self._trial_timers,
        ):
            timers.clear(endpoint.id)
        self._failing_probes.unwatch(endpoint)
        self.reach.forget(endpoint)

    # Attempts

    def record_member_failure(self, endpoint: EndpointRecord, member: str, now: Instant) -> bool:
        """Records a failure that is the member's fault. Returns whether the member avoids the endpoint from now on."""
        return self.reach.record_failure(member, endpoint, now, self.rules)

    def record_sent(self, endpoint: EndpointRecord, member: str, now: Instant) -> None:
        """Records that this member is sending a request to the endpoint."""
        self.reach.record_sent(member, endpoint, now, self.rules)

    def watch_streams(self, endpoint: EndpointRecord, now: Instant) -> None:
        """Starts the stall timer when the endpoint's first stream starts."""
        self._stall_timers.set(endpoint.id, after(now, self.rules.stall_ns_max))

    def unwatch_streams(self, endpoint: EndpointRecord) -> None:
        self._stall_timers.clear(endpoint.id)

    def record_success(self, endpoint: EndpointRecord, now: Instant) -> Readmit | None:
        endpoint.last_progress_at = now
        endpoint.attempt_trouble = None
        if endpoint.service_log.has_failures:
            endpoint.service_log.record_success()
        if endpoint.state is not _TRIAL:
            endpoint.failures = 0
            return None
        health.pass_trial(endpoint)
        self._trial_timers.clear(endpoint.id)
        self._placement.place(endpoint)
        return Readmit(endpoint.id, "the trial request succeeded")

    def record_failure(self, endpoint: EndpointRecord, detail: str, now: Instant) -> list[Eject]:
        return self._eject(endpoint, detail, now) if health.record_failure(endpoint, self.rules) else []

    def record_reattributed_failure(self, endpoint: EndpointRecord, now: Instant) -> list[Eject]:
        """Counts a failure against the endpoint after it was first attributed to a tenant, a model or the gateway."""
        is_there = self._placement.endpoints.get(endpoint.id) is endpoint
        if not is_there or not endpoint.serving:
            return []
        return self.record_failure(endpoint, "a request that failed here succeeded on another endpoint", now)

    def attempt_ended(
        self, endpoint: EndpointRecord, event: AttemptEnded, now: Instant, origin: FaultOrigin
    ) -> list[Eject] | list[Readmit]:
        """Updates the endpoint's health when an attempt ends. `origin` is the cause if the attempt failed."""
        if event.ending is _COMPLETED:
            return [] if (readmitted := self.record_success(endpoint, now)) is None else [readmitted]
        match event.ending:
            case AttemptEnding.FAILED | AttemptEnding.TIMEOUT:
                if origin is not FaultOrigin.ENDPOINT:
                    return []
                endpoint.attempt_trouble = _trouble(event)
                return self.record_failure(endpoint, event.detail, now)
            case AttemptEnding.REJECTED | AttemptEnding.ABORTED:
                # An engine that cannot generate may still reject invalid requests, so this is not a success.
                return []
            case _:
                assert_never(event.ending)

    def apply_due(self, now: Instant) -> list[Eject | Readmit]:
        """Handles expired timers.

        Advances slow starts, marks metrics as stale, starts a trial for ejected endpoints whose ejection time is over,
        ends trials that received no request, and ejects unresponsive endpoints.
        """
        for endpoint_id in self._slow_start_timers.pop_fired():
            self._advance_slow_start(self._placement.endpoints[endpoint_id], now)
        for endpoint_id in self._staleness_timers.pop_fired():
            self._placement.endpoints[endpoint_id].metrics_stale = True
            self.update_staleness(self._placement.endpoints[endpoint_id])
        for endpoint_id in self._return_timers.pop_fired():
            self._put_on_trial(self._placement.endpoints[endpoint_id], now)
        self.reach.apply_due(now, self.rules)
        untried = [self._placement.endpoints[endpoint_id] for endpoint_id in self._trial_timers.pop_fired()]
        out: list[Eject | Readmit] = [each for endpoint in untried for each in self._end_unused_trial(endpoint, now)]
        # The rest of the zone is not ejected, because each endpoint has its own probe.
        unresponsive = self._failing_probes.take_unresponsive(self._placement.endpoints, now)
        return out + [self._eject_one(endpoint, reason, now) for endpoint, reason in unresponsive]

    def _put_on_trial(self, endpoint: EndpointRecord, now: Instant) -> None:
        endpoint.state = EndpointState.TRIAL
        endpoint.engine_time.mark_ready(now)
        if endpoint.probe_passes:
            self._trial_timers.set(endpoint.id, after(now, TRIAL_IDLE_NS_MAX))
        elif endpoint.probe_trouble is not None:
            self._failing_probes.watch(endpoint, now)
        self._placement.place(endpoint)

    def _end_unused_trial(self, endpoint: EndpointRecord, now: Instant) -> list[Readmit]:
        """Readmits an endpoint if its probe passes and its trial received no request. The next failure ejects it."""
        if not endpoint.probe_passes:
            return []
        if endpoint.in_flight:
            self._trial_timers.set(endpoint.id, after(now, TRIAL_IDLE_NS_MAX))
            return []
        endpoint.state = EndpointState.READY
        endpoint.failures = self.rules.consecutive_failures_max - 1
        self._placement.place(endpoint)
        return [Readmit(endpoint.id, "the probe passes and no request arrived during the trial")]

    def _advance_slow_start(self, endpoint: EndpointRecord, now: Instant) -> None:
        next_in_ns = health.advance_slow_start(endpoint, self.rules)
        if next_in_ns is not None:
            self._slow_start_timers.set(endpoint.id, after(now, next_in_ns))
        self._placement.place(endpoint)

    def update_staleness(self, endpoint: EndpointRecord) -> None:
        for each in metric_staleness.update_stale(self._placement.siblings(endpoint)):
            self._placement.place(each)

    def pop_stalled(self, now: Instant) -> dict[EndpointId, EndpointRecord]:
        """Returns endpoints with streams in flight that have been inactive for too long, and restarts their timers."""
        stalled: dict[EndpointId, EndpointRecord] = {}
        for endpoint_id in self._stall_timers.pop_fired():
            endpoint = self._placement.endpoints[endpoint_id]
            silent = now - endpoint.last_progress_at
            if silent >= self.rules.stall_ns_max:
                stalled[endpoint_id] = endpoint
                silent = 0
            self._stall_timers.set(endpoint_id, after(now, Duration(self.rules.stall_ns_max - silent)))
        return stalled

    def eject_stalled(self, endpoint: EndpointRecord, now: Instant) -> list[Eject]:
        if not endpoint.serving:
            return []
        silence = format_seconds(Duration(now - endpoint.last_progress_at))
        detail = f"no activity for {silence}; streams in flight: {endpoint.streams}"
        endpoint.attempt_trouble = Trouble(EndpointProblem.UNRESPONSIVE, detail)
        return self._eject(endpoint, detail, now)

    def _eject(self, endpoint: EndpointRecord, reason: str, now: Instant) -> list[Eject]:
        """Ejects the endpoint and, if its zone then counts as failed, the rest of the zone."""
        is_news = endpoint.state is EndpointState.READY
        ejections = [self._eject_one(each, reason, now) for each in (endpoint, *health.down_with(endpoint, now))]
        if not endpoint.zone or not is_news:
            return ejections
        zone = [each for each in self._placement.endpoints.values() if each.zone == endpoint.zone and not each.leaving]
        if health.zone_is_down(zone, self.rules):
            reason = f'most endpoints in zone "{endpoint.zone}" are ejected'
            # An endpoint stays in service if no other zone serves its pool.
            rest = [each for each in zone if each.live and _is_served_elsewhere(each, self._placement)]
            ejections += [self._eject_one(each, reason, now) for each in rest]
        return ejections

    def _eject_one(self, endpoint: EndpointRecord, reason: str, now: Instant) -> Eject:
        health.eject(endpoint, now, self.rules)
        self._trial_timers.clear(endpoint.id)
        self._failing_probes.unwatch(endpoint)
        if endpoint.probe_passes:
            endpoint.ejected_until = min(endpoint.ejected_until, after(now, PASSING_EJECT_NS_MAX))
        self.reach.forget(endpoint)
        endpoint.mark_unready(now)
        self._placement.forget_prefixes(endpoint)
        self._return_timers.set(endpoint.id, endpoint.ejected_until)
        self._placement.place(endpoint)
        self.relax_lost_pools(now)
        return Eject(endpoint.id, endpoint.ejected_until, reason)

    def relax_lost_pools(self, now: Instant) -> None:
        """Handles pools that have lost a live endpoint.

        Shortens ejections in pools without a live endpoint, and ends slow starts in pools without a fully started one.
        Ejections of unresponsive endpoints are not shortened: a passing probe ends them.
        """
        while self._placement.pools_with_losses:
            name, _ = self._placement.pools_with_losses.popitem()
            if (pool := self._placement.pools.get(name)) is not None:
                if not pool.live_count:
                    self._shorten_ejections(pool, now)
                elif not any(health.is_fully_serving(each) for each in pool.endpoints.values()):
                    self._finish_slow_starts(pool)

    def _shorten_ejections(self, pool: PoolRecord, now: Instant) -> None:
        for endpoint in pool.endpoints.values():
            if not endpoint.unresponsive(now) and health.shorten_ejection(endpoint, now, self.rules):
                self._return_timers.set(endpoint.id, endpoint.ejected_until)

    def _finish_slow_starts(self, pool: PoolRecord) -> None:
        for endpoint in pool.endpoints.values():
            endpoint.slow_start_percent = 100
            endpoint.update_limit()
            self._slow_start_timers.clear(endpoint.id)
            self._placement.place(endpoint)


def _trouble(event: AttemptEnded) -> Trouble:
    """Returns why an attempt failed."""
    kind = EndpointProblem.UNRESPONSIVE if event.ending is AttemptEnding.TIMEOUT else EndpointProblem.ERRORS
    if event.fault is not None and event.ending is AttemptEnding.FAILED:
        kind = _TROUBLE_BY_FAULT.get(event.fault, EndpointProblem.ERRORS)
    return Trouble(kind, event.detail[:DETAIL_CHARS_MAX])


def _is_served_elsewhere(endpoint: EndpointRecord, placement: Placement) -> bool:
    pool = placement.siblings(endpoint)
    # An endpoint on trial accepts only one request and is not yet trusted.
    return any(each.live and each.state is EndpointState.READY and each.zone != endpoint.zone for each in pool)
