"""In what do engines differ?

Nearly all engines here speak the OpenAI wire for requests. They differ in where they say that they are well, in the
names of their metrics, which drift between versions, and in how they report a request that is itself wrong. A dialect
is one frozen value that holds these differences; nothing else in this room asks which engine it talks to. An engine
that speaks another wire has a speaker, who puts calls to it and gives answers in the caller's shape.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Protocol

from headgate.model.ticket import Api
from headgate.model.units import RequestId
from headgate.ports.engine import Answer, Call, EngineLimits, FramedAnswer
from headgate.wire.whole_shape import WholeShape

OPENAI_PATHS: Final[Mapping[Api, str]] = MappingProxyType(
    {
        Api.CHAT: "/v1/chat/completions",
        Api.COMPLETIONS: "/v1/completions",
        Api.EMBEDDINGS: "/v1/embeddings",
        Api.RESPONSES: "/v1/responses",
    }
)

# Client errors that say nothing about the request: our key, our address, our proxy, our pace, our name of the model.
_OURS: Final = frozenset({401, 403, 404, 407, 408, 425, 429})


GPU_UTILISATION: Final = "gpu_utilisation"
"""Our name, among further metrics, of how busy an engine's GPUs are."""


class Signal(StrEnum):
    """What an engine may tell of its load."""

    RUNNING = "running"
    WAITING = "waiting"
    KV_USED_FRACTION = "kv_used_fraction"
    PREEMPTIONS = "preemptions"


@dataclass(frozen=True, slots=True)
class VersionSource:
    """Where an engine says its version: a path, and the field of the object found there."""

    path: str
    field: str


@dataclass(frozen=True, slots=True)
class PlacesSource:
    """Where an engine says how many requests it runs at once, likewise."""

    path: str
    field: str


def blames_request(status: int, body: bytes) -> bool:
    """Whether an error status is the request's own fault, and no sign that engine or setup are failing.

    What counts here is passed to the caller and neither retried nor held against the endpoint. A 404 from a ready
    engine that lists our model means that the model has gone, which is the setup's fault, unless it is the web
    framework's own: then the engine does not offer this path, and no retry finds it.
    """
    if status == 404:
        return body.strip() == b'{"detail":"Not Found"}'
    return 400 <= status < 500 and status not in _OURS


class Courier(Protocol):
    """Carries questions to one endpoint, whatever wire they are in."""

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
    ) -> FramedAnswer:
        """The answer, once its head has come. `sent` is told when the question has gone. Raises `EngineFault`."""
        ...


class Speaker(Protocol):
    async def ask(self, call: Call) -> Answer:
        """As `Engine.ask`."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    paths: Mapping[Api, str] = field(default_factory=lambda: OPENAI_PATHS)
    """Where it is asked what; what has no path here is refused, unless there is a speaker."""
    speaker: Callable[[Courier], Speaker] | None = None
    """Who puts calls to an engine that does not speak the OpenAI wire."""
    keeps_connection_after_stream: bool = False
    """Whether the connection of a streamed answer can be used again. Where it cannot, or nobody knows, each stream gets
    one of its own: a request sent on a connection that is just being closed would look like a failure of the engine."""
    hears_leaving_only_in_streams: bool = False
    """Whether the engine goes on with an answer that nobody waits for unless it is streamed. It is then asked for a
    stream always, and the chunks are joined for a caller that wants a whole answer."""
    progress_switch: str | None = None
    """The field that has the engine report, in a stream, how far it has read the prompt. It is set to true in every
    request for a stream: an engine that says something notices who left. Callers who did not ask do not see it."""
    never_streamed_together: frozenset[str] = frozenset()
    """Fields that this engine takes together, but not in a request for a stream."""
    watches_whole_answers: bool = False
    """Whether the joined chunks of a stream equal this engine's whole answer. The gateway then always requests a
    stream, so that it sees each token, unless the request has one of the fields in `asked_whole`."""
    asked_whole: frozenset[str] = frozenset()
    """Request fields for which a whole answer differs from the joined stream."""
    whole_shapes: Mapping[Api, WholeShape] = field(default_factory=dict[Api, WholeShape])
    """Differences between whole answers and joined chunks, by API. APIs that are not listed have none."""
    takes_cache_salt: bool = False
    """Whether a request may carry a salt that keeps its cached prefix from requests with another (embeddings aside)."""
    models_path: str = "/v1/models"
    health_path: str | None = None
    """Where the engine says that it can serve; None asks for its models instead."""
    model_ready_path: str | None = None
    """Where it says so of one model, whose name stands for `{model}`. Such an engine has no list of its models."""
    models_metric: str | None = None
    """The metric whose label `model` names those that it has, where there is no list."""
    metrics_path: str | None = None
    metrics_port_offset: int = 0
    """How far above the port of requests that of metrics is."""
    metrics_hint: str = ""
    """What an operator does when the metrics are not there."""
    metrics: Mapping[Signal, tuple[str, ...]] = field(default_factory=dict[Signal, tuple[str, ...]])
    """Signal -> the metric's names, the newest first; with a label where only one series of a metric is meant."""
    further_metrics: Mapping[str, str] = field(default_factory=dict[str, str])
    """What else is read where it is there, by our name of it: no decision is made by it, and it is not missed."""
    scrape_s_min: float = 0.0
    """The engine suffers when its metrics are read more often than this."""
    version: VersionSource | None = None
    limits_paths: tuple[str, ...] = ()
    """Pages that `read_limits` needs; `{model}` stands for the name of the model."""
    read_limits: Callable[[Mapping[str, bytes]], EngineLimits] | None = None
    """Reads the limits that the engine reports, from these pages by their paths."""
    reports_kv: bool = False
    """Whether the KV capacity is among these limits."""
    places: PlacesSource | None = None
    places_hint: str = ""
    """What an operator compares `in_flight_max` with when the engine does not say."""
    blames_request: Callable[[int, bytes], bool] = blames_request
