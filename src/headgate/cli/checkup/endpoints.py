"""Check the endpoints: health, served model, metrics, and concurrency."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import aiohttp

from headgate.cli.checkup.clock import ClockReading, clock_reading
from headgate.cli.checkup.finding import CheckFinding, note, ok, problem
from headgate.config.settings import PoolSettings, Settings
from headgate.engines.dialect import Dialect
from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_detection import DetectionError, detect_engine
from headgate.engines.engine_tls import EngineTls
from headgate.engines.http_engine import authorization
from headgate.engines.openai_compatible import OPENAI_COMPATIBLE
from headgate.engines.page import PAGE_BYTES_MAX, PageUnavailable, get_engine_page
from headgate.engines.probe import MODELS_SHOWN_MAX, Health, Probe, ProbeVerdict, Scrape
from headgate.fleets.options import EndpointOptions
from headgate.model.endpoint import NAME_UNRESOLVED
from headgate.model.units import PoolName
from headgate.ports.engine import EngineLimits
from headgate.ports.tls import ClientTlsOptions

ENDPOINT_S_MAX = 2.0
"""Timeout for all checks of one endpoint."""


@dataclass(slots=True)
class EndpointCheck:
    """Check results so far for one endpoint."""

    pool: PoolName
    findings: list[CheckFinding] = field(default_factory=list[CheckFinding])
    clock: ClockReading | None = None
    """Reading of the endpoint's clock, if the endpoint reported the time."""
    limits: EngineLimits = field(default_factory=EngineLimits)
    """Limits reported by the endpoint's engine."""


async def check_endpoints(
    settings: Settings, session: aiohttp.ClientSession, *, seconds_max: float = ENDPOINT_S_MAX
) -> list[EndpointCheck]:
    """Checks all endpoints concurrently. Results are in configuration file order."""
    endpoints = [
        _EndpointChecker(session, pool, endpoint, seconds_max) for pool in settings.pools for endpoint in pool.endpoints
    ]
    return await asyncio.gather(*(each.check() for each in endpoints))


def reported_kv_tokens(looks: Iterable[EndpointCheck]) -> dict[PoolName, int]:
    """Lowest KV capacity reported by any engine in each pool."""
    found: dict[PoolName, int] = {}
    for look in looks:
        if (kv_tokens := look.limits.kv_tokens) is not None:
            found[look.pool] = min(kv_tokens, found.get(look.pool, kv_tokens))
    return found


def _limits_text(limits: EngineLimits) -> str | None:
    said: list[str] = []
    if limits.kv_tokens is not None:
        said.append(f"KV cache of {limits.kv_tokens:,} tokens")
    if limits.context_tokens is not None:
        said.append(f"context of {limits.context_tokens:,} tokens")
    return ", ".join(said) or None


