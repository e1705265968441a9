"""Diagnoses what is wrong with each pool, who is affected, and what to do first.

The diagnosis observes the scheduler's events and commands and receives reports from each process. About once a second
the host triggers a check. The check builds an observation of each pool (`pool_observation.py`) that compares recent
values with a baseline, and matches it against the incident patterns (`patterns.py`). A finding is reported once several
consecutive checks agree on it and withdrawn once several consecutive checks no longer find it, so that verdicts do not
flap. The baseline is learned while a pool is healthy and does not change during an incident.

Without a baseline, only direct observations are reported: an engine that hangs, a pool without endpoints, or a process
that is falling behind.

Known limitation: there is one verdict per pool. If two incidents happen at the same time, the one whose pattern comes
first is reported, and the other is reported once the first is over. There is one exception: if only a small number of
endpoints are not serving and another incident harms callers, the other incident is reported first.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headgate.core.diagnosis.endpoint_stats import EndpointStats
from headgate.core.diagnosis.event_observer import EventObserver, PoolStats
from headgate.core.diagnosis.finding import IncidentFinding, callers_harmed, counted
from headgate.core.diagnosis.host_monitor import HostMonitor
from headgate.core.diagnosis.patterns import cost_drift, find_incident
from headgate.core.diagnosis.pool_observation import BACKLOG_LOOKS, EndpointObservation, PoolObservation, mean
from headgate.core.diagnosis.window_counts import KEPT_SECONDS, LAST_SECONDS, RECENT_SECONDS
from headgate.core.summary import EndpointSummary, Summary
from headgate.model.endpoint import EndpointProblem
from headgate.model.policy import ServiceClass
from headgate.model.units import SECOND, ClassName, Duration, Instant, PoolName, TenantId, format_seconds
from headgate.model.verdict import Affected, Cause, HostReport, Incident, Verdict

CAUSES: Final = {
    Incident.HEALTHY: Cause.HEALTHY,
    Incident.LONG_PROMPTS: Cause.COMPUTE,
    Incident.PROMPT_DRIFT: Cause.COMPUTE,
    Incident.OVERLOAD: Cause.COMPUTE,
    Incident.KV_EXHAUSTED: Cause.MEMORY,
    Incident.PREFIX_CACHE_LOST: Cause.MEMORY,
    Incident.NOISY_TENANT: Cause.CLIENT,
    Incident.RETRY_STORM: Cause.CLIENT,
    Incident.COST_DRIFT: Cause.CLIENT,
    Incident.CLIENT_TIMEOUTS: Cause.CLIENT,
    Incident.ENGINE_HANG: Cause.UPSTREAM,
    Incident.ENGINE_DOWN: Cause.UPSTREAM,
    Incident.SLOW_NETWORK: Cause.UPSTREAM,
    Incident.SLOW_ENDPOINT: Cause.UPSTREAM,
    Incident.STORE_SLOW: Cause.UPSTREAM,
    Incident.ENGINE_FAILING: Cause.UPSTREAM,
    Incident.NO_ENDPOINTS: Cause.CONFIGURATION,
    Incident.ENGINE_MISCONFIGURED: Cause.CONFIGURATION,
    Incident.COLD_START: Cause.CONFIGURATION,
    Incident.LIMIT_TOO_LOW: Cause.CONFIGURATION,
    Incident.SCHEDULER_BEHIND: Cause.SCHEDULER,
    Incident.GATEWAY_RESOURCES: Cause.SCHEDULER,
}
REPORT_AFTER_LOOKS: Final = 3
"""Number of consecutive checks with the same finding before it is reported."""
REPLACE_AFTER_LOOKS: Final = 4
"""Number of consecutive checks required to replace an incident that is already being reported."""
CONSEQUENCE_AFTER_LOOKS: Final = 15
"""Number of consecutive checks required for a likely consequence of the incident, such as a queue or retries."""
COST_DRIFT_AFTER_LOOKS: Final = KEPT_SECONDS + RECENT_SECONDS
"""Number of consecutive checks required for a cost drift. Responses from an earlier incident may skew the window."""
_CONSEQUENCES: Final = (Incident.OVERLOAD, Incident.RETRY_STORM, Incident.COLD_START)
CLEAR_AFTER_LOOKS: Final = 10
"""Number of consecutive checks without a finding before a verdict is withdrawn."""
COST_DRIFT_REPORTED_NS: Final = Duration(600 * SECOND)
"""Time for which a cost drift is reported. After that, the new response length becomes the usual one."""
COST_DRIFT_PAUSE_NS: Final = Duration(KEPT_SECONDS * SECOND)
"""Time after another incident in the pool during which no cost drift is reported."""
_GONE_TROUBLES: Final = (EndpointProblem.CONNECTION_REFUSED, EndpointProblem.UNREACHABLE, EndpointProblem.LOADING)
AFFECTED_MAX: Final = 3
_PROMPTS_KEPT: Final = 40
_PROMPTS_AGO: Final = 30


class _IncidentState:
    """Verdict state of one pool or of the gateway."""

    __slots__ = ("_candidate", "_healthy_looks", "_looks", "found", "reported_at", "since")

    def __init__(self) -> None:
        self.found: IncidentFinding | None = None
        self.since = self.reported_at = Instant(0)
        """Time since which the pool has been healthy or unhealthy, and time at which the current incident was first
        reported."""
        self._candidate: Incident | None = None
        self._looks = self._healthy_looks = 0

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is reported and no finding is pending."""
        return self.found is None and self._candidate is None

    def update(self, seen: IncidentFinding | None, now: Instant) -> None:
        if seen is None:
            self._candidate = None
            self._healthy_looks += 1
            if self.found is not None and self._healthy_looks >= CLEAR_AFTER_LOOKS:
                self.found, self.since = None, now
            return
        self._healthy_looks = 0
        told = self.found
        if told is not None and seen.incident is told.incident:
            self.found, self._candidate = seen, None
            return
        self._looks = self._looks + 1 if seen.incident is self._candidate else 1
        self._candidate = seen.incident
        if self._looks >= _looks_needed(told, seen):
            if told is None:
                self.since = now
            self.found, self._candidate, self.reported_at = seen, None, now


