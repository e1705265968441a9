"""Tracks endpoint starts: when each start began, and its current phase.

A start begins when an endpoint is missing, because the desired count rose or an endpoint was lost. It ends when an
endpoint is ready. Only the desired count and fleet events are used, so cold starts are measured in the same way for
every kind of fleet. A newly listed endpoint is matched with the oldest start that has no endpoint.

Only starts caused by a higher desired count are measured. For other starts, it is not known exactly when they began:
the endpoint may have been listed before this process started, or may have been missing from the list only temporarily.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from headgate.core.events import (
    EndpointJoined,
    EndpointLeaving,
    EndpointNotReady,
    EndpointProbed,
    EndpointReady,
    Event,
)
from headgate.core.summary import EndpointSummary
from headgate.model.endpoint import EndpointProblem, EndpointState
from headgate.model.units import MINUTE, Duration, EndpointId, Instant, PoolName

STUCK_NS: Final = Duration(60 * MINUTE)
"""Age at which a start counts as stuck. Stuck starts no longer affect the lead, so unused endpoints can be released."""
MISSING_MAX: Final = 10_000
"""Maximum number of starts without an endpoint that are kept for each pool."""


class StartPhase(StrEnum):
    """Observable phases of a start, in order."""

    NOT_SCHEDULED = "not_scheduled"
    """The endpoint is desired but not listed by the fleet."""
    STARTING = "starting"
    """The endpoint is listed, but its engine does not respond."""
    LOADING = "loading"
    """The engine responds that it cannot serve yet."""
    WARMING = "warming"
    """The engine can serve, but is not ready for requests yet."""


class Start(NamedTuple):
    """A start in progress."""

    pool: PoolName
    since: Instant
    phase: StartPhase
    endpoint_id: EndpointId | None
    """None until an endpoint has been listed for this start."""


class ColdStart(NamedTuple):
    """A finished start, measured from the rise in the desired count."""

    pool: PoolName
    took_ns: Duration


class _StartTime(NamedTuple):
    since: Instant
    raised: bool
    """Whether a higher desired count caused the start."""


class Starts:
    """The starts of all pools."""

    def __init__(self) -> None:
        self._pools: dict[PoolName, _PoolStarts] = {}
        self._pool_of: dict[EndpointId, PoolName] = {}

    def observe(self, event: Event, now: Instant) -> ColdStart | None:
        """Observes an event. If the event completes a measured cold start, returns that start."""
        match event:
            case EndpointJoined(endpoint):
                self._join(endpoint.id, endpoint.pool, now)
            case EndpointLeaving(endpoint_id):
                self._leave(endpoint_id, now)
            case EndpointReady(endpoint_id):
                return self._ready(endpoint_id, now)
            case EndpointNotReady(endpoint_id):
                if (pool := self._starts_of(endpoint_id)) is not None:
                    pool.unready(endpoint_id, now)
            case EndpointProbed(endpoint_id, trouble, _):
                if (pool := self._starts_of(endpoint_id)) is not None:
                    pool.probed(endpoint_id, trouble)
            case _:
                pass
        return None

    def set_desired(self, pool: PoolName, endpoints: int, now: Instant) -> None:
        """Sets the desired count. The first value counts as a rise if it exceeds the listed endpoints."""
        self._pool(pool).set_desired(endpoints, now)

    def reconcile(self, endpoints: Sequence[EndpointSummary], now: Instant) -> None:
        """Synchronises with the scheduler's own list of endpoints, for events that another process observed."""
        there = {each.id: each for each in endpoints if not each.leaving}
        for endpoint_id in [each for each in self._pool_of if each not in there]:
            self._leave(endpoint_id, now)
        for endpoint in there.values():
            self._join(endpoint.id, endpoint.pool, now)
            if endpoint.state is not EndpointState.WARMING:
                self._ready(endpoint.id, now)

    def in_progress(self) -> list[Start]:
        """Returns all starts in progress for each pool, oldest first."""
        return [
            Start(name, began.since, phase, endpoint_id)
            for name, pool in self._pools.items()
            for began, phase, endpoint_id in sorted(pool.in_progress(), key=lambda each: each[0].since)
        ]

    def age_ns(self, pool: PoolName, now: Instant) -> Duration:
        """Returns the age of the pool's oldest start that is not stuck, or 0 if there is none."""
        if (known := self._pools.get(pool)) is None:
            return Duration(0)
        ages = [now - began.since for began, _, _ in known.in_progress()]
        return Duration(max((age for age in ages if age <= STUCK_NS), default=0))

    def _pool(self, pool: PoolName) -> "_PoolStarts":
        return self._pools.setdefault(pool, _PoolStarts())

    def _starts_of(self, endpoint_id: EndpointId) -> "_PoolStarts | None":
        pool = self._pool_of.get(endpoint_id)
        return None if pool is None else self._pools[pool]

    def _join(self, endpoint_id: EndpointId, pool: PoolName, now: Instant) -> None:
        if endpoint_id not in self._pool_of:
            self._pool_of[endpoint_id] = pool
            self._pool(pool).join(endpoint_id, now)

    def _leave(self, endpoint_id: EndpointId, now: Instant) -> None:
        if (name := self._pool_of.pop(endpoint_id, None)) is not None:
            pool = self._pools[name]
            pool.leave(endpoint_id, now)
            if pool.is_empty:
                del self._pools[name]

    def _ready(self, endpoint_id: EndpointId, now: Instant) -> ColdStart | None:
        name = self._pool_of.get(endpoint_id)
        began = None if name is None else self._pools[name].ready(endpoint_id)
        if name is None or began is None or not began.raised:
            return None
        return ColdStart(name, Duration(now - began.since))


