"""Differences between engine types.

Most engines use the OpenAI protocol for requests. They differ in their health endpoints, in their metric names, which
change between versions, and in how they report invalid requests. A dialect is a frozen value that captures these
differences, and no other module in this package depends on the engine type. An engine that uses another protocol has an
`adapter`, which translates calls and responses.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol, cast

import msgspec

from headgate.model.ticket import FORM_APIS, Api
from headgate.model.units import RequestId
from headgate.ports.engine import Call, EngineLimits, EngineResponse, FramedResponse
from headgate.wire.doors import DOORS
from headgate.wire.response_shape import ResponseShape

OPENAI_PATHS: Final[Mapping[Api, str]] = MappingProxyType(
    {
        Api.CHAT: "/v1/chat/completions",
        Api.COMPLETIONS: "/v1/completions",
        Api.EMBEDDINGS: "/v1/embeddings",
        Api.RESPONSES: "/v1/responses",
        Api.MESSAGES: "/v1/messages",
        Api.COUNT_TOKENS: "/v1/messages/count_tokens",
        Api.TRANSCRIPTIONS: "/v1/audio/transcriptions",
        Api.TRANSLATIONS: "/v1/audio/translations",
        **{api: door.paths[0] for api, door in DOORS.items()},
    }
)
OPTIONAL_APIS: Final = frozenset({Api.MESSAGES, Api.COUNT_TOKENS, *FORM_APIS, *DOORS})
"""APIs that an engine may lack, depending on its version, its options and its model."""

# Client errors that are not caused by the request itself but by the gateway's key, address, proxy, rate or model name.
_GATEWAY_STATUSES: Final = frozenset({401, 403, 404, 407, 408, 425, 429})
_NOT_FOUND_KINDS: Final = ("NotFoundError", "not_found_error")
"""Codes and types of errors about a missing model, file or path."""
_ABOUT_A_MODEL: Final = re.compile(r"(?:the |requested )*model\b", re.IGNORECASE)
"""Start of a message about a model. Later words of a message may repeat values of the request."""
_IS_MISSING: Final = re.compile("does not exist|not found", re.IGNORECASE)

GPU_UTILISATION: Final = "gpu_utilisation"
"""Name of GPU utilisation in `extra_metrics`, as a fraction."""


class Signal(StrEnum):
    """Load signals that an engine can report."""

    RUNNING = "running"
    WAITING = "waiting"
    KV_USED_FRACTION = "kv_used_fraction"
    PREEMPTIONS = "preemptions"


@dataclass(frozen=True, slots=True)
class VersionSource:
    """Path and JSON field of an engine's version."""

    path: str
    field: str


@dataclass(frozen=True, slots=True)
class ConcurrencySource:
    """Path and JSON field of an engine's maximum number of concurrent requests."""

    path: str
    field: str


def is_request_error(status: int, body: bytes) -> bool:
    """Returns whether an error status was caused by the request itself rather than the engine or its configuration.

    Such an error is passed to the caller. The gateway neither retries it nor counts it against the endpoint. A 404 from
    an engine that lists the model usually means that the model was unloaded, which is a configuration error. The
    exception is a 404 from the web framework itself: the engine does not have this path, and a retry would not help.
    """
    if status == 404:
        return body.strip() == b'{"detail":"Not Found"}'
    return 400 <= status < 500 and status not in _GATEWAY_STATUSES


def is_unknown_model(body: bytes, model: str) -> bool:
    """Returns whether the body of a 404 says that the engine does not serve this model.

    All other bodies come from a web framework or a proxy that does not have the path. Each has a text of its own, and
    many are not JSON.
    """
    message, kinds = error_fields(body)
    if re.search(rf"(?<![\w./-]){re.escape(model)}(?![\w/-])", message) is not None:
        return True
    if _ABOUT_A_MODEL.match(message) is None:
        return "model_not_found" in kinds
    return not kinds.isdisjoint(_NOT_FOUND_KINDS) or _IS_MISSING.search(message) is not None


def error_fields(body: bytes) -> tuple[str, set[str]]:
    """Returns the message of a JSON error, with its code and its type."""
    try:
        found: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return "", set()
    fields = cast("dict[str, object]", found) if isinstance(found, dict) else {}
    inner = cast("dict[str, object]", fields["error"]) if isinstance(fields.get("error"), dict) else fields
    texts: tuple[object, ...] = (inner.get("message"), fields.get("error"), inner.get("detail"))
    message = next((text for text in texts if isinstance(text, str)), "")
    return message, {kind for kind in (inner.get("code"), inner.get("type")) if isinstance(kind, str)}


class EngineTransport(Protocol):
    """Sends raw requests to one endpoint, in any protocol."""

    @property
    def served_model(self) -> str: ...

    async def send(
        self,
        method: str,
        path: str,
        request_id: RequestId,
        headers: Mapping[str, str],
        body: list[bytes | memoryview],
        *,
        sent: Callable[[], None] | None = None,
    ) -> FramedResponse:
        """Returns the response once its head has arrived. Calls `sent` once the request has been written.

        Raises `EngineFault`.
        """
        ...


