"""Protocol between the gateway and its large-body process.

Each request gets one response. Requests and responses consist of a length prefix followed by a message. Each request is
followed by the bytes to parse.
"""

import struct
from typing import Final

import msgspec

from headgate.model.ticket import Api
from headgate.wire.outline import Outline

LENGTH_PREFIX: Final = struct.Struct(">I")
"""Length prefix of every message."""


class ParseBody(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Request to parse a body."""

    api: Api
    size: int


class TrimMessages(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Request to trim the messages of a chat to a maximum length."""

    length_max: int
    size: int


class ParsedBody(msgspec.Struct, frozen=True, tag=True, gc=False):
    outline: Outline


class InvalidBody(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The body is invalid."""

    message: str
    param: str | None
    log_message: str
    """Message for logs and records, without any text from the body."""


class TrimmedMessages(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Trimmed conversation, its length and the number of dropped turns."""

    messages: bytes
    length: int
    turns_dropped: int


class ParseFailed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The process could not parse the body. The gateway parses it instead."""

    reason: str


ReaderRequest = ParseBody | TrimMessages
ReaderResponse = ParsedBody | InvalidBody | TrimmedMessages | ParseFailed

REQUEST_DECODER: Final = msgspec.msgpack.Decoder(ReaderRequest)
RESPONSE_DECODER: Final = msgspec.msgpack.Decoder(ReaderResponse)
_ENCODER: Final = msgspec.msgpack.Encoder()


def frame(message: ReaderRequest | ReaderResponse) -> bytes:
    encoded = _ENCODER.encode(message)
    return LENGTH_PREFIX.pack(len(encoded)) + encoded
