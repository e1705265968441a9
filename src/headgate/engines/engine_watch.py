"""Probes engines and reports their readiness and load to the scheduler.

One task per engine probes it, frequently until it is ready and then every few seconds. If endpoints of several pools
have the same address, one probe and one scrape are enough for all of them, except that some servers must be asked about
each model. The scheduler receives readiness changes and the load that each engine reports. Probing is off the request
path, and it is bounded: each probe is limited in time and size, and the number of concurrent probes across all engines
is limited.

Probe slots are divided between endpoints that responded to their last probe and endpoints that did not. Otherwise a
dozen dead endpoints, each occupying its slot until the timeout, would prevent the others from being probed. Scrapes
have their own slots for the same reason: hanging scrapes must not delay the detection of an engine that has become
ready.

Only a response from the engine makes the endpoint ready or not ready. After two consecutive failed probes, the
scheduler receives the reason. It ejects the endpoint unless requests show that the engine still works
(`core/routing/failing_probes`). A failed scrape does not make an engine unready. The last values are kept with their
age until they are stale, at which point one warning is logged.

If several processes share their engines, only one of them probes. In the others, the watch is paused and has no values.
"""

import asyncio
import random
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import aiohttp

from headgate.core.events import EndpointNotReady, EndpointProbed, EndpointReady, Event
from headgate.engines.adapter_tasks import AdapterTasks
from headgate.engines.dialect import Dialect, Signal
from headgate.engines.endpoint_adapters import EndpointAdapters
from headgate.engines.engine_tls import EngineTls
from headgate.engines.page import PAGE_BYTES_MAX
from headgate.engines.probe import Health, Probe, ProbeVerdict
from headgate.engines.watched_engine import EngineKey, WatchedEndpoint, WatchedEngine, capabilities_of, load_report
from headgate.model.units import EndpointId
from headgate.ports.api_key import ApiKey
from headgate.ports.engine import Capabilities, EngineLimits, Telemetry

INTERVAL_S: Final = 5.0
UNREADY_INTERVAL_S: Final = 0.5
"""Initial interval between probes of an engine that is not ready. It doubles with each probe, up to `INTERVAL_S`."""
FAILED_PROBES: Final = 2
"""Number of consecutive failed probes before the scheduler receives the reason. A busy engine may miss one probe."""
READS_MAX: Final = 10
"""Maximum number of probes of a ready engine that read its version and KV capacity.

Some engines report their KV capacity only after their first request.
"""
TIMEOUT_S: Final = 2.0
START_STEP_S: Final = 0.002
"""Delay between the first probes of endpoints added at the same time, in seconds."""
RESUME_JITTER_S_MAX: Final = 0.25
"""Maximum random delay before probing resumes, in seconds, because other processes may resume at the same time."""
CONCURRENT_MAX: Final = 16
"""Maximum number of concurrent probes, and of concurrent scrapes.

Half of each is reserved for endpoints that responded last time.
"""
STALE_AFTER_S: Final = 20.0
"""Age after which an engine's load values are stale, in seconds. Long enough for three consecutive scrapes to fail."""

OnSignalsMissing = Callable[[EndpointId, str | None], None]
"""Called to log missing signals, with the endpoint and a description, or None once all signals are available again."""

# Steps of the golden ratio distribute any number of points evenly over a circle.
_GOLDEN_STEP: Final = 0.6180339887498949