class ProtocolAdapter(Protocol):
    """Translates calls for an engine that does not use the OpenAI protocol."""

    async def ask(self, call: Call) -> EngineResponse:
        """Does the same as `Engine.ask`."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    paths: Mapping[Api, str] = field(default_factory=lambda: OPENAI_PATHS)
    """Path of each API. Calls to APIs without a path are rejected, unless the dialect has an `adapter`."""
    adapter: Callable[[EngineTransport], ProtocolAdapter] | None = None
    """Factory for the protocol adapter, if the engine does not use the OpenAI protocol."""
    keeps_connection_after_stream: bool = False
    """Whether the connection can be reused after a streamed response.

    If not, or if unknown, each stream gets its own connection: a request sent on a connection that is being closed
    would look like an engine failure.
    """
    notices_disconnect_only_in_streams: bool = False
    """Whether the engine notices a disconnected client only while it is streaming.

    If so, the gateway always requests a stream and joins the chunks for callers that want a non-streaming response.
    """
    progress_field: str | None = None
    """Request field that makes the engine report prompt progress in a stream.

    The gateway sets it to true in every streaming request, because an engine notices a disconnect when it writes.
    Progress events that the caller did not request are removed.
    """
    transcript_usage_field: str | None = None
    """Form field that makes the engine report usage at the end of a streamed transcript."""
    unstreamable_fields: frozenset[str] = frozenset()
    """Fields that, in combination, this engine accepts only in non-streaming requests."""
    joins_streams: bool = False
    """Whether the joined chunks of a stream equal this engine's non-streaming response.

    If so, the gateway always requests a stream, so that it sees each token, unless the request has one of the fields in
    `unjoined_fields`.
    """
    unjoined_fields: frozenset[str] = frozenset()
    """Request fields for which a non-streaming response differs from the joined stream."""
    response_shapes: Mapping[Api, ResponseShape] = field(default_factory=dict[Api, ResponseShape])
    """Differences between non-streaming responses and joined chunks, by API. APIs without an entry have no differences.
    """
    private_fields: frozenset[str] = frozenset()
    """Request fields that are removed because the engine belongs to a hosted provider."""
    private_prefixes: tuple[str, ...] = ()
    """Prefixes of further fields that are removed for this reason."""
    disabled_fields: frozenset[str] = frozenset()
    """Request fields that are set to false for this reason, because the provider's default may be true."""
    forwarded_headers: frozenset[str] | None = None
    """Names of the headers of a call that the engine may receive, in lower case. None forwards all of them."""
    reports_rate_limits: bool = False
    """Whether the response headers report rate limits."""
    supports_cache_salt: bool = False
    """Whether requests may carry a salt that isolates their cached prefixes, if their API has one."""
    models_path: str = "/v1/models"
    health_path: str | None = None
    """Path of the health check. None if the model list serves as the health check."""
    model_ready_path: str | None = None
    """Path of the readiness check for a single model, with `{model}` for its name. Such an engine has no model list."""
    models_metric: str | None = None
    """Metric whose `model` label identifies the engine's models, for engines without a model list."""
    metrics_path: str | None = None
    metrics_port_offset: int = 0
    """Offset of the metrics port from the request port."""
    metrics_hint: str = ""
    """Suggested next step for the operator if the metrics are missing."""
    metrics: Mapping[Signal, tuple[str, ...]] = field(default_factory=dict[Signal, tuple[str, ...]])
    """Metric names for each signal, newest first. A name can include a label to select one series of a metric."""
    extra_metrics: Mapping[str, str] = field(default_factory=dict[str, str])
    """Optional metrics that are only displayed, by the gateway's name for them. No decision depends on them."""
    scrape_s_min: float = 0.0
    """Minimum interval between probes of a ready engine in seconds, for engines that slow down if scraped more often
    and for providers that limit their rate."""
    adapters_metric: str | None = None
    """Metric whose label `max_lora` is the number of LoRA adapters in use at the same time.

    None if the gateway does not support this engine's adapters.
    """
    version: VersionSource | None = None
    limits_paths: tuple[str, ...] = ()
    """Paths of the pages that `read_limits` needs, with `{model}` for the model name."""
    read_limits: Callable[[Mapping[str, bytes]], EngineLimits] | None = None
    """Reads the engine's limits from the pages in `limits_paths`, by path."""
    reports_kv: bool = False
    """Whether the reported limits include the KV capacity."""
    concurrency: ConcurrencySource | None = None
    concurrency_hint: str = ""
    """Hint for choosing `in_flight_max` if the engine does not report its concurrency."""
    is_request_error: Callable[[int, bytes], bool] = is_request_error
