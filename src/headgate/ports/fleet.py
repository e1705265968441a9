"""Where do endpoints come from, and how is a fleet made larger or smaller?

A fleet says which endpoints there are and tells when that changes. Its owner brings the scheduler to it: whoever is
new joins, whoever is no longer there is leaving. Health is nobody's business here: an endpoint that a fleet names may
be ill, and the watch over the engines and the scheduler find that out as with any other.

Nothing is severed by a fleet. An endpoint that is given up is first not named any more, so that the scheduler sends
nothing new there; what runs it goes away only when the scheduler has forgotten it, which is when its last attempt has
ended.
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
    """Scheme, host and port; no path, no trailing slash."""
    in_flight_max: int
    device: str = ""
    zone: str = ""
    started: bool = True
    """False while its engine starts. The scheduler then knows that one is coming, which lets requests wait for it; only
    the fleet looks at it so far."""


class Phase(StrEnum):
    """What an endpoint's start is made of, in this order."""

    PENDING = "pending"
    """Wanted, and waiting for a place to run in. The pause after a crash is none of its phases."""
    PROCESS = "process"
    """It runs, and nothing listens yet."""
    WEIGHTS = "weights"
    """It listens, and says that it cannot serve yet. Engines that listen only when they have loaded, such as vLLM, have
    this time in the phase before."""
    WARM_UP = "warm_up"
    """It answers its first request, which is ours."""
    JOIN = "join"
    """It is known to be well, and the scheduler has yet to hear it."""


PLACEHOLDERS: Final = ("port", "model", "pool", "slot")
"""What a command to start an engine may hold in braces: where to listen, what to call the model, the pool's name, and
which of the pool's endpoints this is, from 0 on, such as for the number of a GPU."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at an engine shows."""

    state: ProbeState
    problem: str = ""
    """Why it does not serve, with the next step where there is one."""


Look = Callable[[str], Awaitable[Seen]]
"""Looks at the engine at this address: does it answer, and does it serve the model it should?"""

WarmUp = Callable[[str], Awaitable[str | None]]
"""Has the engine at this address answer one small request; a text says why it did not."""

Lookup = Callable[[EndpointId], EndpointSummary | None]
"""What the scheduler knows of an endpoint; None once it has forgotten it, or where it has never heard of it."""


class FleetObserver(Protocol):
    """Told what a fleet does. Called on the fleet's path: it is quick and does not raise."""

    def started(self, endpoint_id: EndpointId, took_ns: Mapping[Phase, Duration]) -> None:
        """An endpoint serves, after so long in each phase; all phases are there."""
        ...

    def drained(self, endpoint_id: EndpointId, took_ns: Duration) -> None:
        """An endpoint was given up so long ago, and its last attempt has ended."""
        ...

    def troubled(self, what: str, problem: str) -> None:
        """Something the operator should see to, told once while it lasts: what it befell, and the next step."""
        ...

    def recovered(self, what: str) -> None:
        """What was last told of this trouble no longer holds."""
        ...


class Fleet(Protocol):
    """Where the endpoints of one pool come from."""

    def endpoints(self) -> tuple[FleetEndpoint, ...]:
        """Those that take work or will."""
        ...

    async def start(self, changed: Callable[[], None]) -> None:
        """Begins, without waiting for anybody to be ready. `changed` is called after every change of `endpoints`, and
        when one that was given up has gone."""
        ...

    async def stop(self, *, drain: bool = False) -> None:
        """Gives up everything it brought: at once, or with `drain` when the last attempts have ended."""
        ...


@runtime_checkable
class ScalableFleet(Fleet, Protocol):
    """A fleet that can start endpoints and give them up."""

    async def scale(self, endpoints: int) -> None:
        """Wants so many from here on, within its bounds. Returns once that is known, not once it is true."""
        ...

    @property
    def wanted(self) -> int: ...