def _looks_needed(reported: IncidentFinding | None, found: IncidentFinding) -> int:
    if reported is None or reported.incident is Incident.COST_DRIFT:
        return REPORT_AFTER_LOOKS
    if found.incident is Incident.COST_DRIFT:
        return COST_DRIFT_AFTER_LOOKS
    return CONSEQUENCE_AFTER_LOOKS if found.incident in _CONSEQUENCES else REPLACE_AFTER_LOOKS


@dataclass(slots=True)
class _PoolState:
    incident: _IncidentState
    prompts: "deque[int]"
    """Mean prompt tokens at each of the last checks."""
    queued: "deque[int]"
    """Number of queued requests at each of the last checks."""
    affected: tuple[Affected, ...] = ()
    bad: int = 0
    incident_at: Instant | None = None
    """Time of the last check that confirmed a reported incident other than cost drift. None if there was none."""


class Diagnosis:
    """Observer of the scheduler that produces the verdicts."""

    __slots__ = ("_began", "_gateway", "_hosts", "_observer", "_overrides_enabled", "_pools", "observe")

    def __init__(self, *, overrides_enabled: bool = False) -> None:
        """`overrides_enabled` is True if operators can set overrides here. The advice depends on it."""
        self._overrides_enabled = overrides_enabled
        self._began: Instant | None = None
        """Time of the first check."""
        self._observer = EventObserver()
        self.observe = self._observer.observe
        self._hosts = HostMonitor()
        self._gateway = _IncidentState()
        self._pools: dict[PoolName, _PoolState] = {}

    def record_host_report(self, report: HostReport, now: Instant) -> None:
        self._hosts.record(report, now)

    def diagnose(self, summary: Summary, now: Instant) -> tuple[Verdict, ...]:
        """Returns one verdict for each pool of the policy and one for the gateway, worst first."""
        watch = self._observer
        if self._began is None:
            self._began = self._gateway.since = now
        watch.drop_departed([each.id for each in summary.endpoints])
        self._gateway.update(self._hosts.find_incident(now), now)
        if self._gateway.is_healthy:
            self._hosts.learn()
        self._pools = {name: self._pools.get(name) or _new_state(now) for name in watch.pools}
        for name, pool in watch.pools.items():
            self._diagnose_pool(pool, self._pools[name], summary, now)
        ill = [each for each in self._pools.items() if each[1].incident.found is not None]
        ill.sort(key=lambda each: (-each[1].bad, each[0]))
        healthy = [each for each in self._pools.items() if each[1].incident.found is None]
        verdicts = [_verdict(name, state.incident, state.affected) for name, state in (*ill, *healthy)]
        gateway = _verdict(None, self._gateway, ())
        return (gateway, *verdicts) if self._gateway.found is not None else (*verdicts, gateway)

    def _diagnose_pool(self, pool: PoolStats, state: _PoolState, summary: Summary, now: Instant) -> None:
        standing, history = state.incident, pool.history
        gateway = self._gateway.found
        history.close(
            healthy=standing.is_healthy and (self._gateway.is_healthy or (gateway is not None and gateway.partial))
        )
        picture = self._observe_pool(pool, state, summary, now)
        state.bad = picture.recent.bad
        one = find_incident(picture)
        if _is_leftover(one, state, picture):
            one = find_incident(picture, exclude=cost_drift)
        if one is not None and gateway is not None and not gateway.partial:
            # A problem in the gateway itself replaces the findings for the pools that it harms.
            one = gateway if callers_harmed(picture) else None
        standing.update(one, now)
        told = standing.found
        if (
            told is not None
            and told.incident is not Incident.COST_DRIFT
            and (one is not None or callers_harmed(picture))
        ):
            state.incident_at = now
        state.affected = _affected(picture, standing.found)
        if standing.is_healthy and not callers_harmed(picture):
            self._learn(pool, picture)
        one = standing.found
        if one is not None and one.service_class is not None and now - standing.reported_at >= COST_DRIFT_REPORTED_NS:
            history.forget_answers(one.service_class)

    def _learn(self, pool: PoolStats, picture: PoolObservation) -> None:
        for each in picture.serving:
            each.stats.learn()
        self._hosts.learn_transport(pool.name)
        usual = pool.history.baseline
        tokens = count = 0
        for lengths in usual.answers.values():
            tokens, count = tokens + lengths.tokens, count + lengths.count
        if count:
            pool.answer_tokens = tokens // count

    def _observe_pool(self, pool: PoolStats, state: _PoolState, summary: Summary, now: Instant) -> PoolObservation:
        assert self._began is not None, "_picture() called before look()"
        history, classes = pool.history, _classes_of(pool.name, self._observer.classes)
        late = history.recent()
        state.prompts.append(mean(late.prompt_tokens, late.arrivals))
        usual = history.baseline
        computed = 100 - (100 * usual.cached_tokens // usual.asked_tokens if usual.asked_tokens else 0)
        looks = [
            _endpoint_observation(each, seen, pool, computed, now)
            for each in summary.endpoints
            if each.pool == pool.name and (seen := self._observer.endpoints.get(each.id)) is not None
        ]
        prompts, told = state.prompts, state.incident.found
        queued = sum(summary.queued.get(each.name, 0) for each in classes)
        state.queued.append(queued)
        return PoolObservation(
            pool=pool.name,
            now=now,
            recent=late,
            last_seconds=history.recent(LAST_SECONDS),
            longer_window=history.recent(KEPT_SECONDS),
            baseline=usual,
            endpoints=looks,
            queued=queued,
            level=max((each.level for each in summary.degradation if each.pool == pool.name), default=0),
            speed=pool.speed,
            tpot_ns=min((each.tpot_ns for each in classes if each.tpot_ns is not None), default=None),
            ttft_ns=min((each.ttft_ns for each in classes if each.ttft_ns is not None), default=None),
            transport_ns=self._hosts.transport_ns(pool.name),
            transport_usual_ns=self._hosts.transport_usual_ns(pool.name),
            earlier_prompt_tokens=prompts[-_PROMPTS_AGO] if len(prompts) >= _PROMPTS_AGO else 0,
            reported=None if told is None else told.incident,
            backlog=min(state.queued) if len(state.queued) == BACKLOG_LOOKS else 0,
            first_look_at=self._began,
            cold_start_ns=pool.cold_start_ns,
            scales=pool.scales,
            unsent_reason=pool.unsent_reason,
            overrides_enabled=self._overrides_enabled,
        )


def _is_leftover(one: IncidentFinding | None, state: _PoolState, picture: PoolObservation) -> bool:
    """Returns whether a cost drift may be due to responses from another incident that are still in the window.

    If callers are being harmed, the finding counts, but it must persist longer to replace the reported incident.
    """
    if one is None or one.incident is not Incident.COST_DRIFT or picture.reported is Incident.COST_DRIFT:
        return False
    if state.incident_at is None or picture.now - state.incident_at > COST_DRIFT_PAUSE_NS:
        return False
    return picture.reported is None or not callers_harmed(picture)


def _new_state(now: Instant) -> _PoolState:
    standing = _IncidentState()
    standing.since = now
    return _PoolState(standing, deque(maxlen=_PROMPTS_KEPT), deque(maxlen=BACKLOG_LOOKS))


def _classes_of(pool: PoolName, classes: dict[ClassName, ServiceClass]) -> Sequence[ServiceClass]:
    return [each for each in classes.values() if not each.pools or pool in each.pools]


def _endpoint_observation(
    summary: EndpointSummary, seen: EndpointStats, pool: PoolStats, computed_percent: int, now: Instant
) -> EndpointObservation:
    seen.update_pace(pool.speed, computed_percent, pool.answer_tokens, now)
    look = EndpointObservation(summary, seen, seen.silent_ns(now))
    seen.record_state(now, out=look.is_down, gone=summary.trouble in _GONE_TROUBLES)
    return look


def _verdict(pool: PoolName | None, standing: _IncidentState, affected: tuple[Affected, ...]) -> Verdict:
    one = standing.found
    if one is None:
        where = "The gateway" if pool is None else f"Pool {pool}"
        return Verdict(pool, Cause.HEALTHY, Incident.HEALTHY, standing.since, f"{where} is healthy.")
    return Verdict(
        pool, CAUSES[one.incident], one.incident, standing.since, one.sentence, one.evidence, affected, one.action
    )


def _affected(picture: PoolObservation, finding: IncidentFinding | None) -> tuple[Affected, ...]:
    """Returns the callers harmed most recently, or those named by the finding if none are harmed yet."""
    if finding is None:
        return ()
    worst = sorted(picture.recent.bad_by.by_name.items(), key=lambda each: (-each[1], each[0]))[:AFFECTED_MAX]
    if not worst:
        return (
            (Affected(finding.service_class, finding.tenant, "pays more but does not wait longer"),)
            if finding.service_class
            else ()
        )
    return tuple(_affected_row(name, count, picture) for name, count in worst)


def _affected_row(name: str, count: int, picture: PoolObservation) -> Affected:
    class_name, _, tenant = name.partition(" ")
    how = f"{counted(count, 'request')} late or not served in the last {RECENT_SECONDS} s"
    if not class_name:
        return Affected(None, TenantId(tenant), how)
    service_class = ClassName(class_name)
    begun, took_ns = picture.recent.ttft_by.get(service_class, (0, 0))
    usually, usual_ns = picture.baseline.ttft_by.get(service_class, (0, 0))
    if begun and usually:
        now, before = format_seconds(Duration(took_ns // begun)), format_seconds(Duration(usual_ns // usually))
        how += f"; mean time to first token {now}, usually {before}"
    return Affected(service_class, TenantId(tenant), how)