class _PoolStarts:
    __slots__ = ("_desired", "_listed", "_missing", "_phases", "_ready_ids")

    def __init__(self) -> None:
        self._desired: int | None = None
        """Desired count. None if the pool is not scaled."""
        self._missing: deque[_StartTime] = deque()
        """Starts without an endpoint, oldest first."""
        self._listed: dict[EndpointId, _StartTime] = {}
        self._phases: dict[EndpointId, StartPhase] = {}
        """Phases of the listed endpoints."""
        self._ready_ids: set[EndpointId] = set()
        """Endpoints that have become ready and are not restarting."""

    @property
    def is_empty(self) -> bool:
        return self._desired is None and not self._listed and not self._ready_ids

    def set_desired(self, endpoints: int, now: Instant) -> None:
        there = len(self._listed) + len(self._ready_ids)
        # Nothing is listed until the name server first responds, and endpoints in that response were not started here.
        before = (there or endpoints) if self._desired is None else self._desired
        raised = endpoints > before
        self._desired = endpoints
        self._balance(now, raised=raised)

    def join(self, endpoint_id: EndpointId, now: Instant) -> None:
        began = self._missing.popleft() if self._missing else _StartTime(now, raised=False)
        self._listed[endpoint_id], self._phases[endpoint_id] = began, StartPhase.STARTING
        self._balance(now, raised=False)

    def leave(self, endpoint_id: EndpointId, now: Instant) -> None:
        self._ready_ids.discard(endpoint_id)
        self._phases.pop(endpoint_id, None)
        if (began := self._listed.pop(endpoint_id, None)) is not None:
            # A replacement must be started. Its start counts from the original request.
            self._missing.appendleft(began)
        self._balance(now, raised=False)

    def ready(self, endpoint_id: EndpointId) -> _StartTime | None:
        """Returns when the start began, or None if the endpoint had been ready before."""
        self._phases.pop(endpoint_id, None)
        self._ready_ids.add(endpoint_id)
        return self._listed.pop(endpoint_id, None)

    def unready(self, endpoint_id: EndpointId, now: Instant) -> None:
        if endpoint_id in self._ready_ids:
            self._ready_ids.discard(endpoint_id)
            self._listed[endpoint_id], self._phases[endpoint_id] = _StartTime(now, raised=False), StartPhase.LOADING

    def probed(self, endpoint_id: EndpointId, trouble: EndpointProblem | None) -> None:
        if endpoint_id in self._listed:
            self._phases[endpoint_id] = _phase(trouble)

    def in_progress(self) -> list[tuple[_StartTime, StartPhase, EndpointId | None]]:
        listed = [(began, self._phases[endpoint_id], endpoint_id) for endpoint_id, began in self._listed.items()]
        return [*((began, StartPhase.NOT_SCHEDULED, None) for began in self._missing), *listed]

    def _balance(self, now: Instant, *, raised: bool) -> None:
        """Adjusts the number of starts without an endpoint to match the number of missing endpoints.

        The newest are dropped first.
        """
        short = max(0, (self._desired or 0) - len(self._listed) - len(self._ready_ids))
        while len(self._missing) > short:
            self._missing.pop()
        self._missing.extend([_StartTime(now, raised=raised)] * (min(short, MISSING_MAX) - len(self._missing)))


def _phase(trouble: EndpointProblem | None) -> StartPhase:
    if trouble is None:
        return StartPhase.WARMING
    return StartPhase.LOADING if trouble is EndpointProblem.LOADING else StartPhase.STARTING
