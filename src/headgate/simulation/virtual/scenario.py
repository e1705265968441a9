"""Values that describe a simulated scenario. Configuration files and generators produce them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from headgate.core.commands import Command
from headgate.core.events import Event
from headgate.model.engine_profile import EngineProfile
from headgate.model.policy import Policy
from headgate.model.ticket import Api
from headgate.model.units import MILLISECOND, SECOND, ClassName, Duration, EndpointId, Instant, ModelName, PoolName
from headgate.simulation.engine.state import EngineState
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """An endpoint and its engine."""

    id: EndpointId
    pool: PoolName
    profile: EngineProfile
    in_flight_max: int
    starts_at: Instant = Instant(0)
    cold_start_ns: Duration = Duration(0)
    """Time from start to the first response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerBehaviour:
    """Objectives and behaviour of a class's clients. None means no objective or limit."""

    ttft_ns: Duration | None = None
    tpot_ns: Duration | None = None
    e2e_ns: Duration | None = None
    client_timeout_ns: Duration | None = None
    """Client timeout, which runs until the first token of a stream or the end of a non-streaming response."""
    retries: int = 0
    """Maximum number of retries after a rejection or failure. Retries follow the official client's rules."""
    stream: bool = True
    api: Api = Api.CHAT
    first_token_deadline_ns: Duration | None = None
    """Time that clients allow for the first token, as sent to the gateway."""
    sends_max_tokens: bool = False
    """Whether requests set a maximum output length, which is then reached exactly."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The engine crashes, loses its state and recovers after `recover_after_ns`."""

    endpoint_id: EndpointId
    at: Instant
    recover_after_ns: Duration


@dataclass(frozen=True, slots=True)
class Hang:
    """The engine hangs, but responds to probes."""

    endpoint_id: EndpointId
    at: Instant
    duration_ns: Duration


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The engine runs at `speed` thousandths of its nominal speed."""

    endpoint_id: EndpointId
    at: Instant
    duration_ns: Duration
    speed: int


@dataclass(frozen=True, slots=True)
class RequestErrors:
    """The engine immediately answers `percent` percent of requests with an error."""

    endpoint_id: EndpointId
    at: Instant
    duration_ns: Duration
    percent: int


ScenarioFault = Crash | Hang | Slowdown | RequestErrors


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
