"""How do spans stand in the messages of OTLP?

OpenTelemetry's own messages are filled here, without its SDK: through that the same trace takes several times as long
(docs/guides/tracing.md), most of it for what a process needs that begins and ends its spans while it works.
"""

from collections.abc import Iterable
from typing import Final

from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, Status, TracesData

Attribute = tuple[str, str | int | float]
"""Its name and its value."""

INTERNAL: Final = Span.SPAN_KIND_INTERNAL
SERVER: Final = Span.SPAN_KIND_SERVER
CLIENT: Final = Span.SPAN_KIND_CLIENT

_SAMPLED: Final = 0x1
_KNOWN_WHERE: Final = 0x100
_REMOTE: Final = 0x200
"""Of a span's flags: that it is kept, that it is known where its parent is, and that it is in another process."""


def envelope(spans: bytes, *, version: str, instance: str) -> bytes:
    """What is posted: these spans, and who tells of them."""
    told = (("service.name", "headgate"), ("service.version", version), ("service.instance.id", instance))
    resource = Resource()
    for key, value in told:
        _tell(resource, key, value)
    scope = ScopeSpans(scope=InstrumentationScope(name="headgate", version=version))
    # Spans of a message stand one after another, so those of several traces are joined by being put together.
    scope.MergeFromString(spans)
    return TracesData(resource_spans=[ResourceSpans(resource=resource, scope_spans=[scope])]).SerializeToString()


class Spans:
    """The spans of one trace."""

    __slots__ = ("_scope", "_trace_id", "_trace_state")

    def __init__(self, trace_id: bytes, trace_state: str) -> None:
        self._trace_id = trace_id
        self._trace_state = trace_state
        self._scope = ScopeSpans()

    def add(
        self,
        name: str,
        *,
        span_id: bytes,
        parent: bytes,
        begin: int,
        end: int,
        kind: Span.SpanKind.ValueType = INTERNAL,
        remote: bool = False,
        attributes: Iterable[Attribute] = (),
        error: str | None = None,
    ) -> None:
        """Times are nanoseconds of the calendar.

        `remote` says that its parent is in another process, `error` that it failed, and how.
        """
        span = self._scope.spans.add(
            trace_id=self._trace_id,
            span_id=span_id,
            parent_span_id=parent,
            name=name,
            kind=kind,
            start_time_unix_nano=max(0, begin),
            end_time_unix_nano=max(0, begin, end),
            flags=_SAMPLED | _KNOWN_WHERE | _REMOTE if remote else _SAMPLED | _KNOWN_WHERE,
        )
        if self._trace_state:
            span.trace_state = self._trace_state
        for key, value in attributes:
            _tell(span, key, value)
        if error is not None:
            span.status.code = Status.STATUS_CODE_ERROR
            span.status.message = _text(error)

    def written(self) -> bytes:
        """As they stand in a message."""
        return self._scope.SerializeToString()


def _tell(about: Span | Resource, key: str, value: str | float) -> None:
    # Filled where it stands: to make it first and put it there takes half as long again.
    said = about.attributes.add(key=key).value
    if isinstance(value, bool):
        said.bool_value = value
    elif isinstance(value, int):
        said.int_value = value
    elif isinstance(value, float):
        said.double_value = value
    else:
        said.string_value = _text(value)


def _text(value: str) -> str:
    """A name that a caller gave may hold half a character, which is no text."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()
