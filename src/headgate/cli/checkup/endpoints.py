"""Does each endpoint answer, serve the model, show its load, and run as much as it is to be given?"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field

import aiohttp

from headgate.cli.checkup.clock import Heard, heard_at
from headgate.cli.checkup.finding import Finding, note, ok, problem
from headgate.config.settings import PoolSettings, Settings
from headgate.engines.dialect import Dialect
from headgate.engines.dialects import DIALECTS
from headgate.engines.http import authorization
from headgate.engines.openai_compatible import OPENAI_COMPATIBLE
from headgate.engines.page import PAGE_BYTES_MAX, Unheard, get_page
from headgate.engines.probe import MODELS_SHOWN_MAX, Health, Probe, Scrape, Verdict
from headgate.engines.recognise import Unrecognised, recognise
from headgate.fleets.options import EndpointOptions
from headgate.model.endpoint import NAME_UNRESOLVED
from headgate.model.units import PoolName
from headgate.ports.engine import EngineLimits

ENDPOINT_S_MAX = 2.0
"""How long one endpoint is looked at, whatever it does."""


@dataclass(slots=True)
class Look:
    """What looking at one endpoint has brought so far."""

    pool: PoolName
    findings: list[Finding] = field(default_factory=list[Finding])
    heard: Heard | None = None
    """What its clock said, if it said so."""
    limits: EngineLimits = field(default_factory=EngineLimits)
    """The limits that its engine reports."""


async def look_at_all(
    settings: Settings, session: aiohttp.ClientSession, *, seconds_max: float = ENDPOINT_S_MAX
) -> list[Look]:
    """All at once; in the order of the file."""
    endpoints = [
        _Endpoint(session, pool, endpoint, seconds_max) for pool in settings.pools for endpoint in pool.endpoints
    ]
    return await asyncio.gather(*(each.look() for each in endpoints))


def reported_kv_tokens(looks: Iterable[Look]) -> dict[PoolName, int]:
    """The least KV capacity that an engine of each pool reports."""
    found: dict[PoolName, int] = {}
    for look in looks:
        if (kv_tokens := look.limits.kv_tokens) is not None:
            found[look.pool] = min(kv_tokens, found.get(look.pool, kv_tokens))
    return found


def _reported(limits: EngineLimits) -> str | None:
    said: list[str] = []
    if limits.kv_tokens is not None:
        said.append(f"its KV cache holds {limits.kv_tokens:,} tokens")
    if limits.context_tokens is not None:
        said.append(f"its context is {limits.context_tokens:,} tokens")
    return ", ".join(said) or None


class _Endpoint:
    def __init__(
        self, session: aiohttp.ClientSession, pool: PoolSettings, endpoint: EndpointOptions, seconds_max: float
    ) -> None:
        self._session = session
        self._seconds_max = seconds_max
        self._pool = pool
        self._endpoint = endpoint
        self._dialect: Dialect = DIALECTS[pool.engine]
        self._look = Look(pool.name)
        self._probe = Probe(
            session,
            endpoint.url,
            dialect=self._dialect,
            served_model=pool.served_model,
            api_key=pool.api_key,
            timeout_s=seconds_max,
            page_bytes_max=PAGE_BYTES_MAX,
        )

    async def look(self) -> Look:
        try:
            async with asyncio.timeout(self._seconds_max):
                async for finding in self._findings():
                    self._look.findings.append(finding)
        except TimeoutError:
            message = f"not all of its pages came within {self._seconds_max:g} s"
            self._look.findings.append(self._problem(message, then="look at the engine's load and its log"))
        return self._look

    async def _findings(self) -> AsyncIterator[Finding]:
        health = await self._probe.health()
        if health.verdict is not Verdict.SERVES:
            yield self._not_serving(health)
            return
        took_ms = await self._ask_for_time()
        version, places, scrape, limits = await asyncio.gather(
            self._probe.version(), self._probe.places(), self._probe.scrape(), self._probe.limits()
        )
        self._look.limits = limits
        engine = self._dialect.name if version is None else f"{self._dialect.name} {version}"
        yield ok(
            self._endpoint.id, f"{engine} serves {self._pool.served_model}; it answers in {max(1, round(took_ms))} ms"
        )
        if version is None and self._dialect.version is not None:
            yield self._note("does not say its version", then="nothing; only messages about it are less exact")
        yield await self._load(scrape)
        yield self._places(places if limits.sequences_max is None else limits.sequences_max)
        if (reported := _reported(limits)) is not None:
            yield ok(self._endpoint.id, reported)

    def _not_serving(self, health: Health) -> Finding:
        if health.models:
            models = ", ".join(health.models[:MODELS_SHOWN_MAX]) + (
                ", …" if len(health.models) > MODELS_SHOWN_MAX else ""
            )
            then = f"set served_model of pool {self._pool.name} to a name that it serves"
            return self._problem(f'serves {models}, not "{self._pool.served_model}"', then=then)
        match health.verdict:
            case Verdict.UNHEARD if NAME_UNRESOLVED in (health.problem or ""):
                then = "check the DNS record of its host, or correct its url; nothing is sent there until it answers"
            case Verdict.UNHEARD:
                then = "start the engine, or correct its url; nothing is sent there until it answers"
            case Verdict.SAYS_NO:
                then = "wait until the engine has loaded its model, and look again"
            case _:
                then = "see whether this is the address of an engine, and api_key its key"
        return self._problem(health.problem or "does not serve", then=then)

    async def _ask_for_time(self) -> float:
        """Milliseconds for one small page; its clock is read on the way."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        headers = authorization(self._pool.api_key)
        try:
            page = await get_page(
                self._session,
                self._endpoint.url,
                self._dialect.models_path,
                headers=headers,
                timeout_s=self._seconds_max,
            )
        except Unheard:
            # It answered a moment ago; the rest of the look says how it is.
            return 1000 * (loop.time() - started)
        self._look.heard = heard_at(self._endpoint.id, page.headers)
        return 1000 * (loop.time() - started)

    async def _load(self, scrape: Scrape) -> Finding:
        cost = "its load does not show in status and metrics, and dispatch goes by our own counts alone"
        if self._dialect.metrics_path is None:
            return self._note(
                f"shows no metrics that {self._dialect.name} could read: {cost}", then=self._other_engine()
            )
        if scrape.signals and scrape.problem is None:
            return ok(self._endpoint.id, f"metrics: {', '.join(scrape.signals)}")
        if not scrape.signals and (seen := await self._seen_dialect()) is not None:
            message = f"is {seen}, not {self._dialect.name}"
            return self._problem(message, then=f"set engine of pool {self._pool.name} to {seen}")
        why, _, then = (scrape.problem or "").rpartition("; ")
        return self._note(f"metrics are missing ({why.rstrip(': ')}): {cost}", then=then)

    def _other_engine(self) -> str:
        known = ", ".join(name for name in DIALECTS if name != OPENAI_COMPATIBLE.name)
        return f"if it is one of {known}, name that as engine of pool {self._pool.name}"

    async def _seen_dialect(self) -> str | None:
        """What it is by its own pages, where that is another engine than the file says."""
        try:
            seen = await recognise(self._session, self._endpoint.url, api_key=self._pool.api_key)
        except Unrecognised:
            return None
        return None if seen.dialect in (OPENAI_COMPATIBLE, self._dialect) else seen.dialect.name

    def _places(self, places: int | None) -> Finding:
        given = self._endpoint.in_flight_max
        if places is None:
            why = self._dialect.places_hint or "the engine does not say how many it runs at once"
            then = "compare it with the engine's own limit yourself"
            return self._note(f"in_flight_max {given} cannot be checked: {why}", then=then)
        if given > places:
            message = f"is given up to {given} requests but runs {places} at once: the rest waits there, out of order"
            return self._problem(message, then=f"set in_flight_max to {places}")
        if given < places:
            message = f"runs {places} requests at once and is given {given} at most"
            return self._note(message, then=f"raise in_flight_max to {places}, unless others use the engine too")
        return ok(self._endpoint.id, f"runs {places} requests at once, as many as in_flight_max gives it")

    def _note(self, message: str, *, then: str) -> Finding:
        return note(self._endpoint.id, message, then=then)

    def _problem(self, message: str, *, then: str) -> Finding:
        return problem(self._endpoint.id, message, then=then)
