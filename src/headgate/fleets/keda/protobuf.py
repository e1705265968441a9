"""How do numbers and texts stand in a protobuf message?

The little of it that seven small messages need. Generated code would bring the protobuf runtime, which accepts only
code that was generated for nearly its own version, and other packages in the same process pin that version too. The
tests hold this against the real thing, both ways.
"""

import struct
from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES = 0, 1, 2
_VARINT_BYTES_MAX = 10
_UINT64 = (1 << 64) - 1


class MalformedMessage(ValueError):
    """The bytes are no protobuf message. The message says where they stop making sense."""


def number_field(number: int, value: int) -> bytes:
    """An integer or a flag. What has its default value is left out, as the format has it."""
    return _varint(number << 3 | _VARINT) + _varint(value & _UINT64) if value else b""


def double_field(number: int, value: float) -> bytes:
    return _varint(number << 3 | _FIXED64) + struct.pack("<d", value) if value else b""


def text_field(number: int, value: str) -> bytes:
    return message_field(number, value.encode()) if value else b""


def message_field(number: int, content: bytes) -> bytes:
    """Also an empty message is there: it may be one of a list."""
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field's number and value, in their order: numbers as they are, all else as bytes."""
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        match tag & 7:
            case 0:
                value, at = _read_varint(data, at)
            case 1:
                value, at = _read_bytes(data, at, 8)
            case 2:
                length, at = _read_varint(data, at)
                value, at = _read_bytes(data, at, length)
            case 5:
                value, at = _read_bytes(data, at, 4)
            case unknown:
                raise MalformedMessage(f"byte {at}: there is no kind {unknown} of field")
        yield tag >> 3, value


def text(value: int | bytes) -> str:
    """What a text field holds."""
    try:
        return content(value).decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"a text is not UTF-8: {error.reason}") from None


def content(value: int | bytes) -> bytes:
    """What a field holds that is a text or a message."""
    if isinstance(value, int):
        raise MalformedMessage("a number stands where a text or a message belongs")
    return value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value & _UINT64, at + place + 1
    raise MalformedMessage(f"byte {at}: a number does not end")


def _read_bytes(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    if len(data) - at < length:
        raise MalformedMessage(f"byte {at}: {length} bytes are announced and {len(data) - at} are left")
    return data[at : at + length], at + length
