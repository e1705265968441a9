"""All pools' fleets, and how they are updated when the configuration changes."""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import aiohttp

from headgate.compose.pool_tls import PoolEndpoint, PoolTls
from headgate.config.settings import PoolSettings
from headgate.engines.dialects import DIALECTS
from headgate.engines.engine_watch import TIMEOUT_S
from headgate.engines.page import PAGE_BYTES_MAX
from headgate.engines.probe import Probe, ProbeVerdict
from headgate.engines.warm_up import warm_up
from headgate.fleets.dns.fleet import DnsFleet
from headgate.fleets.dns.options import DnsOptions
from headgate.fleets.dns.resolve import HostPort, LookupFailed, Resolve, system_resolver
from headgate.fleets.processes.fleet import ProcessFleet
from headgate.fleets.processes.options import ProcessOptions
from headgate.fleets.processes.spec import ProcessSpec
from headgate.fleets.ray.fleet import RayFleet
from headgate.fleets.ray.options import RayOptions
from headgate.fleets.static import StaticFleet
from headgate.model.units import Duration, EndpointId, PoolName, format_seconds
from headgate.ports.engine import ProbeState
from headgate.ports.fleet import (
    EndpointLookup,
    Fleet,
    FleetObserver,
    Phase,
    ProbeEngine,
    ProbeResult,
    ScalableFleet,
    WarmUp,
)
from headgate.telemetry.log import log_event

_PROBE_STATES = {
    ProbeVerdict.SERVING: ProbeState.READY,
    ProbeVerdict.NOT_SERVING: ProbeState.LOADING,
    ProbeVerdict.UNCLEAR: ProbeState.LOADING,
    ProbeVerdict.NO_RESPONSE: ProbeState.UNREACHABLE,
}

OnStart = Callable[[PoolName, Mapping[Phase, Duration]], None]
OnDrain = Callable[[PoolName, Duration], None]


