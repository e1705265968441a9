"""Which engines can serve, and how loaded do they say they are?

One task per endpoint looks at its engine: often until it is ready, then every few seconds. The scheduler is told of
transitions only. Nothing here is on the path of a request, and all of it is bounded: the time and size of each look,
and how many looks go on at once over all endpoints.

Endpoints that answer and endpoints that do not take turns in separate lines. Otherwise a dozen dead ones, each holding
its place until its time is up, would leave the living ones unwatched.

An engine is made ready by its own word and unready by its own word. Silence changes nothing: the attempts that are sent
there show soon enough whether it is gone, and if it is only the probe that fails, work goes on.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from headgate.core.events import EndpointReadied, EndpointUnreadied, Event
from headgate.engines.dialect import Dialect, Signal
from headgate.engines.page import PAGE_BYTES_MAX
from headgate.engines.probe import Health, Probe, Scrape, Verdict
from headgate.model.units import EndpointId
from headgate.ports.engine import Capabilities, ProbeState, Telemetry

INTERVAL_S: Final = 5.0
UNREADY_INTERVAL_S: Final = 0.5
"""The first pause between looks at an engine that is not ready; each is twice the one before, up to `INTERVAL_S`."""
TIMEOUT_S: Final = 2.0
START_STEP_S: Final = 0.002
"""Endpoints that are watched from the same moment are first looked at so far apart."""
CONCURRENT_MAX: Final = 16
"""How many looks go on at once; half of them for endpoints that answered last time."""

# Steps by the golden ratio spread any number of points evenly over a circle.
_STEP: Final = 0.6180339887498949
_STATES: Final = {
    Verdict.SERVES: ProbeState.READY,
    Verdict.SAYS_NO: ProbeState.LOADING,
    Verdict.UNCLEAR: ProbeState.LOADING,
    Verdict.UNHEARD: ProbeState.UNREACHABLE,
}


@dataclass(eq=False, slots=True)
class _Watched:
    """One endpoint and what is known of it."""

    endpoint_id: EndpointId
    dialect: Dialect
    probe: Probe
    start_after_s: float
    phase: float
    """Its place on the circle of the interval, from 0 to 1."""
    told_ready: bool = False
    health: Health = field(default_factory=lambda: Health(Verdict.UNHEARD, problem="not looked at yet"))
    version: str | None = None
    scrape: Scrape = field(default_factory=Scrape)
    telemetry: Telemetry = field(default_factory=Telemetry)
    telemetry_at: float | None = None


class EngineWatch:
    """Watches endpoints from `watch` to `unwatch`, and tells what changes."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        tell: Callable[[Event], None],
        *,
        interval_s: float = INTERVAL_S,
        unready_interval_s: float = UNREADY_INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        page_bytes_max: int = PAGE_BYTES_MAX,
        concurrent_max: int = CONCURRENT_MAX,
    ) -> None:
        self._session = session
        self._tell = tell
        self._interval_s = interval_s
        self._unready_interval_s = min(unready_interval_s, interval_s)
        self._timeout_s = timeout_s
        self._page_bytes_max = page_bytes_max
        self._heard_line = asyncio.Semaphore(max(1, concurrent_max // 2))
        self._unheard_line = asyncio.Semaphore(max(1, concurrent_max - concurrent_max // 2))
        self._watched: dict[EndpointId, _Watched] = {}
        self._tasks: dict[EndpointId, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._count = 0

    def watch(
        self, endpoint_id: EndpointId, url: str, *, dialect: Dialect, served_model: str, api_key: str | None
    ) -> None:
        assert endpoint_id not in self._watched, f"{endpoint_id} is watched already"
        probe = Probe(
            self._session,
            url,
            dialect=dialect,
            served_model=served_model,
            api_key=api_key,
            timeout_s=self._timeout_s,
            page_bytes_max=self._page_bytes_max,
        )
        start_after_s = min(len(self._watched) * START_STEP_S, self._interval_s)
        watched = _Watched(endpoint_id, dialect, probe, start_after_s, phase=self._count * _STEP % 1.0)
        self._count += 1
        self._watched[endpoint_id] = watched
        task = asyncio.create_task(self._look_for_ever(watched), name=f"watch {endpoint_id}")
        task.add_done_callback(self._ended)
        self._tasks[endpoint_id] = task

    def unwatch(self, endpoint_id: EndpointId) -> None:
        """Forgets an endpoint. Nothing more is told of it; what its owner makes of that is the owner's business."""
        del self._watched[endpoint_id]
        task = self._tasks.pop(endpoint_id)
        self._ending.add(task)
        task.cancel()

    async def stop(self) -> None:
        for endpoint_id in list(self._watched):
            self.unwatch(endpoint_id)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def capabilities(self) -> tuple[Capabilities, ...]:
        now = asyncio.get_running_loop().time()
        return tuple(_capabilities(watched, now) for watched in self._watched.values())

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (mistake := task.exception()) is not None:
            message = f"the task {task.get_name()!r} ended by a mistake of ours"
            task.get_loop().call_exception_handler({"message": message, "exception": mistake, "task": task})

    async def _look_for_ever(self, watched: _Watched) -> None:
        await asyncio.sleep(watched.start_after_s)
        pause_s = self._unready_interval_s
        spread = False
        while True:
            line = self._unheard_line if watched.health.verdict is Verdict.UNHEARD else self._heard_line
            async with line:
                await self._look(watched)
            if watched.health.verdict is not Verdict.SERVES and not watched.told_ready:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, self._interval_s)
                continue
            pause_s = self._unready_interval_s
            # Once, each waits by its own phase longer, so that engines which came up together are not read together.
            extra_s = 0.0 if spread else watched.phase * self._interval_s
            spread = True
            await asyncio.sleep(max(self._interval_s, watched.dialect.scrape_s_min) + extra_s)

    async def _look(self, watched: _Watched) -> None:
        watched.health = health = await watched.probe.health()
        if health.verdict is Verdict.SAYS_NO and watched.told_ready:
            watched.told_ready = False
            self._tell(EndpointUnreadied(watched.endpoint_id))
        if health.verdict is not Verdict.SERVES:
            return
        if not watched.told_ready:
            watched.told_ready = True
            self._tell(EndpointReadied(watched.endpoint_id))
            # Another engine may stand there than before.
            watched.version = await watched.probe.version()
        await self._scrape(watched)

    async def _scrape(self, watched: _Watched) -> None:
        watched.scrape = scrape = await watched.probe.scrape()
        if scrape.telemetry is not None:
            watched.telemetry = scrape.telemetry
            watched.telemetry_at = asyncio.get_running_loop().time()


def _capabilities(watched: _Watched, now: float) -> Capabilities:
    health, scrape = watched.health, watched.scrape
    signals = scrape.signals or {}
    return Capabilities(
        endpoint_id=watched.endpoint_id,
        dialect=watched.dialect.name,
        state=_STATES[health.verdict],
        version=watched.version,
        models=health.models,
        signals={signal.value: name for signal, name in signals.items()},
        signals_missing=tuple(signal.value for signal in Signal if signal not in signals),
        problems=tuple(problem for problem in (health.problem, scrape.problem) if problem is not None),
        telemetry=watched.telemetry,
        telemetry_age_s=None if watched.telemetry_at is None else now - watched.telemetry_at,
    )
