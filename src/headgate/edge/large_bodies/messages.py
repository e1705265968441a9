"""What do the gateway and the process that reads its large bodies say to each other?

One question, one answer. Each is a length and a message; the bytes that a question is about follow it.
"""

import struct
from typing import Final

import msgspec

from headgate.model.ticket import Api
from headgate.wire.outline import Outline

LENGTH: Final = struct.Struct(">I")
"""Stands before every message."""


class Read(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The bytes are a body: what is in it?"""

    api: Api
    size: int


class Trim(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The bytes are the messages of a chat: what is left of them if they are to be no longer than this?"""

    length_max: int
    size: int


class Found(msgspec.Struct, frozen=True, tag=True, gc=False):
    outline: Outline


class Wrong(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The body is refused."""

    message: str
    param: str | None
    kept: str
    """The message without any words of the body."""


class Left(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What is left of a conversation, its length, and how many turns are not."""

    messages: bytes
    length: int
    turns_dropped: int


class Unread(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Something is not as it should be, and whoever asked should look for itself."""

    why: str


Question = Read | Trim
Answer = Found | Wrong | Left | Unread

QUESTIONS: Final = msgspec.msgpack.Decoder(Question)
ANSWERS: Final = msgspec.msgpack.Decoder(Answer)
_ENCODER: Final = msgspec.msgpack.Encoder()


def framed(message: Question | Answer) -> bytes:
    encoded = _ENCODER.encode(message)
    return LENGTH.pack(len(encoded)) + encoded
