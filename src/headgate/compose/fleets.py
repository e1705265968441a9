"""Which fleet does each pool have, and what becomes of it when the configuration changes?"""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp

from headgate.config.settings import PoolSettings
from headgate.engines.dialects import DIALECTS
from headgate.engines.page import PAGE_BYTES_MAX
from headgate.engines.probe import Probe, Verdict
from headgate.engines.warm_up import warm_up
from headgate.engines.watch import TIMEOUT_S
from headgate.fleets.dns.fleet import DnsFleet
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.dns.resolve import Found, Resolve, Unanswered, by_system
from headgate.fleets.processes.fleet import ProcessFleet
from headgate.fleets.processes.options import ProcessOptions
from headgate.fleets.processes.terms import ProcessTerms
from headgate.fleets.ray.fleet import RayFleet
from headgate.fleets.ray.options import RayOptions
from headgate.fleets.static import StaticFleet
from headgate.model.units import Duration, EndpointId, PoolName, seconds
from headgate.ports.engine import ProbeState
from headgate.ports.fleet import Fleet, FleetEndpoint, FleetObserver, Look, Lookup, Phase, ScalableFleet, Seen, WarmUp
from headgate.telemetry.log import tell

_STATES = {
    Verdict.SERVES: ProbeState.READY,
    Verdict.SAYS_NO: ProbeState.LOADING,
    Verdict.UNCLEAR: ProbeState.LOADING,
    Verdict.UNHEARD: ProbeState.UNREACHABLE,
}

OnStart = Callable[[PoolName, Mapping[Phase, Duration]], None]
OnDrain = Callable[[PoolName, Duration], None]


class Fleets:
    """The fleets of all pools. Its owner calls `change_to`, then `start`, for every configuration."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        lookup: Lookup,
        changed: Callable[[], None],
        *,
        on_start: OnStart,
        on_drain: OnDrain,
    ) -> None:
        self._session = session
        self._lookup = lookup
        self._changed = changed
        self._on_start = on_start
        self._on_drain = on_drain
        self._pools: dict[PoolName, PoolSettings] = {}
        self._fleets: dict[PoolName, Fleet] = {}
        self._unstarted: list[Fleet] = []
        self._retiring: dict[asyncio.Task[None], Fleet] = {}
        self._logs: Path | None = None
        self._missing: str | None = None
        """The library that a fleet needs and that is not installed, with the next step."""

    def endpoints(self) -> Iterator[tuple[PoolSettings, FleetEndpoint]]:
        for name, pool in self._pools.items():
            for endpoint in self._fleets[name].endpoints():
                yield pool, endpoint

    def phases(self) -> dict[EndpointId, Phase]:
        """The phases of starts that fleets themselves observe; the other fleets only list endpoints."""
        fleets = [fleet for fleet in self._fleets.values() if isinstance(fleet, ProcessFleet)]
        return {endpoint_id: phase for fleet in fleets for endpoint_id, phase in fleet.phases().items()}

    def name_problems(self) -> list[str]:
        """Problems of name servers with the names of fleets."""
        fleets = [each for each in self._fleets.values() if isinstance(each, DnsFleet)]
        return [each.problem for each in fleets if each.problem is not None]

    def change_to(self, pools: Sequence[PoolSettings]) -> None:
        """What is new is started by `start`; what is gone is drained, however long that takes."""
        before, self._pools = self._pools, {pool.name: pool for pool in pools}
        for name, pool in self._pools.items():
            if before.get(name) == pool:
                continue
            old = self._fleets.get(name)
            if old is None or not self._change(old, pool):
                if old is not None:
                    self._retire(old)
                self._fleets[name] = fleet = self._made(pool)
                self._unstarted.append(fleet)
        for name in before:
            if name not in self._pools:
                self._retire(self._fleets.pop(name))

    async def begin(self) -> None:
        """The first `start`. Raises `OSError` if a library is not installed, with the next step."""
        if self._missing is not None:
            raise OSError(0, self._missing)
        await self.start()

    async def start(self) -> None:
        while self._unstarted:
            await self._unstarted.pop(0).start(self._changed)

    async def stop(self) -> None:
        """At once: whoever still uses an endpoint has been waited for before."""
        fleets = (*self._fleets.values(), *self._retiring.values())
        await asyncio.gather(*(fleet.stop() for fleet in fleets))

    async def scale(self, pool: PoolName, endpoints: int) -> bool:
        """Whether the pool's fleet can be scaled from here, and wants another number than before."""
        fleet = self._fleets.get(pool)
        if not isinstance(fleet, ScalableFleet):
            return False
        before = fleet.wanted
        await fleet.scale(endpoints)
        return fleet.wanted != before

    # Making them

    def _made(self, pool: PoolSettings) -> Fleet:
        match pool.fleet:
            case DnsOptions():
                resolve, starting = self._resolves(pool, pool.fleet)
                return DnsFleet(pool.name, pool.fleet, resolve, self._observer(pool), resolve_starting=starting)
            case ProcessOptions():
                return self._made_of_processes(pool, pool.fleet)
            case None:
                return StaticFleet(pool.endpoints)

    def _made_of_processes(self, pool: PoolSettings, fleet: ProcessOptions) -> ProcessFleet:
        least, most = _bounds(pool, fleet)
        make = ProcessFleet if fleet.ray is None else partial(RayFleet, ray=fleet.ray)
        return make(
            self._process_terms(pool, fleet),
            endpoints=fleet.endpoints,
            endpoints_min=least,
            endpoints_max=most,
            look=self._look(pool),
            warm_up=self._warm_up(pool),
            lookup=self._lookup,
            observer=self._observer(pool),
            ports_elsewhere=self._ports,
        )

    def _ports(self) -> set[int]:
        """Those that any fleet has given to an engine, be it one that is on its way out."""
        fleets = (*self._fleets.values(), *self._retiring.values())
        return {port for fleet in fleets if isinstance(fleet, ProcessFleet) for port in fleet.ports()}

    def _change(self, fleet: Fleet, pool: PoolSettings) -> bool:
        """Whether the fleet that is there could take on the new settings."""
        match fleet, pool.fleet:
            case DnsFleet(), DnsOptions() as options:
                fleet.change(options, *self._resolves(pool, options))
            case ProcessFleet(), ProcessOptions() as options if _runs_in(fleet) == options.ray:
                least, most = _bounds(pool, options)
                fleet.change(
                    self._process_terms(pool, options),
                    look=self._look(pool),
                    warm_up=self._warm_up(pool),
                    endpoints=options.endpoints if pool.scaling is None else None,
                    endpoints_min=least,
                    endpoints_max=most,
                )
            case _:
                return False
        return True

    def _resolves(self, pool: PoolSettings, fleet: DnsOptions) -> tuple[Resolve, Resolve | None]:
        """How the name is resolved, and the one that also lists engines that are not ready yet."""
        name = fleet.starting_name
        return self._resolve(pool, fleet), None if name is None else self._resolve(pool, replace(fleet, name=name))

    def _resolve(self, pool: PoolSettings, fleet: DnsOptions) -> Resolve:
        if fleet.port is not None and fleet.nameserver is None:
            return by_system(fleet.name, fleet.port)
        try:
            from headgate.fleets.dns.name_server import by_server
        except ImportError as error:
            # After a reload the known endpoints stay, and the log gives the reason.
            self._missing = f"pools.{pool.name}.fleet: {error}"
            return _failing(self._missing)
        return by_server(fleet.name, fleet.port, fleet.nameserver)

    def _retire(self, fleet: Fleet) -> None:
        if fleet in self._unstarted:
            self._unstarted.remove(fleet)
        task = asyncio.create_task(fleet.stop(drain=True))
        self._retiring[task] = fleet
        task.add_done_callback(self._retiring.pop)

    def _process_terms(self, pool: PoolSettings, fleet: ProcessOptions) -> ProcessTerms:
        logs = self._own_logs() if fleet.logs is None else Path(fleet.logs)
        return ProcessTerms(pool=pool.name, model=pool.served_model, logs=logs, options=fleet)

    def _own_logs(self) -> Path:
        """A folder for logs that the configuration gives no place."""
        if self._logs is None:
            self._logs = Path(tempfile.mkdtemp(prefix="headgate-engines-"))
            tell(logging.INFO, "engines log to a folder of their own", folder=str(self._logs))
        return self._logs

    def _observer(self, pool: PoolSettings) -> FleetObserver:
        return _Told(pool.name, self._on_start, self._on_drain)

    def _look(self, pool: PoolSettings) -> Look:
        async def look(url: str) -> Seen:
            probe = Probe(
                self._session,
                url,
                dialect=DIALECTS[pool.engine],
                served_model=pool.served_model,
                api_key=pool.api_key,
                timeout_s=TIMEOUT_S,
                page_bytes_max=PAGE_BYTES_MAX,
            )
            health = await probe.health()
            return Seen(_STATES[health.verdict], health.problem or "")

        return look

    def _warm_up(self, pool: PoolSettings) -> WarmUp:
        async def first_request(url: str) -> str | None:
            dialect, model, key = DIALECTS[pool.engine], pool.served_model, pool.api_key
            return await warm_up(self._session, url, dialect=dialect, served_model=model, api_key=key)

        return first_request


