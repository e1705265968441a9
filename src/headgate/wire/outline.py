"""Outline of a request body: the result of parsing it, with positions instead of bytes.

A process that has the same bytes can build the `RequestBody` from the outline without parsing again. A large body can
therefore be parsed in another process (`edge/large_bodies/client.py`), which returns only the small outline.
"""

import re
from typing import Final

import msgspec

from headgate.wire.prompt_length import PromptLength

Span = tuple[int, int]
"""Start and end of a value, in bytes. The end is exclusive."""


class Outline(msgspec.Struct, frozen=True, array_like=True, gc=False):
    model: str
    stream: bool
    service_tier: str | None
    wants_usage: bool
    length: PromptLength
    prefix: bytes
    fields: dict[str, Span]
    stream_options: dict[str, Span]


class _Name:
    """Field name that compares unequal to all others, so that both values of a duplicate field are kept."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _make_name(kind: type[_Name], text: str) -> _Name:
    return kind(text)


_ALL_FIELDS: Final = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=_make_name)
_UP_TO_VALUE: Final = re.compile(rb'[ \t\n\r]*+[{,][ \t\n\r]*+"(?:[^"\\]++|\\.)*+"[ \t\n\r]*+:[ \t\n\r]*+')


def value_spans(raw: bytes, span: Span | None = None) -> dict[str, Span]:
    """Returns the spans of the values in a valid JSON object, which may be only part of `raw`.

    For a duplicate field, the last value is used.
    """
    at, end = span or (0, len(raw))
    found: dict[str, Span] = {}
    for name, value in _ALL_FIELDS.decode(memoryview(raw)[at:end]).items():
        before = _UP_TO_VALUE.match(raw, at, end)
        assert before is not None, "the decoder accepted an invalid object"
        start, at = before.end(), before.end() + len(memoryview(value))
        found[name.text] = start, at
    return found


def unique_fields(raw: bytes | msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    """Returns the fields of a JSON object, or None if it has duplicates.

    Raises `DecodeError` if the JSON is not an object.
    """
    given = _ALL_FIELDS.decode(raw)
    fields = {name.text: value for name, value in given.items()}
    return fields if len(fields) == len(given) else None


def slice_fields(raw: bytes | bytearray, places: dict[str, Span]) -> dict[str, msgspec.Raw]:
    """Returns the values at these spans without copying them."""
    view = memoryview(raw)
    return {name: msgspec.Raw(view[start:end]) for name, (start, end) in places.items()}
