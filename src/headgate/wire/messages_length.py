"""Measures the messages of Anthropic's Messages API.

The content of a message is a string or an array of blocks. An image or a document is in the `source` of its block, and
a tool result may contain such blocks itself. They count as a fixed number of tokens by type (`media.py`), unless the
source is text.
"""

from typing import Final

import msgspec

from headgate.model.units import BYTES_PER_TOKEN
from headgate.wire.fields import BadRequest, Fields
from headgate.wire.media import FILE_TOKENS, IMAGE_TOKENS

_SOURCE: Final = b'"source"'
_MESSAGES: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OBJECT: Final = msgspec.json.Decoder(Fields)


class _Head(msgspec.Struct, gc=False):
    """Fields that every message must have."""

    role: str


class _Source(msgspec.Struct, gc=False):
    type: msgspec.Raw = msgspec.Raw(b"null")


_HEADS: Final = msgspec.json.Decoder(list[_Head])
_SOURCE_KIND: Final = msgspec.json.Decoder(_Source)


def may_have_media(raw: bytes | memoryview) -> bool:
    """Returns whether these messages may contain images or documents."""
    return bytes(raw).find(_SOURCE) >= 0


def measure_blocks(raw: bytes, name: str) -> tuple[int, bool]:
    """Returns the length of the messages, and whether they may contain media."""
    try:
        _HEADS.decode(raw)
        if not may_have_media(raw):
            return len(raw), False
        return sum(_message_bytes(each) + 1 for each in _MESSAGES.decode(raw)) + 1, True
    except msgspec.DecodeError:
        kind = 'an array of objects, each with a string "role" and a "content" that is a string or an array of blocks'
        raise BadRequest(f'"{name}" must be {kind}', name) from None


def _message_bytes(message: msgspec.Raw) -> int:
    raw = bytes(message)
    return len(raw) if raw.find(_SOURCE) < 0 else sum(_value_bytes(*each) for each in _OBJECT.decode(raw).items())


def _value_bytes(name: str, value: msgspec.Raw) -> int:
    raw = bytes(value)
    if name != "content" or not raw.startswith(b"[") or raw.find(_SOURCE) < 0:
        return len(raw)
    return sum(_block_bytes(each) for each in _MESSAGES.decode(raw))


def _block_bytes(block: msgspec.Raw) -> int:
    raw = bytes(block)
    if raw.find(_SOURCE) < 0 or not raw.startswith(b"{"):
        return len(raw)
    length, is_image = 0, False
    fields = _OBJECT.decode(raw)
    if "type" in fields:
        is_image = bytes(fields["type"]) == b'"image"'
    for name, value in fields.items():
        if name == "source" and not _is_text(value):
            length += (IMAGE_TOKENS if is_image else FILE_TOKENS) * BYTES_PER_TOKEN
        else:
            length += _value_bytes(name, value)
    return length


def _is_text(source: msgspec.Raw) -> bool:
    """Returns whether a document's source is text or content blocks. An unknown source counts as a file."""
    raw = bytes(source)
    return raw.startswith(b"{") and bytes(_SOURCE_KIND.decode(raw).type) in (b'"text"', b'"content"')
