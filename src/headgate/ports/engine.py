"""Interface to engines.

An engine receives a call and returns a response in OpenAI format, whatever its own dialect. The gateway probes an
engine's capabilities instead of assuming them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from headgate.model.fault import Fault
from headgate.model.message import message
from headgate.model.provider_limits import ProviderLimits
from headgate.model.ticket import Api
from headgate.model.units import ClassName, Duration, EndpointId, RequestId, TenantId
from headgate.wire.request_body import RequestBody


@dataclass(frozen=True, slots=True)
class BatchHints:
    """Conditions for sending a request in a batch with others."""

    tenant: TenantId
    service_class: ClassName
    is_retry: bool = False
    """Whether an earlier attempt was made for the request. If so, the request is sent alone."""
    time_left_ns: Duration | None = None
    """Time left until the caller's deadline. None if there is no deadline."""


class GenerationWatch(Protocol):
    """Receives the progress of a non-streaming response that the engine streams to the gateway."""

    def begin(self) -> None:
        """Called when the gateway requests a stream. From then on tokens are reported and stalls are detected."""
        ...

    def record_progress(self, events: int) -> None:
        """Called with the number of events received so far. Each event counts as one token."""
        ...

    def end(self) -> None:
        """Called when the gateway requests a non-streaming response instead. Its tokens are not reported."""
        ...


@message
class Call:
    """One request to an engine."""

    request_id: RequestId
    api: Api
    body: RequestBody
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Client headers to forward, such as `traceparent`."""
    cache_salt: str | None = None
    """Salt that isolates this tenant's cached prefixes from those of others, for engines that support it."""
    batch_hints: BatchHints | None = None
    """Batching conditions. None sends the request alone."""
    on_sent: Callable[[], None] | None = None
    """Called when the complete request has been written to a connection."""
    watch: GenerationWatch | None = None
    """Receiver for the progress of a non-streaming response that the engine streams to the gateway."""
    adapter: str = ""
    """LoRA adapter that serves the call, as the engine's model name. Empty for the engine's own model."""
    on_limits: Callable[[ProviderLimits], None] | None = None
    """Called with the rate limits that a hosted provider reports at the start of its response."""


class EngineFault(Exception):
    """The engine is unreachable, or its response was truncated. The message gives the details."""

    def __init__(self, message: str, fault: Fault = Fault.RESPONSE) -> None:
        super().__init__(message)
        self.fault = fault


class EngineResponse(Protocol):
    """Response to a call. The head is available immediately, and the body as it arrives."""

    status: int
    content_type: str
    reports_progress: bool
    """Whether the stream contains prompt progress events that the caller did not request."""
    usage_estimated: bool
    """Whether the usage is a proportional share of a batch instead of a count."""
    secret: str
    """Key that the engine received and may repeat in an error. It must not be quoted. Empty if there is none."""

    async def read(self) -> bytes:
        """Returns the next bytes, or empty bytes at a clean end. Raises `EngineFault` if the response is truncated."""
        ...

    def take_body(self) -> bytes | None:
        """Returns the body if it has arrived completely and is short. Otherwise it has to be read or streamed."""
        ...

    async def stream_to(self, sink: Callable[[bytes], bool], chunk_sink: Callable[[bytes], bool] | None = None) -> None:
        """Passes all further bytes to `sink` as soon as they arrive, without waking a task for each of them.

        A read that may be exactly one HTTP chunk can be passed to `chunk_sink` first, with its size line and end. If
        `chunk_sink` returns True, the read was such a chunk, and `sink` does not receive it.

        Ends when `sink` returns that it has enough, or at a clean end. Raises `EngineFault` if the response is
        truncated.
        """
        ...

    def pause(self) -> None:
        """Stops reading from the engine until `resume`. Bytes already in transit may still arrive."""
        ...

    def resume(self) -> None: ...

    def is_request_error(self, body: bytes) -> bool:
        """Returns whether an error response blames the request itself rather than the engine or its configuration."""
        ...

    def drain(self) -> None:
        """Called when all relevant bytes have arrived. The connection is reused if the response ends soon after."""
        ...

    def close(self) -> None:
        """Releases the response. If it is incomplete, the connection is closed, which makes the engine stop."""
        ...


@runtime_checkable
class FramedResponse(EngineResponse, Protocol):
    """Response received over a connection, with details about its framing."""

    body_headers: tuple[tuple[bytes, bytes], ...]
    """Headers needed to read the body, such as the length of the JSON part before binary data."""
    is_framed: bool
    """Whether the end of the body is marked, so that a lost connection cannot be mistaken for the end."""


class Engine(Protocol):
    """Engine at one endpoint."""

    async def ask(self, call: Call) -> EngineResponse:
        """Sends the call and waits for the response head. Raises `EngineFault`."""
        ...


class ProbeState(StrEnum):
    READY = "ready"
    LOADING = "loading"
    """The engine responds that it is not ready yet."""
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Values from the last scrape of an engine's metrics. None if the engine does not report a value."""

    running: int | None = None
    waiting: int | None = None
    kv_used_fraction: float | None = None
    preemptions: int | None = None
    extra: Mapping[str, float] = field(default_factory=dict[str, float])
    """Further values, for display only. No decision depends on them."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits reported by an engine. None if the engine does not report a limit."""

    kv_tokens: int | None = None
    """KV cache capacity in tokens."""
    sequences_max: int | None = None
    """Maximum number of requests that run concurrently."""
    context_tokens: int | None = None
    """Maximum total number of prompt and output tokens."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Result of probing one endpoint."""

    endpoint_id: EndpointId
    dialect: str
    state: ProbeState
    version: str | None = None
    models: tuple[str, ...] = ()
    signals: Mapping[str, str] = field(default_factory=dict[str, str])
    """Source metric of each signal, by signal name."""
    signals_missing: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """Problems for the operator, each with the next step."""
    telemetry: Telemetry = Telemetry()
    """Load according to the last scrape. Empty if the values are stale."""
    telemetry_age_s: float | None = None
    """Age of the last values, even if they are stale. None if there are none."""
