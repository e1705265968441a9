"""Engine clients and probes for all fleet endpoints.

Each started endpoint has its own connections and is probed. If its pool has GPU metrics, its GPUs are watched too. An
endpoint that has not started is probed only by its fleet; the scheduler already knows that it is starting.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from headgate.compose.pool_tls import PoolEndpoint
from headgate.config.pool_schema import HOSTED_ENGINE
from headgate.config.pools import engine_address
from headgate.config.settings import PoolSettings
from headgate.core.commands import Command, Eject
from headgate.core.events import EndpointJoined, EndpointNotReady, Event
from headgate.core.summary import Summary
from headgate.engines.connect_times import ConnectTimes
from headgate.engines.dialects import DIALECTS
from headgate.engines.dns_cache import DnsCache
from headgate.engines.endpoint_adapters import AdapterApi, AdapterLoader, AdapterOptions, EndpointAdapters
from headgate.engines.engine_tls import EngineTls
from headgate.engines.engine_watch import EngineWatch
from headgate.engines.gpu_watch import GpuWatch, exporter_url
from headgate.engines.http_engine import HttpEngine, turn_budget
from headgate.fleets.static import membership_changes
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId, Instant, ModelName, PoolName
from headgate.ports.api_key import ApiKey
from headgate.ports.fleet import FleetEndpoint
from headgate.telemetry.engine_metrics import EngineReadings, with_gpus
from headgate.telemetry.log import log_event

if TYPE_CHECKING:
    import aiohttp


class EjectionObserver:
    """Scheduler observer that starts a probe as soon as an endpoint is ejected."""

    def __init__(self) -> None:
        self.watch: EngineWatch | None = None
        """This process's engine watch. None until it is created."""

    def observe(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        del event, now
        for command in commands:
            if type(command) is Eject and self.watch is not None:
                self.watch.probe_now(command.endpoint_id)


class Engines:
    """Engine clients and probes for all endpoints. Must be created inside an event loop."""

    def __init__(
        self,
        session: "aiohttp.ClientSession",
        report: Callable[[Event], None],
        summary: Callable[[], Summary],
        *,
        names: DnsCache,
        open_watch: Callable[..., EngineWatch] = EngineWatch,
    ) -> None:
        self._names = names
        self._report = report
        self._summary = summary
        self.by_endpoint: dict[EndpointId, HttpEngine] = {}
        """Engine clients by endpoint, including leaving endpoints to which requests may still be sent."""
        self.watch = open_watch(session, report, _log_signals)
        self.gpus = GpuWatch(session, lambda: not self.watch.paused)
        self.connect_times = ConnectTimes()
        self._budget = turn_budget()
        self._addresses: dict[EndpointId, _EngineTarget] = {}
        self._endpoints: tuple[Endpoint, ...] = ()
        self._session = session
        self._adapters: dict[EndpointId, EndpointAdapters] = {}
        self._loaders: dict[str, AdapterLoader] = {}
        """Loader of each engine with adapters, by the engine's address."""
        self._held: dict[EndpointId, tuple[tuple[str, ...], int | None]] = {}
        """Adapters that each engine holds, and their maximum number in use."""

    @property
    def connections(self) -> int:
        return sum(engine.connections for engine in self.by_endpoint.values())

    def name_problems(self) -> list[str]:
        """Returns name resolution problems with endpoint host names."""
        return self._names.problems(each.url for each in self._addresses.values())

    def signals(self) -> EngineReadings:
        """Returns the load reported by engines, and the missing signals."""
        watch = self.watch
        return EngineReadings(
            watch.signals_missing(), watch.telemetry_ages_s(), with_gpus(watch.telemetry(), self.gpus.readings())
        )

    def follow(self, found: Sequence[PoolEndpoint]) -> None:
        """Updates the scheduler, engine clients and probes to match the fleets' endpoints."""
        old, new = self._addresses, {each.endpoint.id: _engine_target(each) for each in found if each.endpoint.started}
        shared = _shared_engines(found)
        endpoints = tuple(self._endpoint(each.pool, each.endpoint, shared) for each in found)
        for event in membership_changes(self._endpoints, endpoints):
            self._report(event)
        for endpoint_id in old:
            if old[endpoint_id] != new.get(endpoint_id):
                self.watch.unwatch(endpoint_id)
                self._held.pop(endpoint_id, None)
                if (adapters := self._adapters.pop(endpoint_id, None)) is not None:
                    adapters.close()
        for endpoint_id, address in new.items():
            if old.get(endpoint_id) != address:
                self._replace(endpoint_id, address)
        for pool, endpoint, _ in found:
            self._change_adapters(endpoint.id, _adapter_options(pool))
        self._loaders = {address: each for address, each in self._loaders.items() if each.members}
        # Requests may still be sent to a leaving endpoint. It is also possible that the host temporarily does not know
        # an endpoint: an island may have no share of it, or the scheduler may not have seen it yet.
        known = {each.id for each in self._summary().endpoints}
        for endpoint_id in self.by_endpoint.keys() - known - new.keys():
            self.by_endpoint.pop(endpoint_id).close()
        self._endpoints, self._addresses = endpoints, new
        exporters = {
            exporter_url(each.url, pool.gpu_metrics_port): each.id
            # The first pool of an engine reports its GPUs.
            for pool, each, _ in reversed(found)
            if each.started and pool.gpu_metrics_port is not None
        }
        self.gpus.follow({endpoint_id: url for url, endpoint_id in exporters.items()})

    def _replace(self, endpoint_id: EndpointId, address: "_EngineTarget") -> None:
        if endpoint_id in self.by_endpoint:
            # A different engine may be at the new address, so the endpoint must be probed again before it is ready.
            self._report(EndpointNotReady(endpoint_id))
            self.by_endpoint[endpoint_id].close()
        dialect, model, key = DIALECTS[address.engine], address.served_model, address.api_key
        adapters = None
        if dialect.adapters_metric is not None:
            loader = self._loaders.setdefault(engine_address(address.url), AdapterLoader(self._adapters_in_use))
            adapters = self._adapters[endpoint_id] = EndpointAdapters(
                endpoint_id,
                AdapterApi(self._session, address.url, api_key=key, tls=address.tls),
                loader,
                partial(self._adapters_reported, endpoint_id),
                partial(_log_adapter, endpoint_id),
            )
        self.watch.watch(
            endpoint_id,
            address.url,
            dialect=dialect,
            served_model=model,
            api_key=key,
            tls=address.tls,
            adapters=adapters,
        )
        self.by_endpoint[endpoint_id] = HttpEngine(
            address.url,
            served_model=model,
            api_key=key,
            dialect=dialect,
            passes_priority=address.passes_priority,
            anthropic_betas=address.anthropic_betas,
            joins_streams=address.watches_whole_answers,
            on_connected=partial(self.connect_times.record, address.pool),
            budget=self._budget,
            dns=self._names,
            tls=address.tls,
        )

    def pause_probes(self) -> None:
        """Pauses all probes. From now on, another process of the cell probes the engines and knows their adapters."""
        self.watch.pause()
        self._held.clear()

    # LoRA adapters

    def _endpoint(self, pool: PoolSettings, endpoint: FleetEndpoint, shared: Mapping[str, str]) -> Endpoint:
        held, max_lora = self._held.get(endpoint.id, (None, None)) if _adapter_options(pool) else (None, None)
        return Endpoint(
            endpoint.id,
            pool.name,
            endpoint.in_flight_max,
            device=endpoint.device,
            zone=endpoint.zone,
            engine=shared.get(endpoint.url, ""),
            adapters=held,
            max_lora=max_lora,
        )

    def _change_adapters(self, endpoint_id: EndpointId, options: AdapterOptions) -> None:
        adapters = self._adapters.get(endpoint_id)
        if adapters is not None and adapters.options != options:
            adapters.change(options)
            self.watch.probe_now(endpoint_id, models=True)

    def _adapters_reported(self, endpoint_id: EndpointId, held: tuple[str, ...], max_lora: int | None) -> None:
        self._held[endpoint_id] = (held, max_lora)
        self._endpoints = tuple(
            replace(each, adapters=held, max_lora=max_lora) if each.id == endpoint_id else each
            for each in self._endpoints
        )
        for each in self._endpoints:
            if each.id == endpoint_id:
                self._report(EndpointJoined(each))

    def discovered_models(self) -> tuple[ModelName, ...]:
        """Returns the adapters that make a model without being configured, according to this process's probes."""
        names = {
            name
            for endpoint_id, (held, _) in self._held.items()
            for options in (self._adapters[endpoint_id].options,)
            if options.discover
            for name in held
            if name not in options.sources
        }
        return tuple(ModelName(each) for each in sorted(names))

    def _adapters_in_use(self, endpoint_ids: Collection[EndpointId]) -> frozenset[str]:
        found = [each.adapters for each in self._summary().endpoints if each.id in endpoint_ids]
        return frozenset(name for counts in found for name, _ in counts)

    def renew_connections(self, tls: EngineTls) -> None:
        """Called when a TLS context has been replaced: from now on, requests to its engines use new connections."""
        for endpoint_id, address in self._addresses.items():
            if address.tls is tls:
                self.by_endpoint[endpoint_id].renew_connections()

    def close(self) -> None:
        for engine in self.by_endpoint.values():
            engine.close()


@dataclass(frozen=True, slots=True)
class _EngineTarget:
    """Connection parameters of one endpoint."""

    pool: PoolName
    url: str
    engine: str
    served_model: str
    passes_priority: bool
    anthropic_betas: tuple[str, ...]
    watches_whole_answers: bool
    api_key: ApiKey | None
    tls: EngineTls | None


def _engine_target(found: PoolEndpoint) -> _EngineTarget:
    pool = found.pool
    return _EngineTarget(
        pool.name,
        found.endpoint.url,
        pool.engine,
        pool.served_model,
        pool.forward_priority,
        pool.anthropic_betas,
        pool.always_stream_upstream,
        pool.engine_key,
        found.tls,
    )


def _shared_engines(found: Sequence[PoolEndpoint]) -> dict[str, str]:
    """Returns the address of each engine that belongs to several pools, by URL."""
    pools: dict[str, set[PoolName]] = {}
    addresses = {each.endpoint.url: engine_address(each.endpoint.url) for each in found}
    for each in found:
        # The pools of a hosted provider have limits of their own.
        if each.pool.engine != HOSTED_ENGINE:
            pools.setdefault(addresses[each.endpoint.url], set()).add(each.pool.name)
    return {url: address for url, address in addresses.items() if len(pools.get(address, ())) > 1}


def _adapter_options(pool: PoolSettings) -> AdapterOptions:
    return AdapterOptions({each.name: each.source for each in pool.adapters}, discover=pool.discover_adapters)


def _log_adapter(endpoint_id: EndpointId, adapter: str, problem: str) -> None:
    log_event(logging.WARNING, "adapter could not be changed", endpoint=endpoint_id, adapter=adapter, problem=problem)


def _log_signals(endpoint_id: EndpointId, missing: str | None) -> None:
    if missing is None:
        log_event(logging.INFO, "endpoint is reporting its load again", endpoint=endpoint_id)
    else:
        log_event(logging.WARNING, "endpoint is not reporting its load", endpoint=endpoint_id, missing=missing)
