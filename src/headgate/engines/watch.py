"""Which engines can serve, and how loaded do they say they are?

One task per endpoint looks at its engine: often until it is ready, then every few seconds. The scheduler is told of
transitions, and of what each engine says of its load. Nothing here is on the path of a request, and all of it is
bounded: the time and size of each look, and how many looks go on at once over all endpoints.

Endpoints that answer and endpoints that do not take turns in separate lines. Otherwise a dozen dead ones, each holding
its place until its time is up, would leave the living ones unwatched. Metrics pages have lines of their own for the
same reason: pages that hang must not keep an engine that has come up from being found.

Only the engine's own response makes it ready or unready. A probe without a response changes nothing: if the engine is
gone, its attempts fail soon, and if only the probe fails, requests continue. After two failed probes in a row the
scheduler receives the reason, for the verdict. A failed metrics page does not make an engine unready either: the last
values are kept, with their age, until they are stale; then one warning is logged.

Of several processes that share their engines one looks at them; in the others the watch rests, and knows nothing.
"""

import asyncio
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from headgate.core.events import EndpointMeasured, EndpointProbed, EndpointReadied, EndpointUnreadied, Event
from headgate.engines.dialect import Dialect, Signal
from headgate.engines.page import PAGE_BYTES_MAX
from headgate.engines.probe import Health, Probe, Scrape, Verdict
from headgate.model.endpoint import EndpointTrouble
from headgate.model.units import EndpointId
from headgate.ports.engine import Capabilities, EngineLimits, ProbeState, Telemetry

INTERVAL_S: Final = 5.0
UNREADY_INTERVAL_S: Final = 0.5
"""The first pause between looks at an engine that is not ready; each is twice the one before, up to `INTERVAL_S`."""
FAILED_LOOKS: Final = 2
"""Consecutive failed probes before the scheduler receives the reason. A busy engine may miss one."""
READS_MAX: Final = 10
"""Maximum number of probes that ask a ready engine for its version and its KV capacity. Some engines report their KV
capacity only after their first request."""
TIMEOUT_S: Final = 2.0
START_STEP_S: Final = 0.002
"""Endpoints that are watched from the same moment are first looked at so far apart."""
RESUME_S_MAX: Final = 0.25
"""Who looks again after a rest begins within this: others may begin at the same moment."""
CONCURRENT_MAX: Final = 16
"""How many looks go on at once, and how many metrics pages are read; half of each for endpoints that answered last
time."""
STALE_AFTER_S: Final = 20.0
"""What an engine said of its load this long ago says nothing of it any more. Three scrapes may fail meanwhile."""

