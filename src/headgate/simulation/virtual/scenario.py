"""Values that describe a simulated scenario. Configuration files and generators produce them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.core.summary import Summary
from headgate.model.policy import Policy
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, EndpointId, Instant, ModelName, PoolName
from headgate.simulation.engine.state import EngineState
from headgate.simulation.options import CallerBehaviour, EngineSpec, ScaledPool, ScenarioFault
from headgate.simulation.virtual.link_latencies import LinkLatencies
from headgate.simulation.workload.arrival import Arrivals


class Decider(Protocol):
    """The scheduler or a baseline that replaces it."""

    def handle(self, event: Event, now: Instant) -> list[Command]: ...

    def next_wakeup(self) -> Instant | None: ...


@runtime_checkable
class ScrapeReceiver(Protocol):
    """A decider that also uses the engines' own metrics."""

    def on_scrape(self, endpoint_id: EndpointId, state: EngineState, now: Instant) -> None: ...


@runtime_checkable
class Summarizer(Protocol):
    """A decider that reports its state, as the autoscaler needs it."""

    def summary(self) -> Summary: ...


@dataclass(frozen=True, slots=True)
class EndpointRemoval:
    """An operator drains the endpoint."""

    endpoint_id: EndpointId
    at: Instant


@dataclass(frozen=True, slots=True)
class InFlightLimitChange:
    """An operator changes the endpoint's concurrency limit."""

    endpoint_id: EndpointId
    at: Instant
    in_flight_max: int


@dataclass(frozen=True, slots=True)
class PolicyReload:
    """An operator changes the policy."""

    policy: Policy
    at: Instant


ScenarioChange = EndpointRemoval | InFlightLimitChange | PolicyReload


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    title: str
    seed: int
    policy: Policy
    model: ModelName
    """Model used in every request."""
    engines: tuple[EngineSpec, ...]
    callers: Mapping[ClassName, CallerBehaviour]
    arrivals: Callable[[], Arrivals]
    """Factory for the traffic. Each call returns the same arrivals, starting with the first."""
    span_ns: Duration
    """Duration of the traffic. Rates are relative to it."""
    faults: tuple[ScenarioFault, ...] = ()
    scaling: Mapping[PoolName, ScaledPool] = field(default_factory=dict[PoolName, ScaledPool])
    """Pools that are autoscaled. They need a decider with a `summary`."""
    changes: tuple[ScenarioChange, ...] = ()
    """Operator actions."""
    link_latencies: LinkLatencies | None = None
    """Link latencies and decision time. None if all of them are zero."""
    decider: Callable[[], Decider]
    probe_interval_ns: Duration = Duration(5 * SECOND)
    """Maximum interval between probes of a starting engine. The default is the gateway's."""
    progress_interval_ns: Duration = Duration(250 * MILLISECOND)
    """Interval between progress reports and attempt timeout checks. The default is the gateway's."""
    scrape_interval_ns: Duration = Duration(150 * MILLISECOND)
    """Interval at which a `ScrapeReceiver` receives the engines' metrics."""
