"""Measures the messages of Anthropic's Messages API.

The content of a message is a string or an array of blocks. An image or a document is in the `source` of its block. It
counts as a fixed number of tokens by type (`media.py`), unless the source is text. A tool result and the source of a
document may contain blocks themselves. They are parsed to a fixed depth, so that the time is proportional to the length
of the messages.
"""

from typing import Final

import msgspec

from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.fields import STRING, BadRequest, Fields
from headgate.wire.media import FILE_TOKENS, IMAGE_TOKENS, escaped_names, may_escape_names

BLOCK_DEPTH_MAX: Final = 4
"""Maximum depth of objects that are parsed. A message has depth 0, and an image in a document in a tool result has 4.

A deeper object counts with its full length, and each source in it counts as a file too.
"""
_SOURCE: Final = b'"source"'
_ESCAPED_SOURCE: Final = escaped_names("source")
_ELEMENTS: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(Fields)
_FILE_BLOCKS: Final = ("image", "document")
_TEXT_SOURCES: Final = ("text", "content")


class _Head(msgspec.Struct, gc=False):
    """Fields that every message must have."""

    role: str


_HEADS: Final = msgspec.json.Decoder(list[_Head])


def may_have_media(raw: bytes | memoryview) -> bool:
    """Returns whether these messages may contain images or documents."""
    text = bytes(raw)
    return text.find(_SOURCE) >= 0 or (may_escape_names(text) and _ESCAPED_SOURCE.search(text) is not None)


def measure_blocks(raw: bytes, name: str) -> tuple[int, bool]:
    """Returns the length of the messages, and whether they may contain media."""
    try:
        _HEADS.decode(raw)
        if not may_have_media(raw):
            return len(raw), False
        return sum(_object_bytes(bytes(each), 0) + 1 for each in _ELEMENTS.decode(raw)) + 1, True
    except msgspec.DecodeError:
        kind = 'an array of objects, each with a string "role" and a "content" that is a string or an array of blocks'
        raise BadRequest(f'"{name}" must be {kind}', name) from None


def _object_bytes(raw: bytes, depth: int) -> int:
    """Returns the length of a message, a block or the source of a document, without its names."""
    if not raw.startswith(b"{") or not may_have_media(raw):
        return len(raw)
    if depth > BLOCK_DEPTH_MAX:
        # The pattern also finds names without escapes, but more slowly.
        sources = len(_ESCAPED_SOURCE.findall(raw)) if may_escape_names(raw) else raw.count(_SOURCE)
        return len(raw) + sources * FILE_TOKENS * BYTES_PER_TOKEN
    fields = _OBJECT.decode(raw)
    length = 0
    for name, value in fields.items():
        if name == "source":
            length += _source_bytes(bytes(value), fields, depth)
        elif name == "content":
            length += _content_bytes(bytes(value), depth)
        else:
            length += len(bytes(value))
    return length


def _content_bytes(raw: bytes, depth: int) -> int:
    if not raw.startswith(b"["):
        return _object_bytes(raw, depth + 1)
    if not may_have_media(raw):
        return len(raw)
    return sum(_object_bytes(bytes(each), depth + 1) for each in _ELEMENTS.decode(raw))


def _source_bytes(raw: bytes, block: Fields, depth: int) -> int:
    """Returns the length of the source of a block: text, further blocks, or a file. An unknown object is a file."""
    if raw.startswith(b'"') and _type(block) not in _FILE_BLOCKS:
        return len(raw)  # The address of a search result, which becomes part of the prompt.
    if raw.startswith(b"{") and _type(_OBJECT.decode(raw)) in _TEXT_SOURCES:
        return _object_bytes(raw, depth + 1)
    return (IMAGE_TOKENS if _type(block) == "image" else FILE_TOKENS) * BYTES_PER_TOKEN


def _type(fields: Fields) -> str:
    """Returns the type of a block or a source. Empty if it is not a string."""
    raw = bytes(fields.get("type", b"null"))
    return STRING.decode(raw) if raw.startswith(b'"') else ""