Notice = Callable[[EndpointId, str | None], None]
"""Told what the operator should read in the log: of which endpoint, and what it fails to tell; None if nothing more."""

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
    told_passes: bool = False
    """Whether the last report to the scheduler was a passing probe."""
    told_trouble: EndpointTrouble | None = None
    failed_looks: int = 0
    """Number of consecutive failed probes."""
    hurried: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to probe at once instead of after the pause."""
    version_reads: int = 0
    """Number of times the version was read since the engine became ready."""
    limits: EngineLimits = field(default_factory=EngineLimits)
    limits_reads: int = 0
    """How often the limits were read since the engine became ready."""
    health: Health = field(default_factory=lambda: Health(Verdict.UNHEARD, problem="not looked at yet"))
    version: str | None = None
    scrape: Scrape = field(default_factory=Scrape)
    """The last one, read or not."""
    signals: dict[Signal, str] = field(default_factory=dict[Signal, str])
    """Where each signal was found on the last page that could be read."""
    telemetry: Telemetry = field(default_factory=Telemetry)
    telemetry_at: float | None = None
    noticed: frozenset[Signal] = frozenset()
    """The missing signals that the operator knows of."""

    @property
    def promised(self) -> frozenset[Signal]:
        """What an engine of this kind tells."""
        return frozenset(self.dialect.metrics)


class _Lines:
    """Who may look at once: those that answered last time and those that did not, half of the places each."""

    def __init__(self, places: int) -> None:
        self._heard = asyncio.Semaphore(max(1, places // 2))
        self._unheard = asyncio.Semaphore(max(1, places - places // 2))

    def of(self, *, heard: bool) -> asyncio.Semaphore:
        return self._heard if heard else self._unheard


class EngineWatch:
    """Watches endpoints from `watch` to `unwatch`, and tells what changes."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        tell: Callable[[Event], None],
        notice: Notice | None = None,
        *,
        interval_s: float = INTERVAL_S,
        unready_interval_s: float = UNREADY_INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        page_bytes_max: int = PAGE_BYTES_MAX,
        concurrent_max: int = CONCURRENT_MAX,
        stale_after_s: float = STALE_AFTER_S,
    ) -> None:
        self._session = session
        self._tell = tell
        self._notice = notice
        self._interval_s = interval_s
        self._unready_interval_s = min(unready_interval_s, interval_s)
        self._timeout_s = timeout_s
        self._page_bytes_max = page_bytes_max
        self._stale_after_s = stale_after_s
        self._looks = _Lines(concurrent_max)
        self._scrapes = _Lines(concurrent_max)
        self._watched: dict[EndpointId, _Watched] = {}
        self._tasks: dict[EndpointId, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._count = 0
        self._resting = False

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
        if not self._resting:
            self._start(watched)

    def unwatch(self, endpoint_id: EndpointId) -> None:
        """Forgets an endpoint. Nothing more is told of it; what its owner makes of that is the owner's business."""
        del self._watched[endpoint_id]
        self._end(endpoint_id)

    def hurry(self, endpoint_id: EndpointId) -> None:
        """Probes an endpoint at once after a change, such as an ejection."""
        if (watched := self._watched.get(endpoint_id)) is not None:
            watched.hurried.set()

    def rest(self) -> None:
        """Looks at nothing until `resume`."""
        self._resting = True
        for endpoint_id, watched in self._watched.items():
            self._end(endpoint_id)
            watched.health, watched.scrape = Health(Verdict.UNHEARD, problem="not looked at from here"), Scrape()
            watched.telemetry, watched.telemetry_at, watched.noticed = Telemetry(), None, frozenset()

    def resume(self, ready: Collection[EndpointId]) -> None:
        """Looks again; of these endpoints the scheduler takes it that they are ready."""
        if not self._resting:
            return
        self._resting = False
        begin_s = random.uniform(0, RESUME_S_MAX)  # noqa: S311  Processes are kept apart, nothing is kept secret.
        for number, watched in enumerate(self._watched.values()):
            watched.told_ready = watched.endpoint_id in ready
            watched.told_passes, watched.told_trouble, watched.failed_looks = False, None, 0
            watched.start_after_s = min(begin_s + number * START_STEP_S, self._interval_s)
            self._start(watched)

    def _start(self, watched: _Watched) -> None:
        task = asyncio.create_task(self._look_for_ever(watched), name=f"watch {watched.endpoint_id}")
        task.add_done_callback(self._ended)
        self._tasks[watched.endpoint_id] = task

    def _end(self, endpoint_id: EndpointId) -> None:
        if (task := self._tasks.pop(endpoint_id, None)) is not None:
            self._ending.add(task)
            task.cancel()

    async def stop(self) -> None:
        for endpoint_id in list(self._watched):
            self.unwatch(endpoint_id)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def capabilities(self) -> tuple[Capabilities, ...]:
        if self._resting:
            return ()
        now = asyncio.get_running_loop().time()
        talking = sum(self._is_fresh(watched, now) for watched in self._watched.values())
        return tuple(self._capabilities(watched, now, talking) for watched in self._watched.values())

    def signals_missing(self) -> dict[tuple[EndpointId, str], bool]:
        """For each signal that an endpoint's kind of engine tells, whether it is missing."""
        if self._resting:
            return {}
        now = asyncio.get_running_loop().time()
        return {
            (watched.endpoint_id, signal.value): signal in missing
            for watched in self._watched.values()
            for missing in (self._missing(watched, now),)
            for signal in watched.dialect.metrics
        }

    @property
    def resting(self) -> bool:
        return self._resting

    def told(self) -> dict[EndpointId, Telemetry]:
        """What each endpoint told of late; those whose word is stale are not there."""
        now = asyncio.get_running_loop().time()
        return {
            watched.endpoint_id: watched.telemetry for watched in self._watched.values() if self._is_fresh(watched, now)
        }

    def telemetry_ages_s(self) -> dict[EndpointId, float]:
        """How long ago each endpoint last told its load; those that never did are not there."""
        now = asyncio.get_running_loop().time()
        return {
            watched.endpoint_id: now - watched.telemetry_at
            for watched in self._watched.values()
            if watched.telemetry_at is not None
        }

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
            async with self._looks.of(heard=watched.health.verdict is not Verdict.UNHEARD):
                await self._look(watched)
            if watched.health.verdict is Verdict.SERVES:
                async with self._scrapes.of(heard=watched.scrape.telemetry is not None):
                    await self._listen(watched)
            self._notice_missing(watched)
            if watched.health.verdict is not Verdict.SERVES:
                await _pause(watched, pause_s)
                pause_s = min(2 * pause_s, self._interval_s)
                continue
            pause_s = self._unready_interval_s
            # Once, each waits by its own phase longer, so that engines which came up together are not read together.
            extra_s = 0.0 if spread else watched.phase * self._interval_s
            spread = True
            await _pause(watched, max(self._interval_s, watched.dialect.scrape_s_min) + extra_s)

    async def _look(self, watched: _Watched) -> None:
        watched.health = health = await watched.probe.health()
        if health.verdict is Verdict.SAYS_NO and watched.told_ready:
            watched.told_ready = False
            self._tell(EndpointUnreadied(watched.endpoint_id))
        if health.verdict is Verdict.SERVES and not watched.told_ready:
            watched.told_ready = True
            self._tell(EndpointReadied(watched.endpoint_id))
            # Another engine may stand there than before.
            watched.version, watched.version_reads = None, 0
            watched.limits, watched.limits_reads = EngineLimits(), 0
        self._tell_probe(watched)

    def _tell_probe(self, watched: _Watched) -> None:
        """Reports to the scheduler whether probes fail, and why, if that has changed."""
        health = watched.health
        if health.verdict is Verdict.SERVES:
            watched.failed_looks = 0
            if not watched.told_passes:
                watched.told_passes, watched.told_trouble = True, None
                self._tell(EndpointProbed(watched.endpoint_id, None))
            return
        watched.failed_looks += 1
        if watched.failed_looks < FAILED_LOOKS or health.trouble in (None, watched.told_trouble):
            return
        watched.told_passes, watched.told_trouble = False, health.trouble
        self._tell(EndpointProbed(watched.endpoint_id, health.trouble, health.problem or ""))

    async def _listen(self, watched: _Watched) -> None:
        """Hears what an engine that serves tells of itself besides."""
        if watched.version is None and watched.version_reads < READS_MAX:
            watched.version_reads += 1
            watched.version = await watched.probe.version()
        if watched.dialect.reports_kv and watched.limits.kv_tokens is None and watched.limits_reads < READS_MAX:
            watched.limits_reads += 1
            watched.limits = await watched.probe.limits()
        watched.scrape = scrape = await watched.probe.scrape()
        if scrape.telemetry is not None:
            watched.telemetry = scrape.telemetry
            watched.signals = scrape.signals or {}
            watched.telemetry_at = asyncio.get_running_loop().time()
            self._tell_load(watched, scrape.telemetry)

    def _tell_load(self, watched: _Watched, telemetry: Telemetry) -> None:
        running = telemetry.running
        if running is None and Signal.RUNNING not in watched.dialect.metrics:
            # Engines of this kind tell only how many wait: at least so many are there.
            running = 0 if telemetry.waiting is not None else None
        if running is None:
            return
        fraction = telemetry.kv_used_fraction
        kv_percent = None if fraction is None else round(100 * fraction)
        kv_tokens = watched.limits.kv_tokens
        self._tell(EndpointMeasured(watched.endpoint_id, running, telemetry.waiting or 0, kv_percent, kv_tokens))

    # What is not heard

    def _is_fresh(self, watched: _Watched, now: float) -> bool:
        return watched.telemetry_at is not None and now - watched.telemetry_at <= self._stale_after_s

    def _missing(self, watched: _Watched, now: float) -> frozenset[Signal]:
        """Promised signals that the last page lacked; all of them where there is no page, or none of late."""
        return watched.promised - watched.signals.keys() if self._is_fresh(watched, now) else watched.promised

    def _notice_missing(self, watched: _Watched) -> None:
        """Once for each set of missing signals, however often the page is read meanwhile."""
        missing = self._missing(watched, asyncio.get_running_loop().time())
        if missing == watched.noticed or (not watched.told_ready and not watched.noticed):
            # An engine that has yet to serve has promised nothing so far.
            return
        watched.noticed = missing
        names = ", ".join(signal.value for signal in watched.dialect.metrics if signal in missing)
        why = watched.scrape.problem or watched.health.problem or "nothing was heard of it"
        if self._notice is not None:
            self._notice(watched.endpoint_id, f"{names}; {why}" if missing else None)

    def _capabilities(self, watched: _Watched, now: float, talking: int) -> Capabilities:
        health, scrape = watched.health, watched.scrape
        missing = self._missing(watched, now)
        signals = {signal: name for signal, name in watched.signals.items() if signal not in missing}
        problems = (health.problem, scrape.problem, self._silence(watched, now, talking))
        return Capabilities(
            endpoint_id=watched.endpoint_id,
            dialect=watched.dialect.name,
            state=_STATES[health.verdict],
            version=watched.version,
            models=health.models,
            signals={signal.value: name for signal, name in signals.items()},
            signals_missing=tuple(signal.value for signal in Signal if signal not in signals),
            problems=tuple(problem for problem in problems if problem is not None),
            telemetry=watched.telemetry,
            telemetry_age_s=None if watched.telemetry_at is None else now - watched.telemetry_at,
        )

    def _silence(self, watched: _Watched, now: float, talking: int) -> str | None:
        """What to say of an endpoint that serves and does not tell its load, though its kind does."""
        at, path = watched.telemetry_at, watched.dialect.metrics_path
        if not watched.told_ready or not watched.promised or self._is_fresh(watched, now):
            return None
        if at is None and (not talking or watched.scrape.problem is None):
            # It has only just come up; or nobody tells anything, and why is said already.
            return None
        last = "has never told its load" if at is None else f"last told its load {now - at:.0f} s ago, which is stale"
        others = f"other endpoints that tell theirs: {talking}"
        hint = f"ask it for {path} from here" if talking else f"can {path} of the engines be reached from here?"
        return f"it {last} ({others}); requests go on by our own count of what is in flight; {hint}"


async def _pause(watched: _Watched, pause_s: float) -> None:
    """Waits until the next probe is due or `hurry` is called."""
    try:
        async with asyncio.timeout(pause_s):
            await watched.hurried.wait()
    except TimeoutError:
        pass
    watched.hurried.clear()
