"""Measures a conversation, and leaves out its oldest turns.

A turn is a message of the user with everything up to the next one; messages before the first turn belong to it. The
oldest turns are left out first. Instructions (system and developer messages), the last turn, and the call of every tool
result that stays are never left out. The bytes of the remaining messages do not change.

Images and audio count by type (`media.py`), not by their encoded length.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeVar

import msgspec

from headgate.wire.fields import BadRequest, Fields
from headgate.wire.media import has_media, part_bytes

_T = TypeVar("_T")
_NULL: Final = msgspec.Raw(b"null")

_STAYS: Final = frozenset({"system", "developer"})
_RESULTS: Final = frozenset({"tool", "function"})


class _Head(msgspec.Struct, gc=False):
    """What of a message decides where it belongs."""

    role: str = ""
    tool_calls: msgspec.Raw = _NULL
    tool_call_id: msgspec.Raw = _NULL


class _ToolCall(msgspec.Struct, gc=False):
    id: msgspec.Raw = _NULL


_MESSAGES: Final = msgspec.json.Decoder(list[msgspec.Raw])
_HEADS: Final = msgspec.json.Decoder(list[_Head])
_TOOL_CALLS: Final = msgspec.json.Decoder(list[_ToolCall])
_OBJECT: Final = msgspec.json.Decoder(Fields)
_OBJECTS: Final = msgspec.json.Decoder(list[Fields])


def measure(raw: bytes, *, media: bool) -> tuple[int, int]:
    """Length of the messages of a chat, and how much of it trimming cannot remove. `media`: they may contain media."""
    heads = _decode(_HEADS, raw, "messages")
    roles = [head.role for head in heads]
    if media or not _RESULTS.isdisjoint(roles):
        return _measure_closely(raw, heads, media=media)
    turns = roles.count("user")
    if turns < 2:
        return len(raw), len(raw)
    messages = _MESSAGES.decode(raw)
    last_turn = len(roles) - 1 - roles[::-1].index("user")
    # A comma or bracket goes with each message, and one bracket more.
    kept = 1
    for message in messages[last_turn:]:
        kept += len(bytes(message)) + 1
    for index, role in enumerate(roles[:last_turn]):
        if role in _STAYS:
            kept += len(bytes(messages[index])) + 1
    return len(raw), kept


def _measure_closely(raw: bytes, heads: list[_Head], *, media: bool) -> tuple[int, int]:
    outline = _outline(heads, [_text_bytes(each, "messages") for each in _MESSAGES.decode(raw)])
    length = outline.length if media else len(raw)
    return length, outline.length_without(outline.cuts[-1]) if outline.cuts else length


def trim(raw: bytes, length_max: int) -> tuple[bytes, int, int]:
    """The messages without as many of the oldest turns as it takes, or as can be; their length; the turns left out."""
    messages = [bytes(each) for each in _decode(_MESSAGES, raw, "messages")]
    media = has_media(raw)
    lengths = [_text_bytes(each, "messages") if media else len(each) for each in messages]
    outline = _outline(_decode(_HEADS, raw, "messages"), lengths)
    cut = 0
    for cut in outline.cuts:
        if outline.length_without(cut) <= length_max:
            break
    pairs = zip(messages, outline.turns, strict=True)
    kept = b",".join(message for message, turn in pairs if turn is None or turn >= cut)
    return b"[" + kept + b"]", outline.length_without(cut), cut


def text_bytes(raw: bytes, name: str) -> int:
    """Length of an array of objects; some of them may contain media."""
    return sum(_text_bytes(each, name) + 1 for each in _decode(_MESSAGES, raw, name)) + 1


@dataclass(frozen=True, slots=True)
class _Outline:
    """How a conversation divides into turns."""

    turns: list[int | None]
    """For each message the turn it goes with, counted from 0; None stays."""
    removed: list[int]
    """How much shorter the text is without the first so many turns."""
    cuts: list[int]
    """How many of the oldest turns may be left out."""
    length: int

    def length_without(self, turns: int) -> int:
        return self.length - self.removed[turns]


def _outline(heads: list[_Head], lengths: list[int]) -> _Outline:
    turns: list[int | None] = []
    turn = -1
    removed = [0, 0]
    for head, length in zip(heads, lengths, strict=True):
        if head.role == "user":
            turn += 1
            if turn > 0:
                removed.append(removed[-1])
        if head.role in _STAYS:
            turns.append(None)
        else:
            turns.append(max(turn, 0))
            removed[-1] += length + 1
    cuts = [cut for cut, bonds in enumerate(_bonds(heads, turns, turn + 2)) if 1 <= cut <= turn and not bonds]
    return _Outline(turns, removed, cuts, sum(lengths) + len(lengths) + 1)


def _bonds(heads: list[_Head], turns: list[int | None], count: int) -> Iterable[int]:
    """For each cut, how many tool results it would part from their calls."""
    changes = [0] * (count + 1)
    called_in: dict[bytes, int] = {}
    last_answer = 0
    for head, turn in zip(heads, turns, strict=True):
        if turn is None:
            continue
        if head.role in _RESULTS:
            changes[called_in.get(bytes(head.tool_call_id), last_answer) + 1] += 1
            changes[turn + 1] -= 1
        elif head.role == "assistant":
            last_answer = turn
            called_in.update((call_id, turn) for call_id in _call_ids(head.tool_calls))
    return accumulate(changes)


def _call_ids(tool_calls: msgspec.Raw) -> Iterable[bytes]:
    try:
        return [bytes(call.id) for call in _TOOL_CALLS.decode(tool_calls)]
    except msgspec.DecodeError:
        # Null, or nothing that an engine would accept.
        return ()


_CONTENT: Final = frozenset({"content", "output"})
"""Where the parts of a message, or of what a tool has found, stand."""


def _text_bytes(message: bytes | msgspec.Raw, name: str) -> int:
    raw = bytes(message)
    if not has_media(raw):
        return len(raw)
    fields = _decode(_OBJECT, raw, name)
    return sum(_content_bytes(value, name) if key in _CONTENT else len(bytes(value)) for key, value in fields.items())


def _content_bytes(content: msgspec.Raw, name: str) -> int:
    raw = bytes(content)
    if raw.startswith(b"{"):
        raw = b"[%b]" % raw
    if not raw.startswith(b"["):
        return len(raw)
    return sum(map(part_bytes, _decode(_OBJECTS, raw, name)))


def _decode(decoder: msgspec.json.Decoder[_T], raw: bytes, name: str) -> _T:
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:
        kind = 'an array of objects, each with a string as "role" and a string or an array of parts as "content"'
        raise BadRequest(f'"{name}" must be {kind}', name) from None