class _ProbeSlots:
    """Slots for concurrent probes: half for endpoints that responded last time, half for the others."""

    def __init__(self, places: int) -> None:
        self._responsive = asyncio.Semaphore(max(1, places // 2))
        self._unresponsive = asyncio.Semaphore(max(1, places - places // 2))

    def slots(self, *, responsive: bool) -> asyncio.Semaphore:
        return self._responsive if responsive else self._unresponsive


class EngineWatch:
    """Probes endpoints from `watch` until `unwatch` and reports changes."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        report: Callable[[Event], None],
        on_signals_missing: OnSignalsMissing | None = None,
        *,
        interval_s: float = INTERVAL_S,
        unready_interval_s: float = UNREADY_INTERVAL_S,
        timeout_s: float = TIMEOUT_S,
        page_bytes_max: int = PAGE_BYTES_MAX,
        concurrent_max: int = CONCURRENT_MAX,
        stale_after_s: float = STALE_AFTER_S,
    ) -> None:
        self._session = session
        self._report = report
        self._on_signals_missing = on_signals_missing
        self._interval_s = interval_s
        self._unready_interval_s = min(unready_interval_s, interval_s)
        self._timeout_s = timeout_s
        self._page_bytes_max = page_bytes_max
        self._stale_after_s = stale_after_s
        self._probe_slots = _ProbeSlots(concurrent_max)
        self._scrape_slots = _ProbeSlots(concurrent_max)
        self._watched: dict[EndpointId, WatchedEndpoint] = {}
        self._engines: dict[EngineKey, WatchedEngine] = {}
        self._engine_of: dict[EndpointId, WatchedEngine] = {}
        self._tasks: dict[EngineKey, asyncio.Task[None]] = {}
        self._adapters = AdapterTasks(partial(self.probe_now, models=True), self._ended)
        self._ending: set[asyncio.Task[None]] = set()
        self._count = 0
        self._paused = False

    def watch(
        self,
        endpoint_id: EndpointId,
        url: str,
        *,
        dialect: Dialect,
        served_model: str,
        api_key: ApiKey | str | None,
        tls: EngineTls | None = None,
        adapters: EndpointAdapters | None = None,
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
            tls=tls,
        )
        key = (url, dialect.name, tls, api_key)
        watched = self._watched[endpoint_id] = WatchedEndpoint(endpoint_id, dialect, probe, adapters)
        if (engine := self._engines.get(key)) is not None:
            engine.endpoints.append(watched)
            engine.probe_requested.set()
            self._engine_of[endpoint_id] = engine
            return
        start_after_s = min((len(self._watched) - 1) * START_STEP_S, self._interval_s)
        engine = WatchedEngine(key, [watched], start_after_s, phase=self._count * _GOLDEN_STEP % 1.0)
        self._engines[key] = self._engine_of[endpoint_id] = engine
        self._count += 1
        if not self._paused:
            self._start(engine)

    def unwatch(self, endpoint_id: EndpointId) -> None:
        """Stops probing an endpoint without reporting anything to the scheduler."""
        engine = self._engine_of.pop(endpoint_id)
        engine.endpoints.remove(self._watched.pop(endpoint_id))
        if not engine.endpoints:
            del self._engines[engine.key]
            self._end(engine.key)

    def probe_now(self, endpoint_id: EndpointId, *, models: bool = False) -> None:
        """Probes an endpoint's engine immediately, after a change such as an ejection.

        With `models`, the models of the endpoint are read again.
        """
        if (engine := self._engine_of.get(endpoint_id)) is not None:
            if models:
                engine.endpoints[0].probe.forget_models()
            engine.probe_requested.set()

    def pause(self) -> None:
        """Pauses all probes until `resume`."""
        self._paused = True
        for key in self._engines:
            self._end(key)
        for watched in self._watched.values():
            watched.forget_readings()

    def resume(self, ready: Collection[EndpointId]) -> None:
        """Resumes probing. The given endpoints are the ones that the scheduler considers ready."""
        if not self._paused:
            return
        self._paused = False
        begin_s = random.uniform(0, RESUME_JITTER_S_MAX)  # noqa: S311  Not used for security.
        for watched in self._watched.values():
            watched.report_again(ready=watched.endpoint_id in ready)
        for number, engine in enumerate(self._engines.values()):
            engine.start_after_s = min(begin_s + number * START_STEP_S, self._interval_s)
            self._start(engine)

    def _start(self, engine: WatchedEngine) -> None:
        task = asyncio.create_task(self._probe_forever(engine), name=f"watch {engine.endpoints[0].endpoint_id}")
        task.add_done_callback(self._ended)
        self._tasks[engine.key] = task

    def _end(self, key: EngineKey) -> None:
        for task in (self._tasks.pop(key, None), self._adapters.pop(key)):
            if task is not None:
                self._ending.add(task)
                task.cancel()

    async def stop(self) -> None:
        for endpoint_id in list(self._watched):
            self.unwatch(endpoint_id)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def capabilities(self) -> tuple[Capabilities, ...]:
        if self._paused:
            return ()
        now = asyncio.get_running_loop().time()
        talking = sum(self._is_fresh(watched, now) for watched in self._watched.values())
        return tuple(
            capabilities_of(
                watched, now, talking, fresh=self._is_fresh(watched, now), missing=self._missing(watched, now)
            )
            for watched in self._watched.values()
        )

    def signals_missing(self) -> dict[tuple[EndpointId, str], bool]:
        """Returns, for each endpoint and each signal that its engine type reports, whether the signal is missing."""
        if self._paused:
            return {}
        now = asyncio.get_running_loop().time()
        return {
            (watched.endpoint_id, signal.value): signal in missing
            for watched in self._watched.values()
            for missing in (self._missing(watched, now),)
            for signal in watched.dialect.metrics
        }

    @property
    def paused(self) -> bool:
        return self._paused

    def telemetry(self) -> dict[EndpointId, Telemetry]:
        """Returns each engine's load values under the first of its endpoints that has any, omitting stale ones."""
        now = asyncio.get_running_loop().time()
        fresh = ([each for each in engine.endpoints if self._is_fresh(each, now)] for engine in self._engines.values())
        return {endpoints[0].endpoint_id: endpoints[0].telemetry for endpoints in fresh if endpoints}

    def telemetry_ages_s(self) -> dict[EndpointId, float]:
        """Returns the age of each endpoint's last load values, in seconds. Endpoints without values are omitted."""
        now = asyncio.get_running_loop().time()
        return {
            watched.endpoint_id: now - watched.telemetry_at
            for watched in self._watched.values()
            if watched.telemetry_at is not None
        }

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (mistake := task.exception()) is not None:
            message = f"the task {task.get_name()!r} failed with an internal error"
            task.get_loop().call_exception_handler({"message": message, "exception": mistake, "task": task})

    async def _probe_forever(self, engine: WatchedEngine) -> None:
        await asyncio.sleep(engine.start_after_s)
        pause_s = self._unready_interval_s
        spread = False
        while True:
            async with self._probe_slots.slots(responsive=engine.verdict is not ProbeVerdict.NO_RESPONSE):
                await self._probe(engine)
            serving = [each for each in engine.endpoints if each.health.verdict is ProbeVerdict.SERVING]
            if serving:
                async with self._scrape_slots.slots(responsive=serving[0].scrape.telemetry is not None):
                    await self._scrape(serving)
                self._adapters.start(engine)
            for watched in engine.endpoints:
                self._report_missing(watched)
            if not serving:
                await _wait_for_next(engine, pause_s)
                pause_s = min(2 * pause_s, self._interval_s)
                continue
            pause_s = self._unready_interval_s
            # The engine's phase is added to the first interval, so that engines that start together are probed at
            # different times.
            extra_s = 0.0 if spread else engine.phase * self._interval_s
            spread = True
            await _wait_for_next(engine, max(self._interval_s, serving[0].dialect.scrape_s_min) + extra_s)

    async def _probe(self, engine: WatchedEngine) -> None:
        """Probes the engine. The other endpoints use the response unless it concerns only the first one's model."""
        first, *others = engine.endpoints
        found = await first.probe.health()
        if self._watched.get(first.endpoint_id) is first:
            self._record_health(first, found)
        for watched in others:
            health = watched.probe.health_from(found) or await watched.probe.health()
            if self._watched.get(watched.endpoint_id) is watched:
                self._record_health(watched, health)

    def _record_health(self, watched: WatchedEndpoint, health: Health) -> None:
        watched.health = health
        if health.verdict is ProbeVerdict.NOT_SERVING and watched.reported_ready:
            watched.reported_ready = False
            self._report(EndpointNotReady(watched.endpoint_id))
        adapters = watched.adapters if health.verdict is ProbeVerdict.SERVING else None
        if adapters is not None and not watched.reported_ready:
            adapters.forget_limit()
            if not any(each.reported_ready for each in self._engine_of[watched.endpoint_id].endpoints):
                adapters.loader.forget()
        if adapters is not None:
            # Before the endpoint is ready, so that it gets no requests of adapters that it does not hold.
            adapters.observe_models(health.models, health.adapters)
        if health.verdict is ProbeVerdict.SERVING and not watched.reported_ready:
            watched.reported_ready = True
            self._report(EndpointReady(watched.endpoint_id))
            # A different engine may now be running at the address.
            watched.version, watched.version_reads = None, 0
            watched.limits, watched.limits_reads = EngineLimits(), 0
        self._report_probe(watched)

    def _report_probe(self, watched: WatchedEndpoint) -> None:
        """If probes have started to fail or to pass, or fail for a new reason, reports this to the scheduler."""
        health = watched.health
        if health.verdict is ProbeVerdict.SERVING:
            watched.failed_probes = 0
            if not watched.reported_passing:
                watched.reported_passing, watched.reported_trouble = True, None
                self._report(EndpointProbed(watched.endpoint_id, None))
            return
        watched.failed_probes += 1
        if watched.failed_probes < FAILED_PROBES or health.trouble in (None, watched.reported_trouble):
            return
        watched.reported_passing, watched.reported_trouble = False, health.trouble
        self._report(EndpointProbed(watched.endpoint_id, health.trouble, health.problem or ""))

    async def _scrape(self, serving: list[WatchedEndpoint]) -> None:
        """Reads a ready engine's version, limits and metrics, and reports them for each of its serving endpoints."""
        first, *others = serving
        await self._read(first)
        for watched in others:
            watched.version, watched.limits, watched.scrape = first.version, first.limits, first.scrape
        scrape, telemetry = first.scrape, first.scrape.telemetry
        for watched in serving:
            if watched.adapters is not None:
                watched.adapters.observe_limit(scrape.max_lora)
        if telemetry is None:
            return
        for watched in serving:
            if self._watched.get(watched.endpoint_id) is watched:
                watched.telemetry, watched.signals = telemetry, scrape.signals or {}
                watched.telemetry_at = asyncio.get_running_loop().time()
                if (load := load_report(watched, telemetry)) is not None:
                    self._report(load)

    async def _read(self, watched: WatchedEndpoint) -> None:
        if watched.version is None and watched.version_reads < READS_MAX:
            watched.version_reads += 1
            watched.version = await watched.probe.version()
        if watched.dialect.reports_kv and watched.limits.kv_tokens is None and watched.limits_reads < READS_MAX:
            watched.limits_reads += 1
            watched.limits = await watched.probe.limits()
        watched.scrape = await watched.probe.scrape()

    # Missing signals

    def _is_fresh(self, watched: WatchedEndpoint, now: float) -> bool:
        return watched.telemetry_at is not None and now - watched.telemetry_at <= self._stale_after_s

    def _missing(self, watched: WatchedEndpoint, now: float) -> frozenset[Signal]:
        """Returns the expected signals that were missing from the last scrape, or all of them if there is no recent
        one.
        """
        return (
            watched.expected_signals - watched.signals.keys()
            if self._is_fresh(watched, now)
            else watched.expected_signals
        )

    def _report_missing(self, watched: WatchedEndpoint) -> None:
        """Reports each set of missing signals once, however many scrapes lack them."""
        missing = self._missing(watched, asyncio.get_running_loop().time())
        if missing == watched.signals_warned or (not watched.reported_ready and not watched.signals_warned):
            # An engine that has never been ready is not expected to report signals yet.
            return
        watched.signals_warned = missing
        names = ", ".join(signal.value for signal in watched.dialect.metrics if signal in missing)
        why = watched.scrape.problem or watched.health.problem or "the engine has not responded"
        if self._on_signals_missing is not None:
            self._on_signals_missing(watched.endpoint_id, f"{names}; {why}" if missing else None)


async def _wait_for_next(engine: WatchedEngine, pause_s: float) -> None:
    """Waits until the next probe is due or one is requested."""
    try:
        async with asyncio.timeout(pause_s):
            await engine.probe_requested.wait()
    except TimeoutError:
        pass
    engine.probe_requested.clear()