class _EndpointChecker:
    def __init__(
        self, session: aiohttp.ClientSession, pool: PoolSettings, endpoint: EndpointOptions, seconds_max: float
    ) -> None:
        self._session = session
        self._seconds_max = seconds_max
        self._pool = pool
        self._endpoint = endpoint
        self._dialect: Dialect = DIALECTS[pool.engine]
        self._look = EndpointCheck(pool.name)
        self._tls = EngineTls(pool.tls or ClientTlsOptions()) if pool.uses_tls else None
        self._probe = Probe(
            session,
            endpoint.url,
            dialect=self._dialect,
            served_model=pool.served_model,
            api_key=pool.engine_key,
            timeout_s=seconds_max,
            page_bytes_max=PAGE_BYTES_MAX,
            tls=self._tls,
        )

    async def check(self) -> EndpointCheck:
        try:
            async with asyncio.timeout(self._seconds_max):
                async for finding in self._findings():
                    self._look.findings.append(finding)
        except TimeoutError:
            message = f"the checks did not finish within {self._seconds_max:g} s"
            port = "" if self._tls is None else ", and that it uses TLS on this port"
            self._look.findings.append(self._problem(message, then=f"check the engine's load and its log{port}"))
        return self._look

    async def _findings(self) -> AsyncIterator[CheckFinding]:
        health = await self._probe.health()
        if health.verdict is not ProbeVerdict.SERVING:
            yield self._not_serving(health)
            return
        took_ms = await self._measure_latency()
        version, places, scrape, limits = await asyncio.gather(
            self._probe.version(), self._probe.concurrency(), self._probe.scrape(), self._probe.limits()
        )
        self._look.limits = limits
        engine = self._dialect.name if version is None else f"{self._dialect.name} {version}"
        yield ok(
            self._endpoint.id, f"{engine} serves {self._pool.served_model}; response time {max(1, round(took_ms))} ms"
        )
        if version is None and self._dialect.version is not None:
            yield self._note("does not report its version", then="no action needed; messages are less specific")
        yield await self._metrics_finding(scrape)
        yield self._in_flight_finding(places if limits.sequences_max is None else limits.sequences_max)
        if (reported := _limits_text(limits)) is not None:
            yield ok(self._endpoint.id, reported)

    def _not_serving(self, health: Health) -> CheckFinding:
        if health.models:
            models = ", ".join(health.models[:MODELS_SHOWN_MAX]) + (
                ", …" if len(health.models) > MODELS_SHOWN_MAX else ""
            )
            then = f"set pools.{self._pool.name}.served_model to one of these names"
            return self._problem(f'serves {models}, not "{self._pool.served_model}"', then=then)
        match health.verdict:
            case ProbeVerdict.NO_RESPONSE if NAME_UNRESOLVED in (health.problem or ""):
                then = "check the DNS record of its host, or correct its url; it gets no requests until it responds"
            case ProbeVerdict.NO_RESPONSE if "; " in (health.problem or ""):
                said, _, then = (health.problem or "").partition("; ")
                return self._problem(said, then=then)
            case ProbeVerdict.NO_RESPONSE:
                then = "start the engine, or correct its url; it gets no requests until it responds"
            case ProbeVerdict.NOT_SERVING:
                then = "wait until the engine has loaded its model, then run this again"
            case _:
                then = "check that this is the address of an engine and that api_key is its key"
        return self._problem(health.problem or "is not ready", then=then)

    async def _measure_latency(self) -> float:
        """Response time for a small page, in milliseconds. Also reads the engine's clock."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        headers = authorization(self._pool.engine_key)
        try:
            page = await get_engine_page(
                self._session,
                self._endpoint.url,
                self._dialect.models_path,
                headers=headers,
                timeout_s=self._seconds_max,
                tls=self._tls,
            )
        except PageUnavailable:
            # The health check passed a moment ago, so the other checks will report the problem.
            return 1000 * (loop.time() - started)
        self._look.clock = clock_reading(self._endpoint.id, page.headers)
        return 1000 * (loop.time() - started)

    async def _metrics_finding(self, scrape: Scrape) -> CheckFinding:
        cost = "its load is missing from status and metrics, and dispatch uses the gateway's own counts"
        if self._dialect.reports_rate_limits:
            return ok(self._endpoint.id, "a hosted provider, without metrics of its load")
        if self._dialect.metrics_path is None:
            return self._note(f"engine type {self._dialect.name} has no metrics: {cost}", then=self._other_engine())
        if scrape.signals and scrape.problem is None:
            return ok(self._endpoint.id, f"metrics: {', '.join(scrape.signals)}")
        if not scrape.signals and (seen := await self._detected_dialect()) is not None:
            message = f"is {seen}, not {self._dialect.name}"
            return self._problem(message, then=f"set pools.{self._pool.name}.engine to {seen}")
        why, _, then = (scrape.problem or "").rpartition("; ")
        return self._note(f"metrics are missing ({why.rstrip(': ')}): {cost}", then=then)

    def _other_engine(self) -> str:
        known = ", ".join(name for name in DIALECTS if name != OPENAI_COMPATIBLE.name)
        return f"if it is one of {known}, set pools.{self._pool.name}.engine to that name"

    async def _detected_dialect(self) -> str | None:
        """Engine type suggested by the responses, if it differs from the configured one."""
        try:
            seen = await detect_engine(self._session, self._endpoint.url, api_key=self._pool.engine_key, tls=self._tls)
        except DetectionError:
            return None
        return None if seen.dialect in (OPENAI_COMPATIBLE, self._dialect) else seen.dialect.name

    def _in_flight_finding(self, places: int | None) -> CheckFinding:
        given = self._endpoint.in_flight_max
        if places is None:
            why = self._dialect.concurrency_hint or "the engine does not report how many requests it runs concurrently"
            then = "compare in_flight_max with the engine's own limit"
            return self._note(f"in_flight_max {given} cannot be checked: {why}", then=then)
        if given > places:
            message = f"in_flight_max is {given}; the engine runs {places} requests concurrently and queues the rest"
            return self._problem(message, then=f"set in_flight_max to {places}")
        if given < places:
            message = f"in_flight_max is {given}; the engine runs up to {places} requests concurrently"
            return self._note(message, then=f"raise in_flight_max to {places}, unless others use the engine too")
        return ok(self._endpoint.id, f"runs {places} requests concurrently, equal to in_flight_max")

    def _note(self, message: str, *, then: str) -> CheckFinding:
        return note(self._endpoint.id, message, next_step=then)

    def _problem(self, message: str, *, then: str) -> CheckFinding:
        return problem(self._endpoint.id, message, next_step=then)
