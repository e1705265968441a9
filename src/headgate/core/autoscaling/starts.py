"""Which starts of endpoints are under way, since when, and in which phase?

A start begins when an endpoint is missing, because the want was raised or an endpoint was lost, and ends when one is
ready. Only the want and the events of the fleet are used, so cold starts are measured alike for every kind of fleet. An
endpoint that is listed takes over the oldest start that has no endpoint yet.

Only a start that a raised want began is measured. The others are under way as well, but when they began is not known
well enough: an endpoint may have been listed before this process looked, or may only have been away from the list.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from headgate.core.events import (
    EndpointJoined,
    EndpointLeaving,
    EndpointProbed,
    EndpointReadied,
    EndpointUnreadied,
    Event,
)
from headgate.core.summary import EndpointSummary
from headgate.model.endpoint import EndpointState, EndpointTrouble
from headgate.model.units import MINUTE, Duration, EndpointId, Instant, PoolName

STUCK_NS: Final = Duration(60 * MINUTE)
"""A start that has lasted longer is stuck. It no longer determines the lead, so that unused endpoints are released."""
MISSING_MAX: Final = 10_000
"""Starts without an endpoint that are remembered for each pool."""


class StartPhase(StrEnum):
    """Phases of a start that can be observed, in this order."""

    NOT_SCHEDULED = "not_scheduled"
    """Wanted, and not listed by the fleet yet."""
    STARTING = "starting"
    """Listed, and its engine does not respond yet."""
    LOADING = "loading"
    """Its engine responds that it cannot serve yet."""
    WARMING = "warming"
    """Its engine serves, and is not ready for requests yet."""


class Start(NamedTuple):
    """A start under way."""

    pool: PoolName
    since: Instant
    phase: StartPhase
    endpoint_id: EndpointId | None
    """None while no endpoint is listed for it."""


class ColdStart(NamedTuple):
    """A finished start that was measured from the raised want on."""

    pool: PoolName
    took_ns: Duration


class _Began(NamedTuple):
    since: Instant
    raised: bool
    """Whether a raised want began it."""


class Starts:
    """The starts of all pools."""

    def __init__(self) -> None:
        self._pools: dict[PoolName, _PoolStarts] = {}
        self._pool_of: dict[EndpointId, PoolName] = {}

    def saw(self, event: Event, now: Instant) -> ColdStart | None:
        """Follows one event; a cold start if the event has finished one that was measured."""
        match event:
            case EndpointJoined(endpoint):
                self._join(endpoint.id, endpoint.pool, now)
            case EndpointLeaving(endpoint_id):
                self._leave(endpoint_id, now)
            case EndpointReadied(endpoint_id):
                return self._ready(endpoint_id, now)
            case EndpointUnreadied(endpoint_id):
                if (pool := self._of(endpoint_id)) is not None:
                    pool.unready(endpoint_id, now)
            case EndpointProbed(endpoint_id, trouble, _):
                if (pool := self._of(endpoint_id)) is not None:
                    pool.probed(endpoint_id, trouble)
            case _:
                pass
        return None

    def want(self, pool: PoolName, endpoints: int, now: Instant) -> None:
        """So many endpoints are wanted from here on. The first want is a raised one if it exceeds what is listed."""
        self._pool(pool).want(endpoints, now)

    def reconcile(self, endpoints: Sequence[EndpointSummary], now: Instant) -> None:
        """Takes over the scheduler's own list, for events that another process saw."""
        there = {each.id: each for each in endpoints if not each.leaving}
        for endpoint_id in [each for each in self._pool_of if each not in there]:
            self._leave(endpoint_id, now)
        for endpoint in there.values():
            self._join(endpoint.id, endpoint.pool, now)
            if endpoint.state is not EndpointState.WARMING:
                self._ready(endpoint.id, now)

    def under_way(self) -> list[Start]:
        """Every start under way, the oldest of each pool first."""
        return [
            Start(name, began.since, phase, endpoint_id)
            for name, pool in self._pools.items()
            for began, phase, endpoint_id in sorted(pool.under_way(), key=lambda each: each[0].since)
        ]

    def age_ns(self, pool: PoolName, now: Instant) -> Duration:
        """Age of the pool's oldest start that is not stuck; 0 if there is none."""
        if (known := self._pools.get(pool)) is None:
            return Duration(0)
        ages = [now - began.since for began, _, _ in known.under_way()]
        return Duration(max((age for age in ages if age <= STUCK_NS), default=0))

    def _pool(self, pool: PoolName) -> "_PoolStarts":
        return self._pools.setdefault(pool, _PoolStarts())

    def _of(self, endpoint_id: EndpointId) -> "_PoolStarts | None":
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
    __slots__ = ("_listed", "_missing", "_phases", "_served", "_wanted")

    def __init__(self) -> None:
        self._wanted: int | None = None
        """None if this pool is not scaled."""
        self._missing: deque[_Began] = deque()
        """Starts without an endpoint, the oldest first."""
        self._listed: dict[EndpointId, _Began] = {}
        self._phases: dict[EndpointId, StartPhase] = {}
        """Of those that are listed."""
        self._served: set[EndpointId] = set()
        """Endpoints that have been ready, and are not starting anew."""

    @property
    def is_empty(self) -> bool:
        return self._wanted is None and not self._listed and not self._served

    def want(self, endpoints: int, now: Instant) -> None:
        there = len(self._listed) + len(self._served)
        # Before the first answer of a name server nothing is listed, and what it lists then was not started from here.
        before = (there or endpoints) if self._wanted is None else self._wanted
        raised = endpoints > before
        self._wanted = endpoints
        self._balance(now, raised=raised)

    def join(self, endpoint_id: EndpointId, now: Instant) -> None:
        began = self._missing.popleft() if self._missing else _Began(now, raised=False)
        self._listed[endpoint_id], self._phases[endpoint_id] = began, StartPhase.STARTING
        self._balance(now, raised=False)

    def leave(self, endpoint_id: EndpointId, now: Instant) -> None:
        self._served.discard(endpoint_id)
        self._phases.pop(endpoint_id, None)
        if (began := self._listed.pop(endpoint_id, None)) is not None:
            # Another endpoint has to start in its place, and the want has been waiting since then.
            self._missing.appendleft(began)
        self._balance(now, raised=False)

    def ready(self, endpoint_id: EndpointId) -> _Began | None:
        """When its start began; None if it was ready before."""
        self._phases.pop(endpoint_id, None)
        self._served.add(endpoint_id)
        return self._listed.pop(endpoint_id, None)

    def unready(self, endpoint_id: EndpointId, now: Instant) -> None:
        if endpoint_id in self._served:
            self._served.discard(endpoint_id)
            self._listed[endpoint_id], self._phases[endpoint_id] = _Began(now, raised=False), StartPhase.LOADING

    def probed(self, endpoint_id: EndpointId, trouble: EndpointTrouble | None) -> None:
        if endpoint_id in self._listed:
            self._phases[endpoint_id] = _phase(trouble)

    def under_way(self) -> list[tuple[_Began, StartPhase, EndpointId | None]]:
        listed = [(began, self._phases[endpoint_id], endpoint_id) for endpoint_id, began in self._listed.items()]
        return [*((began, StartPhase.NOT_SCHEDULED, None) for began in self._missing), *listed]

    def _balance(self, now: Instant, *, raised: bool) -> None:
        """Has as many starts without an endpoint as endpoints are missing. The newest are given up first."""
        short = max(0, (self._wanted or 0) - len(self._listed) - len(self._served))
        while len(self._missing) > short:
            self._missing.pop()
        self._missing.extend([_Began(now, raised=raised)] * (min(short, MISSING_MAX) - len(self._missing)))


def _phase(trouble: EndpointTrouble | None) -> StartPhase:
    if trouble is None:
        return StartPhase.WARMING
    return StartPhase.LOADING if trouble is EndpointTrouble.LOADING else StartPhase.STARTING