class _Told:
    """What a fleet does, for the log and for whoever measures."""

    def __init__(self, pool: PoolName, on_start: OnStart, on_drain: OnDrain) -> None:
        self._pool = pool
        self._on_start = on_start
        self._on_drain = on_drain

    def started(self, endpoint_id: EndpointId, took_ns: Mapping[Phase, Duration]) -> None:
        whole = seconds(Duration(sum(took_ns.values())))
        phases = {phase.value: seconds(each) for phase, each in took_ns.items()}
        tell(logging.INFO, "endpoint started", endpoint=endpoint_id, whole=whole, **phases)
        self._on_start(self._pool, took_ns)

    def drained(self, endpoint_id: EndpointId, took_ns: Duration) -> None:
        tell(logging.INFO, "endpoint drained", endpoint=endpoint_id, took=seconds(took_ns))
        self._on_drain(self._pool, took_ns)

    def troubled(self, what: str, problem: str) -> None:
        tell(logging.WARNING, "fleet has trouble", pool=self._pool, what=what, problem=problem)

    def recovered(self, what: str) -> None:
        tell(logging.INFO, "fleet has recovered", pool=self._pool, what=what)


def _runs_in(fleet: ProcessFleet) -> RayOptions | None:
    return fleet.ray if isinstance(fleet, RayFleet) else None


def _failing(problem: str) -> Resolve:
    async def resolve() -> list[Found]:
        raise Unanswered(problem)

    return resolve


def _bounds(pool: PoolSettings, fleet: ProcessOptions) -> tuple[int, int]:
    """How many endpoints there may be, at least and at most."""
    if pool.scaling is None:
        return fleet.endpoints, fleet.endpoints
    return pool.scaling.endpoints_min, pool.scaling.endpoints_max
