"""How is an engine asked, and what does it say of itself?

An engine takes a call and gives an answer whose bytes are in the OpenAI shape, whatever its
own dialect is. What it can do is found out by probing, never assumed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from headgate.model.fault import Fault
from headgate.model.ticket import Api
from headgate.model.units import ClassName, Duration, EndpointId, RequestId, TenantId
from headgate.wire.request import RequestBody


@dataclass(frozen=True, slots=True)
class Company:
    """On which terms a request may be asked together with others."""

    tenant: TenantId
    service_class: ClassName
    again: bool = False
    """Whether it has been tried before; it then goes alone."""
    time_left_ns: Duration | None = None
    """What is left of its caller's deadline; None where it has none."""


class GenerationWatch(Protocol):
    """Follows a whole answer that the engine streams to the gateway."""

    def begin(self) -> None:
        """Called when the engine is asked for a stream. From then on tokens are reported and silence is detected."""
        ...

    def heard(self, events: int) -> None:
        """Called with the number of events received so far. Each counts as one token."""
        ...

    def end(self) -> None:
        """Called when the engine is asked again for a whole answer, whose tokens are not reported."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """One request as an engine is asked it."""

    request_id: RequestId
    api: Api
    body: RequestBody
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Headers of the caller that go along, such as `traceparent`."""
    cache_salt: str | None = None
    """What keeps this tenant's cached prefixes apart from those of others, for engines that can."""
    company: Company | None = None
    """None where it is to be asked by itself."""
    sent: Callable[[], None] | None = None
    """Told when the question has been handed whole to a connection."""
    watch: GenerationWatch | None = None
    """Receives the progress of a whole answer if the engine is asked for a stream instead."""


class EngineFault(Exception):
    """The engine could not be reached, or its answer broke off. The message says which."""

    def __init__(self, message: str, fault: Fault = Fault.ANSWER) -> None:
        super().__init__(message)
        self.fault = fault


class Answer(Protocol):
    """The answer to a call: its head at once, its bytes as they come."""

    status: int
    content_type: str
    reports_progress: bool
    """Whether a stream tells how far the prompt has been read, which the caller did not ask for."""
    usage_estimated: bool
    """Whether the usage is a proportional share of a batch instead of a count."""

    async def read(self) -> bytes:
        """The next bytes; empty at a clean end. Raises `EngineFault` where the answer breaks off."""
        ...

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        """Hands over all further bytes the moment they come, without anybody waking up in between.

        Ends when `take` says that it has enough, or at a clean end. Raises `EngineFault` where the answer breaks off.
        """
        ...

    def pause(self) -> None:
        """Takes no more from the engine than what is on its way; `resume` goes on."""
        ...

    def resume(self) -> None: ...

    def blames_request(self, body: bytes) -> bool:
        """Whether an error answer says that the request itself is wrong, rather than the engine or its setup."""
        ...

    def let_end(self) -> None:
        """All that matters has come. The connection is kept if the answer's end follows within a moment."""
        ...

    def close(self) -> None:
        """Lets go. Unless the answer has come to its end the connection is cut, which tells the engine to stop."""
        ...


@runtime_checkable
class FramedAnswer(Answer, Protocol):
    """An answer that came over a connection, of which more is known than its bytes."""

    kept_headers: tuple[tuple[bytes, bytes], ...]
    """Headers without which the body cannot be read, such as where in it JSON ends and data begin."""
    is_framed: bool
    """Whether its end is told, so that a connection that breaks does not look like it."""


class Engine(Protocol):
    """One endpoint's engine."""

    async def ask(self, call: Call) -> Answer:
        """Sends the call and waits for the head of the answer. Raises `EngineFault`."""
        ...


class ProbeState(StrEnum):
    READY = "ready"
    LOADING = "loading"
    """The engine answers and says that it cannot serve yet."""
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """What an engine's metrics page last said; None where the engine does not tell."""

    running: int | None = None
    waiting: int | None = None
    kv_used_fraction: float | None = None
    preemptions: int | None = None
    further: Mapping[str, float] = field(default_factory=dict[str, float])
    """What else it tells, for whoever looks; no decision is made by it."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits that an engine reports of itself; None if it does not report one."""

    kv_tokens: int | None = None
    """Tokens that its KV cache holds."""
    sequences_max: int | None = None
    """Requests that it runs at once."""
    context_tokens: int | None = None
    """Longest prompt and answer together."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What probing one endpoint has shown."""

    endpoint_id: EndpointId
    dialect: str
    state: ProbeState
    version: str | None = None
    models: tuple[str, ...] = ()
    signals: Mapping[str, str] = field(default_factory=dict[str, str])
    """Signal -> the metric of the engine that it comes from."""
    signals_missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What an operator should know, each with its next step."""
    telemetry: Telemetry = Telemetry()
    telemetry_age_s: float | None = None
