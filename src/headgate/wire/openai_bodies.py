"""Error bodies and model lists in OpenAI format.

An error always has all four fields, because clients read them.
"""

from collections.abc import Iterable, Mapping
from typing import Final, cast

import msgspec

from headgate.wire.redaction import redacted

MESSAGE_CHARS_MAX: Final = 500
"""Maximum length of an engine error message, in characters."""

_WHOLE_CHARS_MAX: Final = 16 * MESSAGE_CHARS_MAX
"""Maximum length of a message from which the gateway's key is removed, in characters."""

ERROR_BYTES_MAX: Final = 256 * 1024
"""Maximum size of an error body that is parsed for its message.

For a larger body, its beginning is used as the message.
"""

_ENCODER: Final = msgspec.json.Encoder()
_NULL: Final = msgspec.Raw(b"null")


class _Report(msgspec.Struct):
    """Fields that mark a response as an error: `error` or, in older vLLM, `object`."""

    error: msgspec.Raw = _NULL
    object: msgspec.Raw = _NULL


_REPORT: Final = msgspec.json.Decoder(_Report)


def error_body(*, message: str, type: str, code: str, param: str | None = None) -> bytes:  # noqa: A002 (name in the API)
    return _ENCODER.encode({"error": {"message": message, "type": type, "param": param, "code": code}})


def json_body(data: Mapping[str, object]) -> bytes:
    return _ENCODER.encode(data)


def models_body(names: Iterable[str]) -> bytes:
    # Clients expect a creation time. The real one is unknown, and a constant keeps responses identical.
    listed = [{"id": name, "object": "model", "created": 0, "owned_by": "headgate"} for name in names]
    return _ENCODER.encode({"object": "list", "data": listed})


def read_error(body: bytes | msgspec.Raw, key: str = "") -> str:
    """Returns the engine's error message from a body of any format, or an empty string.

    `key` is the gateway's key for the engine. It is removed from the message.
    """
    return quoted_error(whole_error(body), key)


def quoted_error(message: str, key: str) -> str:
    """Returns the start of an engine's error message, without the gateway's key."""
    # If the message were cut first, a part of the key might remain.
    message = redacted(message, key)
    return message if len(message) <= MESSAGE_CHARS_MAX else message[: MESSAGE_CHARS_MAX - 1] + "…"


def whole_error(body: bytes | msgspec.Raw) -> str:
    """Like `read_error`, but much longer, for a message that must go through `quoted_error` before it is shown."""
    raw = bytes(body)
    try:
        # Parsing a larger body would take too long.
        said: object = msgspec.json.decode(raw) if len(raw) <= ERROR_BYTES_MAX else _start_of(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        said = _start_of(raw)
    return " ".join(_message(said, levels=4)[:_WHOLE_CHARS_MAX].split())


def _start_of(raw: bytes) -> str:
    return raw[: 4 * MESSAGE_CHARS_MAX].decode(errors="replace")


def reported_error(body: bytes | bytearray) -> str | None:
    """Returns the error message in a response with a success status, or None if the response is not an error.

    The message may be empty, and must go through `quoted_error` before it is shown. An engine that fails after sending
    its status can report the failure only in the body.
    """
    if body.find(b'"error"') < 0:  # Much faster than `in`.
        return None
    try:
        report = _REPORT.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        # The body is not valid JSON, so the client receives the engine's bytes unchanged.
        return None
    if bytes(report.error) == b"null" and bytes(report.object) != b'"error"':
        return None
    return whole_error(bytes(body))


def _message(said: object, *, levels: int) -> str:
    """Returns the first text found under one of the keys that engines use for errors."""
    match said:
        case str():
            return said
        case dict() if levels > 0:
            fields = cast("dict[str, object]", said)
            inner = (_message(fields[key], levels=levels - 1) for key in _MESSAGE_KEYS if key in fields)
            return next((text for text in inner if text), "")
        case list() if levels > 0:
            return next(
                (text for each in cast("list[object]", said) if (text := _message(each, levels=levels - 1))), ""
            )
        case _:
            return ""


_MESSAGE_KEYS: Final = ("error", "message", "detail", "msg")
