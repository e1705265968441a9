"""Measures a conversation and trims its oldest turns.

A turn is a user message and everything up to the next user message. Messages before the first turn belong to it. The
oldest turns are removed first. Instructions (system and developer messages), the last turn, and the tool calls whose
results are kept are never removed. The bytes of the remaining messages do not change.

Images and audio are counted by type (`media.py`), not by their encoded length.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, TypeVar

import msgspec

from headgate.wire.fields import BadRequest, Fields
from headgate.wire.media import has_media, part_bytes
from headgate.wire.message_heads import HEADS, TOOL_CALLS, MessageHead

_T = TypeVar("_T")

_KEPT_ROLES: Final = frozenset({"system", "developer"})
_TOOL_ROLES: Final = frozenset({"tool", "function"})


_MESSAGES: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(Fields)
_OBJECTS: Final = msgspec.json.Decoder(list[Fields])


def measure(raw: bytes) -> tuple[int, int, bool]:
    """Returns the length of the chat messages, the length that would remain after maximum trimming, and whether the
    messages may contain media.
    """
    try:
        heads = HEADS.decode(raw)
    except msgspec.DecodeError:
        raise _not_messages("messages") from None
    roles = [head.role for head in heads]
    # A media part is in an array or object inside a message. Most messages have neither.
    media = (raw.find(b"[", 1) >= 0 or raw.count(b"{") != len(heads)) and has_media(raw)
    if media or not _TOOL_ROLES.isdisjoint(roles):
        return *_measure_messages(raw, heads, media=media), media
    turns = roles.count("user")
    if turns < 2:
        return len(raw), len(raw), media
    messages = _MESSAGES.decode(raw)
    last_turn = len(roles) - 1 - roles[::-1].index("user")
    # Each message is followed by a comma or bracket, and the array has an opening bracket.
    kept = 1
    for message in messages[last_turn:]:
        kept += len(bytes(message)) + 1
    for index, role in enumerate(roles[:last_turn]):
        if role in _KEPT_ROLES:
            kept += len(bytes(messages[index])) + 1
    return len(raw), kept, media


def _measure_messages(raw: bytes, heads: list[MessageHead], *, media: bool) -> tuple[int, int]:
    outline = _outline(heads, [_text_bytes(each, "messages") for each in _MESSAGES.decode(raw)])
    length = outline.length if media else len(raw)
    return length, outline.length_without(outline.cuts[-1]) if outline.cuts else length


def trim(raw: bytes, length_max: int) -> tuple[bytes, int, int]:
    """Removes the oldest turns until the messages fit `length_max` or no more can be removed.

    Returns the remaining messages, their length and the number of removed turns.
    """
    messages = [bytes(each) for each in _decode(_MESSAGES, raw, "messages")]
    media = has_media(raw)
    lengths = [_text_bytes(each, "messages") if media else len(each) for each in messages]
    outline = _outline(_decode(HEADS, raw, "messages"), lengths)
    cut = 0
    for cut in outline.cuts:
        if outline.length_without(cut) <= length_max:
            break
    pairs = zip(messages, outline.turns, strict=True)
    kept = b",".join(message for message, turn in pairs if turn is None or turn >= cut)
    return b"[" + kept + b"]", outline.length_without(cut), cut


def text_bytes(raw: bytes, name: str) -> int:
    """Returns the length of an array of objects that may contain media."""
    return sum(_text_bytes(each, name) + 1 for each in _decode(_MESSAGES, raw, name)) + 1


def element_bytes(raw: bytes, name: str) -> int:
    """Returns the length of a text, an object with content parts, a single part, or an array of parts."""
    if raw[:1] not in (b"[", b"{") or not has_media(raw):
        return len(raw)
    try:
        if raw.startswith(b"["):
            return _parts_bytes(raw)
        fields = _OBJECT.decode(raw)
        if _CONTENT.isdisjoint(fields):
            return part_bytes(fields)
        return sum(
            _parts_bytes(bytes(value)) if key in _CONTENT else len(bytes(value)) for key, value in fields.items()
        )
    except msgspec.DecodeError:
        raise BadRequest(f'"{name}" must contain texts or arrays of content parts', name) from None


def elements_bytes(elements: list[msgspec.Raw], name: str) -> int:
    """Returns the length of an array of such elements, which may contain media."""
    return sum(element_bytes(bytes(each), name) + 1 for each in elements) + 1


@dataclass(frozen=True, slots=True)
class _Outline:
    """Division of a conversation into turns."""

    turns: list[int | None]
    """Turn that each message belongs to, counted from 0. None for messages that are always kept."""
    removed: list[int]
    """Bytes saved by removing the first n turns, indexed by n."""
    cuts: list[int]
    """Allowed values for the number of oldest turns to remove."""
    length: int

    def length_without(self, turns: int) -> int:
        return self.length - self.removed[turns]


def _outline(heads: list[MessageHead], lengths: list[int]) -> _Outline:
    turns: list[int | None] = []
    turn = -1
    removed = [0, 0]
    for head, length in zip(heads, lengths, strict=True):
        if head.role == "user":
            turn += 1
            if turn > 0:
                removed.append(removed[-1])
        if head.role in _KEPT_ROLES:
            turns.append(None)
        else:
            turns.append(max(turn, 0))
            removed[-1] += length + 1
    cuts = [
        cut for cut, bonds in enumerate(_split_tool_results(heads, turns, turn + 2)) if 1 <= cut <= turn and not bonds
    ]
    return _Outline(turns, removed, cuts, sum(lengths) + len(lengths) + 1)


def _split_tool_results(heads: list[MessageHead], turns: list[int | None], count: int) -> Iterable[int]:
    """Returns, for each cut, the number of tool results that it would separate from their calls."""
    changes = [0] * (count + 1)
    called_in: dict[bytes, int] = {}
    last_answer = 0
    for head, turn in zip(heads, turns, strict=True):
        if turn is None:
            continue
        if head.role in _TOOL_ROLES:
            changes[called_in.get(bytes(head.tool_call_id), last_answer) + 1] += 1
            changes[turn + 1] -= 1
        elif head.role == "assistant":
            last_answer = turn
            called_in.update((call_id, turn) for call_id in _call_ids(head.tool_calls))
    return accumulate(changes)


def _call_ids(tool_calls: msgspec.Raw) -> Iterable[bytes]:
    try:
        return [bytes(call.id) for call in TOOL_CALLS.decode(tool_calls)]
    except msgspec.DecodeError:
        # Null, or a value that engines will reject.
        return ()


_CONTENT: Final = frozenset({"content", "output"})
"""Fields that contain the parts of a message or of a tool's output."""


def _text_bytes(message: bytes | msgspec.Raw, name: str) -> int:
    raw = bytes(message)
    if not has_media(raw):
        return len(raw)
    fields = _decode(_OBJECT, raw, name)
    return sum(_content_bytes(value, name) if key in _CONTENT else len(bytes(value)) for key, value in fields.items())


def _content_bytes(content: msgspec.Raw, name: str) -> int:
    try:
        return _parts_bytes(bytes(content))
    except msgspec.DecodeError:
        raise _not_messages(name) from None


def _parts_bytes(raw: bytes) -> int:
    """Returns the length of a text, a content part or an array of content parts."""
    if raw.startswith(b"{"):
        raw = b"[%b]" % raw
    if not raw.startswith(b"["):
        return len(raw)
    return sum(part_bytes(part) for part in _OBJECTS.decode(raw))


def _decode(decoder: msgspec.json.Decoder[_T], raw: bytes, name: str) -> _T:
    try:
        return decoder.decode(raw)
    except msgspec.DecodeError:
        raise _not_messages(name) from None


def _not_messages(name: str) -> BadRequest:
    kind = 'an array of objects, each with a string "role" and a "content" that is a string or an array of parts'
    return BadRequest(f'"{name}" must be {kind}', name)
