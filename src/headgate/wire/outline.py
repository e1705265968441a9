"""Where in a body does each of its fields stand?

An outline is what reading a body has found, without the bytes: whoever holds the same bytes makes the same
`RequestBody` of it, without reading them again. So a large body can be read in another process
(`edge/large_bodies/client.py`) and only a small answer comes back.
"""

import re
from typing import Final

import msgspec

from headgate.wire.measure import PromptLength

Span = tuple[int, int]
"""From the first byte up to the one after the last."""


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
    """A field's name that equals no other, so that of a field given twice both values are seen."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def _make_name(kind: type[_Name], text: str) -> _Name:
    return kind(text)


_ALL_FIELDS: Final = msgspec.json.Decoder(dict[_Name, msgspec.Raw], dec_hook=_make_name)
_UP_TO_VALUE: Final = re.compile(rb'[ \t\n\r]*+[{,][ \t\n\r]*+"(?:[^"\\]++|\\.)*+"[ \t\n\r]*+:[ \t\n\r]*+')


def spans(raw: bytes, span: Span | None = None) -> dict[str, Span]:
    """The values of a JSON object that is known to be one; it may stand inside of `raw`. Of a field given twice the
    last value counts, as everywhere."""
    at, end = span or (0, len(raw))
    found: dict[str, Span] = {}
    for name, value in _ALL_FIELDS.decode(memoryview(raw)[at:end]).items():
        before = _UP_TO_VALUE.match(raw, at, end)
        assert before is not None, "what the decoder took for an object is none"
        start, at = before.end(), before.end() + len(memoryview(value))
        found[name.text] = start, at
    return found


def fields_once(raw: bytes | msgspec.Raw) -> dict[str, msgspec.Raw] | None:
    """The fields of a JSON object; None where one is given twice. Raises `DecodeError` where it is no object."""
    given = _ALL_FIELDS.decode(raw)
    fields = {name.text: value for name, value in given.items()}
    return fields if len(fields) == len(given) else None


def cut(raw: bytes | bytearray, places: dict[str, Span]) -> dict[str, msgspec.Raw]:
    """The values at these places; no byte of them is copied."""
    view = memoryview(raw)
    return {name: msgspec.Raw(view[start:end]) for name, (start, end) in places.items()}