class Fleets:
    """All pools' fleets. For every configuration, the owner calls `change_to` and then `start`."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        lookup: EndpointLookup,
        changed: Callable[[], None],
        *,
        on_start: OnStart,
        on_drain: OnDrain,
    ) -> None:
        self._session = session
        self.tls = PoolTls()
        self._lookup = lookup
        self._changed = changed
        self._on_start = on_start
        self._on_drain = on_drain
        self._pools: dict[PoolName, PoolSettings] = {}
        self._fleets: dict[PoolName, Fleet] = {}
        self._unstarted: list[Fleet] = []
        self._retiring: dict[asyncio.Task[None], Fleet] = {}
        self._logs: Path | None = None
        self._missing_library: str | None = None
        """A required library that is not installed, with the next step."""

    def endpoints(self) -> Iterator[PoolEndpoint]:
        for name, pool in self._pools.items():
            for endpoint in self._fleets[name].endpoints():
                yield PoolEndpoint(pool, endpoint, self.tls.of(pool))

    def in_flight_limits(self, pool: PoolName) -> set[int]:
        """Returns the values of `in_flight_max` that the pool's endpoints have."""
        return {each.endpoint.in_flight_max for each in self.endpoints() if each.pool.name == pool}

    def phases(self) -> dict[EndpointId, Phase]:
        """Returns the phases of endpoint starts, for fleets that observe them. Other fleets only list endpoints."""
        fleets = [fleet for fleet in self._fleets.values() if isinstance(fleet, ProcessFleet)]
        return {endpoint_id: phase for fleet in fleets for endpoint_id, phase in fleet.phases().items()}

    def name_problems(self) -> list[str]:
        """Returns name resolution problems with fleet names."""
        fleets = [each for each in self._fleets.values() if isinstance(each, DnsFleet)]
        return [each.problem for each in fleets if each.problem is not None]

    def unresolved(self) -> list[PoolName]:
        """Returns the pools whose name is being resolved for the first time."""
        return [
            name for name, fleet in list(self._fleets.items()) if isinstance(fleet, DnsFleet) and not fleet.looked_up
        ]

    def change_to(self, pools: Sequence[PoolSettings]) -> None:
        """Creates new fleets, which `start` then starts. Removed fleets drain, without a timeout."""
        before, self._pools = self._pools, {pool.name: pool for pool in pools}
        self.tls.change_to(pools)
        for name, pool in self._pools.items():
            if before.get(name) == pool:
                continue
            old = self._fleets.get(name)
            if old is None or not self._reconfigure(old, pool):
                if old is not None:
                    self._retire(old)
                self._fleets[name] = fleet = self._make_fleet(pool)
                self._unstarted.append(fleet)
        for name in before:
            if name not in self._pools:
                self._retire(self._fleets.pop(name))

    async def start_first(self) -> None:
        """Starts the fleets for the first time. Raises `OSError` with the next step if a library is not installed."""
        if self._missing_library is not None:
            raise OSError(0, self._missing_library)
        await self.start()

    async def start(self) -> None:
        while self._unstarted:
            await self._unstarted.pop(0).start(self._changed)

    async def stop(self) -> None:
        """Stops all fleets immediately. The caller must first wait until the endpoints are no longer in use."""
        fleets = (*self._fleets.values(), *self._retiring.values())
        await asyncio.gather(*(fleet.stop() for fleet in fleets))

    async def scale(self, pool: PoolName, endpoints: int) -> bool:
        """Scales a pool. Returns whether the gateway can scale the fleet and the desired size has changed."""
        fleet = self._fleets.get(pool)
        if not isinstance(fleet, ScalableFleet):
            return False
        before = fleet.desired
        await fleet.scale(endpoints)
        return fleet.desired != before

    # Creation

    def _make_fleet(self, pool: PoolSettings) -> Fleet:
        match pool.fleet:
            case DnsOptions():
                resolve, starting = self._resolvers(pool, pool.fleet)
                return DnsFleet(pool.name, pool.fleet, resolve, self._observer(pool), resolve_starting=starting)
            case ProcessOptions():
                return self._make_process_fleet(pool, pool.fleet)
            case None:
                return StaticFleet(pool.endpoints)

    def _make_process_fleet(self, pool: PoolSettings, fleet: ProcessOptions) -> ProcessFleet:
        least, most = _bounds(pool, fleet)
        make = ProcessFleet if fleet.ray is None else partial(RayFleet, ray=fleet.ray)
        return make(
            self._process_terms(pool, fleet),
            endpoints=fleet.endpoint_count,
            endpoints_min=least,
            endpoints_max=most,
            look=self._probe(pool),
            warm_up=self._warm_up(pool),
            lookup=self._lookup,
            observer=self._observer(pool),
            other_ports=self._ports,
        )

    def _ports(self) -> set[int]:
        """Returns the ports assigned by all fleets, including those that are draining."""
        fleets = (*self._fleets.values(), *self._retiring.values())
        return {port for fleet in fleets if isinstance(fleet, ProcessFleet) for port in fleet.ports()}

    def _reconfigure(self, fleet: Fleet, pool: PoolSettings) -> bool:
        """Applies the new settings to the existing fleet. Returns false if that is not possible."""
        match fleet, pool.fleet:
            case DnsFleet(), DnsOptions() as options:
                fleet.reconfigure(options, *self._resolvers(pool, options))
            case ProcessFleet(), ProcessOptions() as options if _ray_options(fleet) == options.ray:
                least, most = _bounds(pool, options)
                fleet.reconfigure(
                    self._process_terms(pool, options),
                    look=self._probe(pool),
                    warm_up=self._warm_up(pool),
                    endpoints=options.endpoint_count if pool.scaling is None else None,
                    endpoints_min=least,
                    endpoints_max=most,
                )
            case _:
                return False
        return True

    def _resolvers(self, pool: PoolSettings, fleet: DnsOptions) -> tuple[Resolve, Resolve | None]:
        """Returns the functions that resolve the fleet's name and, if configured, the name that also lists starting
        engines.
        """
        name = fleet.not_ready_name
        return self._resolve(pool, fleet), None if name is None else self._resolve(pool, replace(fleet, name=name))

    def _resolve(self, pool: PoolSettings, fleet: DnsOptions) -> Resolve:
        if fleet.port is not None and fleet.nameserver is None:
            return system_resolver(fleet.name, fleet.port)
        try:
            from headgate.fleets.dns.name_server import name_server_resolver
        except ImportError as error:
            # After a reload, the known endpoints are kept, and the log gives the reason.
            self._missing_library = f"pools.{pool.name}.fleet: {error}"
            return _failing(self._missing_library)
        return name_server_resolver(fleet.name, fleet.port, fleet.nameserver)

    def _retire(self, fleet: Fleet) -> None:
        if fleet in self._unstarted:
            self._unstarted.remove(fleet)
        task = asyncio.create_task(fleet.stop(drain=True))
        self._retiring[task] = fleet
        task.add_done_callback(self._retiring.pop)

    def _process_terms(self, pool: PoolSettings, fleet: ProcessOptions) -> ProcessSpec:
        logs = self._own_logs() if fleet.log_directory is None else Path(fleet.log_directory)
        return ProcessSpec(pool=pool.name, model=pool.served_model, log_directory=logs, options=fleet)

    def _own_logs(self) -> Path:
        """Returns a temporary directory for logs if the configuration does not specify one."""
        if self._logs is None:
            self._logs = Path(tempfile.mkdtemp(prefix="headgate-engines-"))
            log_event(logging.INFO, "engine logs go to a temporary directory", folder=str(self._logs))
        return self._logs

    def _observer(self, pool: PoolSettings) -> FleetObserver:
        return _FleetLog(pool.name, self._on_start, self._on_drain)

    def _probe(self, pool: PoolSettings) -> ProbeEngine:
        tls = self.tls.of(pool)

        async def look(url: str) -> ProbeResult:
            probe = Probe(
                self._session,
                url,
                dialect=DIALECTS[pool.engine],
                served_model=pool.served_model,
                api_key=pool.engine_key,
                timeout_s=TIMEOUT_S,
                page_bytes_max=PAGE_BYTES_MAX,
                tls=tls,
            )
            health = await probe.health()
            return ProbeResult(_PROBE_STATES[health.verdict], health.problem or "")

        return look

    def _warm_up(self, pool: PoolSettings) -> WarmUp:
        tls = self.tls.of(pool)

        async def first_request(url: str) -> str | None:
            dialect, model, key = DIALECTS[pool.engine], pool.served_model, pool.engine_key
            return await warm_up(self._session, url, dialect=dialect, served_model=model, api_key=key, tls=tls)

        return first_request


