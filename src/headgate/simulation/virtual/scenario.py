"""What is simulated? Plain values; who reads a scenario's file or makes one up builds these."""

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
from headgate.simulation.virtual.ways import Ways
from headgate.simulation.workload.arrival import Arrivals


class Decider(Protocol):
    """The scheduler, or what stands in for it."""

    def handle(self, event: Event, now: Instant) -> list[Command]: ...

    def next_wakeup(self) -> Instant | None: ...


@runtime_checkable
class Scraper(Protocol):
    """A decider that also goes by what engines say of themselves."""

    def scraped(self, endpoint_id: EndpointId, state: EngineState, now: Instant) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One endpoint and the engine behind it."""

    id: EndpointId
    pool: PoolName
    profile: EngineProfile
    in_flight_max: int
    starts_at: Instant = Instant(0)
    cold_start_ns: Duration = Duration(0)
    """From its start to its first answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callers:
    """What the callers of a class want, and what they do when they do not get it. None asks nothing."""

    ttft_ns: Duration | None = None
    tpot_ns: Duration | None = None
    e2e_ns: Duration | None = None
    leave_ns: Duration | None = None
    """How long they wait for the first token, of a whole answer for its end, before they leave."""
    retries: int = 0
    """How often they try again after a refusal or a failure, as the official client does."""
    stream: bool = True
    api: Api = Api.CHAT
    allows_ns: Duration | None = None
    """What they tell the gateway that it may take at most up to the first token."""
    names_length: bool = False
    """Whether they say how long an answer may be at most, and get just as long a one."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The engine dies with all that it holds, and is back after so long."""

    endpoint_id: EndpointId
    at: Instant
    back_after_ns: Duration


@dataclass(frozen=True, slots=True)
class Hang:
    """The engine stands still, but its probes answer."""

    endpoint_id: EndpointId
    at: Instant
    lasts_ns: Duration


@dataclass(frozen=True, slots=True)
class Slow:
    """The engine goes at so many thousandths of its speed."""

    endpoint_id: EndpointId
    at: Instant
    lasts_ns: Duration
    speed: int


@dataclass(frozen=True, slots=True)
class Fail:
    """The engine answers so many of a hundred requests with an error, at once."""

    endpoint_id: EndpointId
    at: Instant
    lasts_ns: Duration
    percent: int


Fault = Crash | Hang | Slow | Fail


@dataclass(frozen=True, slots=True)
class Leave:
    """Somebody takes the endpoint away in order: nothing new goes there, and what is there ends."""

    endpoint_id: EndpointId
    at: Instant


@dataclass(frozen=True, slots=True)
class Limit:
    """Somebody sets how much may be given to the endpoint at once."""

    endpoint_id: EndpointId
    at: Instant
    in_flight_max: int


@dataclass(frozen=True, slots=True)
class Reload:
    """Somebody changes the policy."""

    policy: Policy
    at: Instant


Change = Leave | Limit | Reload


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    title: str
    seed: int
    policy: Policy
    model: ModelName
    """What every request asks for."""
    engines: tuple[EngineSpec, ...]
    callers: Mapping[ClassName, Callers]
    arrivals: Callable[[], Arrivals]
    """The traffic from its start, the same at each call."""
    span_ns: Duration
    """How long requests arrive; rates are counted over it."""
    faults: tuple[Fault, ...] = ()
    changes: tuple[Change, ...] = ()
    """What operators do."""
    ways: Ways | None = None
    """How long events take to where they are decided; None where that is nothing."""
    decider: Callable[[], Decider]
    probe_every_ns: Duration = Duration(5 * SECOND)
    """The longest pause between two looks at an engine that is starting. As in life, like the next."""
    progress_every_ns: Duration = Duration(250 * MILLISECOND)
    """How often the gateway reports what streams have produced, and looks at their limits."""
    scrape_every_ns: Duration = Duration(150 * MILLISECOND)
    """How often a decider that wants it is told what engines say of themselves."""
