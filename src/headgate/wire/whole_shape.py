"""Differences between an engine's whole answer and the sum of its chunks.

An engine may write fields into a whole answer that it omits from chunks, all of them null. An answer that is joined
from a stream (`joining.py`) gets them too, so that a caller cannot tell the two apart.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

_NULL: Final = msgspec.Raw(b"null")
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])

Written = dict[str, object]
"""An object that is about to be encoded."""


@dataclass(frozen=True, slots=True)
class WholeShape:
    """Fields that are null in a whole answer if the stream omits them, grouped by the object that contains them."""

    top: tuple[str, ...] = ()
    choice: tuple[str, ...] = ()
    message: tuple[str, ...] = ()
    usage: tuple[str, ...] = ()
    prompt_details: tuple[str, ...] = ()
    """Fields of `prompt_tokens_details` in the usage, if the engine reports them."""
    unequal: frozenset[str] = frozenset()
    """Fields of a delta after which the stream may differ from the whole answer, since the engine parses the two
    separately."""

    def complete_usage(self, top: Written) -> None:
        raw = top.get("usage")
        if not self.usage or not isinstance(raw, msgspec.Raw) or not bytes(raw).startswith(b"{"):
            return
        usage: Written = dict(_FIELDS.decode(raw))
        details = usage.get("prompt_tokens_details")
        if isinstance(details, msgspec.Raw) and bytes(details).startswith(b"{"):
            inner: Written = dict(_FIELDS.decode(details))
            usage["prompt_tokens_details"] = completed(inner, self.prompt_details)
        top["usage"] = completed(usage, self.usage)


def completed(fields: Written, names: tuple[str, ...]) -> Written:
    """The object, with null for each of these fields that it lacks."""
    for name in names:
        fields.setdefault(name, _NULL)
    return fields


AS_STREAMED: Final = WholeShape()
"""The shape of an engine whose whole answers have the fields of its chunks."""
