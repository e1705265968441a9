"""Which engines does a gateway ask, and how are they watched?

What the fleets name is followed: each endpoint that has started has connections of its own to its engine, is looked at,
and, where its pool says so, its GPUs are too. Who has not started is looked at by its fleet alone; the scheduler knows
that it is coming.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from headgate.config.settings import PoolSettings
from headgate.core.commands import Command, Eject
from headgate.core.events import EndpointUnreadied, Event
from headgate.core.summary import Summary
from headgate.engines.connect_times import ConnectTimes
from headgate.engines.dialects import DIALECTS
from headgate.engines.gpus import GpuWatch, exporter_url
from headgate.engines.host_names import HostNames
from headgate.engines.http import HttpEngine, turn_budget
from headgate.engines.watch import EngineWatch
from headgate.fleets.static import changes
from headgate.model.endpoint import Endpoint
from headgate.model.units import EndpointId, Instant, PoolName
from headgate.ports.fleet import FleetEndpoint
from headgate.telemetry.engines import EngineSignals, with_gpus
from headgate.telemetry.log import tell

if TYPE_CHECKING:
    import aiohttp


class EjectionWatch:
    """Observer of the scheduler that starts a probe as soon as an endpoint is ejected."""

    def __init__(self) -> None:
        self.watch: EngineWatch | None = None
        """Set if this process watches the engines."""

    def saw(self, event: Event, commands: Sequence[Command], now: Instant) -> None:
        del event, now
        for command in commands:
            if isinstance(command, Eject) and self.watch is not None:
                self.watch.hurry(command.endpoint_id)


class Engines:
    """Made inside an event loop."""

    def __init__(
        self,
        session: "aiohttp.ClientSession",
        tell_host: Callable[[Event], None],
        summary: Callable[[], Summary],
        *,
        names: HostNames,
        open_watch: Callable[..., EngineWatch] = EngineWatch,
    ) -> None:
        self._names = names
        self._tell = tell_host
        self._summary = summary
        self.asked: dict[EndpointId, HttpEngine] = {}
        """By endpoint. Also of those that leave, as long as something that was sent there has yet to ask."""
        self.watch = open_watch(session, tell_host, _tell_signals)
        self.gpus = GpuWatch(session, lambda: not self.watch.resting)
        self.connect_times = ConnectTimes()
        self._budget = turn_budget()
        self._addresses: dict[EndpointId, _Address] = {}
        self._endpoints: tuple[Endpoint, ...] = ()

    @property
    def connections(self) -> int:
        return sum(engine.connections for engine in self.asked.values())

    def name_problems(self) -> list[str]:
        """Problems of the resolver with host names of endpoints."""
        return self._names.problems(each.url for each in self._addresses.values())

    def signals(self) -> EngineSignals:
        """What they tell of their load, and what they do not."""
        watch = self.watch
        return EngineSignals(
            watch.signals_missing(), watch.telemetry_ages_s(), with_gpus(watch.told(), self.gpus.told())
        )

    def follow(self, found: Sequence[tuple[PoolSettings, FleetEndpoint]]) -> None:
        """Brings scheduler, engines and probes to what the fleets say."""
        old, new = self._addresses, {each.id: _address(pool, each) for pool, each in found if each.started}
        endpoints = tuple(_endpoint(pool, each) for pool, each in found)
        for event in changes(self._endpoints, endpoints):
            self._tell(event)
        for endpoint_id in old:
            if old[endpoint_id] != new.get(endpoint_id):
                self.watch.unwatch(endpoint_id)
        for endpoint_id, address in new.items():
            if old.get(endpoint_id) != address:
                self._replace(endpoint_id, address)
        # What was sent to an endpoint that leaves may have yet to ask it. And of an endpoint that is there the host may
        # know nothing at the moment: an island has no part of it, or the scheduler has yet to find it.
        known = {each.id for each in self._summary().endpoints}
        for endpoint_id in self.asked.keys() - known - new.keys():
            self.asked.pop(endpoint_id).close()
        self._endpoints, self._addresses = endpoints, new
        self.gpus.follow(
            {
                each.id: exporter_url(each.url, pool.gpu_metrics_port)
                for pool, each in found
                if each.started and pool.gpu_metrics_port is not None
            }
        )

    def _replace(self, endpoint_id: EndpointId, address: "_Address") -> None:
        if endpoint_id in self.asked:
            # Behind another address stands another engine, which has yet to say that it is ready; and so has one that
            # was on its way out.
            self._tell(EndpointUnreadied(endpoint_id))
            self.asked[endpoint_id].close()
        dialect, model, key = DIALECTS[address.engine], address.served_model, address.api_key
        self.watch.watch(endpoint_id, address.url, dialect=dialect, served_model=model, api_key=key)
        self.asked[endpoint_id] = HttpEngine(
            address.url,
            served_model=model,
            api_key=key,
            dialect=dialect,
            passes_priority=address.passes_priority,
            watches_whole_answers=address.watches_whole_answers,
            on_connected=partial(self.connect_times.took, address.pool),
            budget=self._budget,
            names=self._names,
        )

    def close(self) -> None:
        for engine in self.asked.values():
            engine.close()


@dataclass(frozen=True, slots=True)
class _Address:
    """How one endpoint is asked."""

    pool: PoolName
    url: str
    engine: str
    served_model: str
    passes_priority: bool
    watches_whole_answers: bool
    api_key: str | None = field(repr=False)


def _address(pool: PoolSettings, endpoint: FleetEndpoint) -> _Address:
    return _Address(
        pool.name,
        endpoint.url,
        pool.engine,
        pool.served_model,
        pool.passes_priority,
        pool.watches_whole_answers,
        pool.api_key,
    )


def _endpoint(pool: PoolSettings, endpoint: FleetEndpoint) -> Endpoint:
    return Endpoint(endpoint.id, pool.name, endpoint.in_flight_max, device=endpoint.device, zone=endpoint.zone)


def _tell_signals(endpoint_id: EndpointId, missing: str | None) -> None:
    if missing is None:
        tell(logging.INFO, "endpoint tells its load again", endpoint=endpoint_id)
    else:
        tell(logging.WARNING, "endpoint does not tell its load", endpoint=endpoint_id, missing=missing)
