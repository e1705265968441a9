"""What is wrong, with whom, and what is to be done first?

Theory of operation. The machine sees what the scheduler is told and what it decides, and is told by processes how they
are. About once a second it is asked to look. It then draws a picture of each pool (`picture.py`): what happens of late
beside what is usual. Patterns (`patterns.py`) say what the picture shows. What they say is told only when it has been
the same for a few looks, and taken back only when nothing has been seen for several: a verdict does not flicker. What
is usual is learned while all is well, and stands still while it is not.

Until enough has been seen nothing is usual, and only what is seen directly is told: an engine that hangs, a pool
without endpoints, a process that falls behind.

Known limitation: one verdict per pool. If two incidents happen at once, the one that comes first in the order of
patterns is reported, and the other one when the first is over. Exception: endpoints that do not serve come last if they
are few and callers are harmed by another incident.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headgate.core.diagnosis.endpoint_seen import EndpointSeen
from headgate.core.diagnosis.finding import Found, harmed
from headgate.core.diagnosis.hosts_seen import HostsSeen
from headgate.core.diagnosis.patterns import cost_drift, found
from headgate.core.diagnosis.picture import BACKLOG_LOOKS, EndpointLook, Picture, mean
from headgate.core.diagnosis.seconds_seen import KEPT_SECONDS, LATE_SECONDS, LATEST_SECONDS
from headgate.core.diagnosis.watch import PoolSeen, Watch
from headgate.core.summary import EndpointSummary, Summary
from headgate.model.endpoint import EndpointTrouble
from headgate.model.policy import ServiceClass
from headgate.model.units import SECOND, ClassName, Duration, Instant, PoolName, TenantId, seconds
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
TOLD_AFTER: Final = 3
"""So many looks in a row must have found the same before it is told."""
CHANGED_AFTER: Final = 4
"""The same, where something else has been told."""
FOLLOWED_AFTER: Final = 15
"""The same, where it may be what follows from that: a queue that has yet to drain, callers who try again."""
GROWN_AFTER: Final = KEPT_SECONDS + LATE_SECONDS
"""The same for grown answers: those of the reported incident are in the window of answers for a while."""
_FOLLOWS: Final = (Incident.OVERLOAD, Incident.RETRY_STORM, Incident.COLD_START)
WELL_AFTER: Final = 10
"""So many looks in a row without a finding take it back."""
COST_TOLD_NS: Final = Duration(600 * SECOND)
"""For so long it is told that answers have grown; then they are as long as they are."""
ANSWERS_NS: Final = Duration(KEPT_SECONDS * SECOND)
"""Cost drift is not reported within this time after another incident of the pool."""
_GONE: Final = (EndpointTrouble.REFUSED, EndpointTrouble.UNREACHABLE, EndpointTrouble.LOADING)
AFFECTED_MAX: Final = 3
_PROMPTS_KEPT: Final = 40
_PROMPTS_AGO: Final = 30


class _Standing:
    """What is told of one pool, or of the gateway."""

    __slots__ = ("_candidate", "_looks", "_well", "found", "since", "told_at")

    def __init__(self) -> None:
        self.found: Found | None = None
        self.since = self.told_at = Instant(0)
        """Since when something is wrong, and since when it is this."""
        self._candidate: Incident | None = None
        self._looks = self._well = 0

    @property
    def well(self) -> bool:
        """Whether nothing is told, and nothing is about to be."""
        return self.found is None and self._candidate is None

    def note(self, seen: Found | None, now: Instant) -> None:
        if seen is None:
            self._candidate = None
            self._well += 1
            if self.found is not None and self._well >= WELL_AFTER:
                self.found, self.since = None, now
            return
        self._well = 0
        told = self.found
        if told is not None and seen.incident is told.incident:
            self.found, self._candidate = seen, None
            return
        self._looks = self._looks + 1 if seen.incident is self._candidate else 1
        self._candidate = seen.incident
        if self._looks >= _looks_needed(told, seen):
            if told is None:
                self.since = now
            self.found, self._candidate, self.told_at = seen, None, now


def _looks_needed(told: Found | None, seen: Found) -> int:
    if told is None or told.incident is Incident.COST_DRIFT:
        return TOLD_AFTER
    if seen.incident is Incident.COST_DRIFT:
        return GROWN_AFTER
    return FOLLOWED_AFTER if seen.incident in _FOLLOWS else CHANGED_AFTER


@dataclass(slots=True)
class _PoolState:
    standing: _Standing
    prompts: "deque[int]"
    """The mean prompt at each of the last looks."""
    queued: "deque[int]"
    """The number of queued requests at each of the last looks."""
    affected: tuple[Affected, ...] = ()
    bad: int = 0
    incident_at: Instant | None = None
    """The last look at which an incident other than cost drift was reported and still found; None if there was none."""


class Diagnosis:
    """An observer where decisions are made."""

    __slots__ = ("_began", "_gateway", "_hosts", "_operable", "_pools", "_watch", "saw")

    def __init__(self, *, operable: bool = False) -> None:
        """`operable`: whether operators can give orders here; the advice depends on it."""
        self._operable = operable
        self._began: Instant | None = None
        """The time of the first look."""
        self._watch = Watch()
        self.saw = self._watch.saw
        self._hosts = HostsSeen()
        self._gateway = _Standing()
        self._pools: dict[PoolName, _PoolState] = {}

    def reported(self, report: HostReport, now: Instant) -> None:
        self._hosts.reported(report, now)

    def look(self, summary: Summary, now: Instant) -> tuple[Verdict, ...]:
        """One verdict for each pool of the policy and one for the gateway, the worst first."""
        watch = self._watch
        if self._began is None:
            self._began = self._gateway.since = now
        watch.keep_endpoints([each.id for each in summary.endpoints])
        self._gateway.note(self._hosts.found(now), now)
        if self._gateway.well:
            self._hosts.learn()
        self._pools = {name: self._pools.get(name) or _new_state(now) for name in watch.pools}
        for name, pool in watch.pools.items():
            self._look_at(pool, self._pools[name], summary, now)
        ill = [each for each in self._pools.items() if each[1].standing.found is not None]
        ill.sort(key=lambda each: (-each[1].bad, each[0]))
        healthy = [each for each in self._pools.items() if each[1].standing.found is None]
        verdicts = [_verdict(name, state.standing, state.affected) for name, state in (*ill, *healthy)]
        gateway = _verdict(None, self._gateway, ())
        return (gateway, *verdicts) if self._gateway.found is not None else (*verdicts, gateway)

    def _look_at(self, pool: PoolSeen, state: _PoolState, summary: Summary, now: Instant) -> None:
        standing, history = state.standing, pool.history
        gateway = self._gateway.found
        history.close(well=standing.well and (self._gateway.well or (gateway is not None and gateway.partial)))
        picture = self._picture(pool, state, summary, now)
        state.bad = picture.late.bad
        one = found(picture)
        if _is_leftover(one, state, picture):
            one = found(picture, but=cost_drift)
        if one is not None and gateway is not None and not gateway.partial:
            # What the gateway itself does to all of them is not looked for at each.
            one = gateway if harmed(picture) else None
        standing.note(one, now)
        told = standing.found
        if told is not None and told.incident is not Incident.COST_DRIFT and (one is not None or harmed(picture)):
            state.incident_at = now
        state.affected = _affected(picture, standing.found)
        if standing.well and not harmed(picture):
            self._learn(pool, picture)
        one = standing.found
        if one is not None and one.service_class is not None and now - standing.told_at >= COST_TOLD_NS:
            history.forget_answers(one.service_class)

    def _learn(self, pool: PoolSeen, picture: Picture) -> None:
        for each in picture.serving:
            each.seen.learn()
        self._hosts.learn_transport(pool.name)
        usual = pool.history.usual
        tokens = count = 0
        for lengths in usual.answers.values():
            tokens, count = tokens + lengths.tokens, count + lengths.count
        if count:
            pool.answer_tokens = tokens // count

    def _picture(self, pool: PoolSeen, state: _PoolState, summary: Summary, now: Instant) -> Picture:
        assert self._began is not None, "a picture is made only when looking"
        history, classes = pool.history, _classes_of(pool.name, self._watch.classes)
        late = history.late()
        state.prompts.append(mean(late.prompt_tokens, late.arrivals))
        usual = history.usual
        computed = 100 - (100 * usual.cached_tokens // usual.asked_tokens if usual.asked_tokens else 0)
        looks = [
            _endpoint_look(each, seen, pool, computed, now)
            for each in summary.endpoints
            if each.pool == pool.name and (seen := self._watch.endpoints.get(each.id)) is not None
        ]
        prompts, told = state.prompts, state.standing.found
        queued = sum(summary.queued.get(each.name, 0) for each in classes)
        state.queued.append(queued)
        return Picture(
            pool=pool.name,
            now=now,
            late=late,
            latest=history.late(LATEST_SECONDS),
            later=history.late(KEPT_SECONDS),
            usual=usual,
            endpoints=looks,
            queued=queued,
            level=max((each.level for each in summary.given_up if each.pool == pool.name), default=0),
            speed=pool.speed,
            tpot_ns=min((each.tpot_ns for each in classes if each.tpot_ns is not None), default=None),
            ttft_ns=min((each.ttft_ns for each in classes if each.ttft_ns is not None), default=None),
            transport_ns=self._hosts.transport_ns(pool.name),
            transport_usual_ns=self._hosts.transport_usual_ns(pool.name),
            prompts_before=prompts[-_PROMPTS_AGO] if len(prompts) >= _PROMPTS_AGO else 0,
            told=None if told is None else told.incident,
            backlog=min(state.queued) if len(state.queued) == BACKLOG_LOOKS else 0,
            began=self._began,
            cold_start_ns=pool.cold_start_ns,
            unsent_why=pool.unsent_why,
            operable=self._operable,
        )


def _is_leftover(one: Found | None, state: _PoolState, picture: Picture) -> bool:
    """Whether grown answers are found, and the window may contain those of another incident.

    If callers are harmed meanwhile, the finding counts, and must last for longer to replace the reported incident.
    """
    if one is None or one.incident is not Incident.COST_DRIFT or picture.told is Incident.COST_DRIFT:
        return False
    if state.incident_at is None or picture.now - state.incident_at > ANSWERS_NS:
        return False
    return picture.told is None or not harmed(picture)


def _new_state(now: Instant) -> _PoolState:
    standing = _Standing()
    standing.since = now
    return _PoolState(standing, deque(maxlen=_PROMPTS_KEPT), deque(maxlen=BACKLOG_LOOKS))


def _classes_of(pool: PoolName, classes: dict[ClassName, ServiceClass]) -> Sequence[ServiceClass]:
    return [each for each in classes.values() if not each.pools or pool in each.pools]


def _endpoint_look(
    summary: EndpointSummary, seen: EndpointSeen, pool: PoolSeen, computed_percent: int, now: Instant
) -> EndpointLook:
    seen.look(pool.speed, computed_percent, pool.answer_tokens, now)
    look = EndpointLook(summary, seen, seen.silent_ns(now))
    seen.note_out(now, out=look.out, gone=summary.trouble in _GONE)
    return look


def _verdict(pool: PoolName | None, standing: _Standing, affected: tuple[Affected, ...]) -> Verdict:
    one = standing.found
    if one is None:
        where = "The gateway" if pool is None else f"Pool {pool}"
        return Verdict(pool, Cause.HEALTHY, Incident.HEALTHY, standing.since, f"{where} is healthy.")
    return Verdict(
        pool, CAUSES[one.incident], one.incident, standing.since, one.sentence, one.evidence, affected, one.action
    )


def _affected(picture: Picture, one: Found | None) -> tuple[Affected, ...]:
    """Whose requests suffered most of late; where none did yet, whom the finding names."""
    if one is None:
        return ()
    worst = sorted(picture.late.bad_by.by_name.items(), key=lambda each: (-each[1], each[0]))[:AFFECTED_MAX]
    if not worst:
        return (Affected(one.service_class, one.tenant, "pays more, and waits no longer"),) if one.service_class else ()
    return tuple(_of(name, count, picture) for name, count in worst)


def _of(name: str, count: int, picture: Picture) -> Affected:
    class_name, _, tenant = name.partition(" ")
    how = f"{count} requests late or not served in the last {LATE_SECONDS} s"
    if not class_name:
        return Affected(None, TenantId(tenant), how)
    service_class = ClassName(class_name)
    begun, took_ns = picture.late.ttft_by.get(service_class, (0, 0))
    usually, usual_ns = picture.usual.ttft_by.get(service_class, (0, 0))
    if begun and usually:
        now, before = seconds(Duration(took_ns // begun)), seconds(Duration(usual_ns // usually))
        how += f"; {now} to the first token on the mean, usually {before}"
    return Affected(service_class, TenantId(tenant), how)
