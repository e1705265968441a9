"""Interface to fleets, which supply the endpoints of a pool.

A fleet lists its endpoints and reports changes. Its owner informs the scheduler: new endpoints join, and endpoints that
are no longer listed leave. A fleet does not check health. A listed endpoint may be unhealthy; the engine watch and the
scheduler detect this as they would for any other endpoint.

A fleet does not interrupt attempts. It first removes an endpoint from its list, so that the scheduler sends no new
requests there. It stops the engine only after the scheduler has removed the endpoint, which happens when the endpoint's
last attempt has ended.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from headgate.core.summary import EndpointSummary
from headgate.model.units import Duration, EndpointId
from headgate.ports.engine import ProbeState


@dataclass(frozen=True, slots=True)
class FleetEndpoint:
    id: EndpointId
    url: str
    """Scheme, host and port, without a path or trailing slash."""
    in_flight_max: int
    device: str = ""
    zone: str = ""
    started: bool = True
    """False while the engine is starting.

    While it is False, the scheduler knows that an endpoint is expected, so requests may wait for it, and only the fleet
    probes it.
    """


class Phase(StrEnum):
    """Phases of an endpoint's start, in order."""

    PENDING = "pending"
    """The endpoint is waiting for a place to run. The backoff after a crash is not included."""
    PROCESS = "process"
    """The process is running but not yet listening."""
    WEIGHTS = "weights"
    """The engine is listening but responds that it is not ready.

    Engines that listen only after loading, such as vLLM, spend this time in the previous phase.
    """
    WARM_UP = "warm_up"
    """The engine is processing its first request, which the gateway sent."""
    JOIN = "join"
    """The engine is ready, but the scheduler has not been told yet."""


COMMAND_PLACEHOLDERS: Final = ("port", "model", "pool", "slot")
"""Placeholders of a start command: the port to listen on, the model name, the pool name and the slot.

The slot is the number of the endpoint in its pool, from 0, for example to choose a GPU.
"""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of one probe of an engine."""

    state: ProbeState
    problem: str = ""
    """Why the engine is not ready, with the next step if there is one."""


ProbeEngine = Callable[[str], Awaitable[ProbeResult]]
"""Checks whether the engine at an address responds and serves the expected model."""

WarmUp = Callable[[str], Awaitable[str | None]]
"""Sends one small request to the engine at an address. Returns an error message, or None."""

EndpointLookup = Callable[[EndpointId], EndpointSummary | None]
"""Returns the scheduler's view of an endpoint, or None if the scheduler does not know it."""


class FleetObserver(Protocol):
    """Receives fleet events. Called synchronously by the fleet: must be fast and must not raise."""

    def started(self, endpoint_id: EndpointId, took_ns: Mapping[Phase, Duration]) -> None:
        """An endpoint is ready. `took_ns` has the duration of every phase."""
        ...

    def drained(self, endpoint_id: EndpointId, took_ns: Duration) -> None:
        """The last attempt of a removed endpoint has ended, `took_ns` after its removal."""
        ...

    def problem_found(self, subject: str, problem: str) -> None:
        """Reports, once while it lasts, a problem that needs the operator. `problem` includes the next step."""
        ...

    def problem_cleared(self, what: str) -> None:
        """The problem last reported for `what` has been resolved."""
        ...


class Fleet(Protocol):
    """Source of the endpoints of one pool."""

    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        """Returns the endpoints that are in use or starting."""
        ...

    async def start(self, changed: Callable[[], None]) -> None:
        """Starts the fleet without waiting for endpoints to be ready.

        `changed` is called after every change to `endpoints`, and when a removed endpoint has stopped.
        """
        ...

    async def stop(self, *, drain: bool = False) -> None:
        """Stops all engines that the fleet started: immediately or, with `drain`, after their last attempts."""
        ...


@runtime_checkable
class ScalableFleet(Fleet, Protocol):
    """Fleet that can start and stop endpoints."""

    async def scale(self, endpoints: int) -> None:
        """Sets the desired number of endpoints, within the fleet's bounds. Does not wait until it is reached."""
        ...

    @property
    def desired(self) -> int: ...
