"""Differences between an engine's non-streaming response and its joined chunks.

A non-streaming response may contain null fields that the engine omits from chunks. These fields are added to a response
joined from a stream (`stream_joiner.py`), so that clients see no difference.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

_NULL: Final = msgspec.Raw(b"null")
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

JsonObject = dict[str, object]
"""Object to encode."""


@dataclass(frozen=True, slots=True)
class ResponseShape:
    """Fields to add as null if the stream omits them, grouped by the object that contains them."""

    top: tuple[str, ...] = ()
    choice: tuple[str, ...] = ()
    message: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()
    prompt_details: tuple[str, ...] = ()
    """Fields in the usage's `prompt_tokens_details`, if the engine reports them."""
    differing_fields: frozenset[str] = frozenset()
    """Delta fields that may differ from the non-streaming response, because the engine parses the two separately."""

    def complete_usage(self, top: JsonObject) -> None:
        raw = top.get("usage")
        if not self.usage or not isinstance(raw, msgspec.Raw) or not bytes(raw).startswith(b"{"):
            return
        usage: JsonObject = dict(_FIELDS.decode(raw))
        details = usage.get("prompt_tokens_details")
        if isinstance(details, msgspec.Raw) and bytes(details).startswith(b"{"):
            inner: JsonObject = dict(_FIELDS.decode(details))
            usage["prompt_tokens_details"] = fill_missing(inner, self.prompt_details)
        top["usage"] = fill_missing(usage, self.usage)


def fill_missing(fields: JsonObject, names: tuple[str, ...]) -> JsonObject:
    """Adds each of these fields as null if it is missing. Returns the object."""
    for name in names:
        fields.setdefault(name, _NULL)
    return fields


AS_STREAMED: Final = ResponseShape()
"""Shape for engines whose non-streaming responses have the same fields as their chunks."""
