"""Imports OpenTelemetry spans with the GenAI conventions, as OTLP JSON.

The collector's file exporter writes one `TracesData` object per line. A file that consists of one such object may also
be spread over several lines.

A span is a request if it has a model and token counts, or the operation of a request. Agents and gateways have spans of
their own around the spans of requests. Of nested spans in one object, only the outermost request counts.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from headgate.model.outcome import Outcome
from headgate.model.ticket import Api
from headgate.planning.recording.bounded_text import LINE_BYTES_MAX, bounded_lines, quoted
from headgate.planning.recording.import_csv import FIELDS, Columns, ImportCounts
from headgate.ports.traffic import TrafficRow
from headgate.simulation.workload.error import WorkloadError

ATTRIBUTES: Final[Columns] = MappingProxyType(
    {
        "prompt_tokens": ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
        "output_tokens": ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
        "cached_tokens": ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens"),
        "model": ("gen_ai.request.model", "gen_ai.response.model"),
        "class": ("headgate.class",),
        "tenant": ("headgate.tenant", "enduser.id", "user.id", "service.name"),
        "outcome": ("headgate.outcome",),
        "stream": ("gen_ai.request.stream",),
    }
)
"""Attributes of each field, including names from earlier versions of the conventions."""
OBJECTS_MAX: Final = 1_000_000
"""Maximum number of JSON objects in a line, each of which takes up to 500 bytes of memory. A span has about 60."""
_OPERATION: Final = "gen_ai.operation.name"
_APIS: Final[Mapping[str, Api]] = MappingProxyType(
    {
        "chat": Api.CHAT,
        "generate_content": Api.CHAT,
        "text_completion": Api.COMPLETIONS,
        "embeddings": Api.EMBEDDINGS,
    }
)
_STATUS_ERROR: Final = 2

_Scalar = str | int | float | bool


class _Value(Struct):
    string: str | None = field(name="stringValue", default=None)
    integer: str | int | None = field(name="intValue", default=None)
    double: float | str | None = field(name="doubleValue", default=None)
    boolean: bool | None = field(name="boolValue", default=None)

    def text(self) -> str | None:
        """The value as text. None if it is a list or a map."""
        if self.boolean is not None:
            return str(self.boolean)
        found: _Scalar | None = next(
            (each for each in (self.string, self.integer, self.double) if each is not None), None
        )
        return None if found is None else str(found)


class _Attribute(Struct):
    key: str = ""
    value: _Value = field(default_factory=_Value)


class _Status(Struct):
    code: str | int = 0


class _Span(Struct):
    start: str | int = field(name="startTimeUnixNano", default=0)
    span_id: str = field(name="spanId", default="")
    parent_span_id: str = field(name="parentSpanId", default="")
    attributes: list[_Attribute] = []
    status: _Status = field(default_factory=_Status)


class _ScopeSpans(Struct):
    spans: list[_Span] = []


class _Resource(Struct):
    attributes: list[_Attribute] = []


class _ResourceSpans(Struct):
    resource: _Resource = field(default_factory=_Resource)
    scope_spans: list[_ScopeSpans] = field(name="scopeSpans", default_factory=list[_ScopeSpans])


class _TracesData(Struct):
    resource_spans: list[_ResourceSpans] = field(name="resourceSpans")


_decoder: Final = msgspec.json.Decoder(_TracesData)
_Found = tuple[_Span, Mapping[str, str]]


def otel_rows(path: Path, columns: Columns, counts: ImportCounts) -> Iterator[TrafficRow]:
    """`columns` overrides the attributes of some fields."""
    attributes = {**ATTRIBUTES, **columns}
    for number, data in _objects(path):
        yield from _requests(data, attributes, counts, f"{path}:{number}")


def _objects(path: Path) -> Iterator[tuple[int, _TracesData]]:
    whole: list[str] = []
    size = 0
    for number, text in bounded_lines(path):
        if not whole and not text.strip():
            continue
        if not whole and text.rstrip().endswith("}"):
            yield number, _decode(text, f"{path}:{number}")
            continue
        # An object that is spread over several lines.
        size += len(text)
        if size > LINE_BYTES_MAX:
            problem = f"the file is one JSON object of more than {LINE_BYTES_MAX} bytes"
            raise WorkloadError(f"{path}: {problem}; write one object per line, as the collector does")
        whole.append(text)
    if whole:
        yield 1, _decode("".join(whole), str(path))


def _decode(text: str, place: str) -> _TracesData:
    if text.count("{") > OBJECTS_MAX:
        problem = f"more than {OBJECTS_MAX} JSON objects in one line"
        raise WorkloadError(f"{place}: {problem}; reduce the collector's send_batch_max_size")
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        hint = "expected OTLP JSON with resourceSpans, as the collector's file exporter writes it"
        raise WorkloadError(f"{place}: {error}; {hint}") from None


def _requests(data: _TracesData, columns: Columns, counts: ImportCounts, place: str) -> Iterator[TrafficRow]:
    found: list[_Found] = []
    for resource in data.resource_spans:
        common = _texts(resource.resource.attributes)
        for span in (each for scope in resource.scope_spans for each in scope.spans):
            attributes = ChainMap(_texts(span.attributes), common)
            if _is_request(attributes, columns):
                found.append((span, attributes))
            else:
                counts.skipped += 1
    requests = {span.span_id for span, _ in found if span.span_id}
    for span, attributes in found:
        if span.parent_span_id in requests:
            counts.skipped += 1
        else:
            yield _row(span, attributes, columns, place)


def _texts(attributes: Sequence[_Attribute]) -> dict[str, str]:
    return {each.key: text for each in attributes if (text := each.value.text()) is not None}


def _is_request(attributes: Mapping[str, str], columns: Columns) -> bool:
    operation = attributes.get(_OPERATION)
    if operation is not None:
        return operation in _APIS
    return all(any(name in attributes for name in columns[each]) for each in ("model", "prompt_tokens"))


def _row(span: _Span, attributes: Mapping[str, str], columns: Columns, place: str) -> TrafficRow:
    fields: dict[str, Any] = {"at_us": _start_us(span, place), "api": _APIS[attributes.get(_OPERATION, "chat")].value}
    failed = "error.type" in attributes or span.status.code in (_STATUS_ERROR, "STATUS_CODE_ERROR")
    fields["outcome"] = Outcome.ENGINE_ERROR.value if failed else Outcome.COMPLETED.value
    for name, candidates in columns.items():
        attribute = next((each for each in candidates if attributes.get(each)), None)
        if attribute is None or name == "at":
            continue
        into, convert = FIELDS[name]
        try:
            fields[into] = convert(attributes[attribute])
        except ValueError as expected:
            raise WorkloadError(f"{place}: {attribute} is {quoted(attributes[attribute])}, not {expected}") from None
    return TrafficRow(**fields)


def _start_us(span: _Span, place: str) -> int:
    text = str(span.start)
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 19 and int(text)):
        raise WorkloadError(f"{place}: startTimeUnixNano is {quoted(text)}, not a time in nanoseconds since 1970")
    return int(text) // 1_000