class _FleetLog:
    """Logs and measures fleet events."""

    def __init__(self, pool: PoolName, on_start: OnStart, on_drain: OnDrain) -> None:
        self._pool = pool
        self._on_start = on_start
        self._on_drain = on_drain

    def started(self, endpoint_id: EndpointId, took_ns: Mapping[Phase, Duration]) -> None:
        whole = format_seconds(Duration(sum(took_ns.values())))
        phases = {phase.value: format_seconds(each) for phase, each in took_ns.items()}
        log_event(logging.INFO, "endpoint started", endpoint=endpoint_id, whole=whole, **phases)
        self._on_start(self._pool, took_ns)

    def drained(self, endpoint_id: EndpointId, took_ns: Duration) -> None:
        log_event(logging.INFO, "endpoint drained", endpoint=endpoint_id, took=format_seconds(took_ns))
        self._on_drain(self._pool, took_ns)

    def problem_found(self, subject: str, problem: str) -> None:
        log_event(logging.WARNING, "fleet problem", pool=self._pool, what=subject, problem=problem)

    def problem_cleared(self, what: str) -> None:
        log_event(logging.INFO, "fleet recovered", pool=self._pool, what=what)


def _ray_options(fleet: ProcessFleet) -> RayOptions | None:
    return fleet.ray if isinstance(fleet, RayFleet) else None


def _failing(problem: str) -> Resolve:
    async def resolve() -> list[HostPort]:
        raise LookupFailed(problem)

    return resolve


def _bounds(pool: PoolSettings, fleet: ProcessOptions) -> tuple[int, int]:
    """Returns the minimum and maximum endpoint count."""
    if pool.scaling is None:
        return fleet.endpoint_count, fleet.endpoint_count
    return pool.scaling.endpoints_min, pool.scaling.endpoints_max
