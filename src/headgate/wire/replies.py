"""What do callers and engines say to each other outside of an answer?

Errors and lists of models, in the OpenAI shapes. An error carries all four of its fields, since clients read them.
"""

from collections.abc import Iterable, Mapping
from typing import Final, cast

import msgspec

MESSAGE_CHARS_MAX: Final = 500
"""How much of an engine's error message is kept."""

ERROR_BYTES_MAX: Final = 256 * 1024
"""The longest error body that is parsed for its message; only the start of a longer one is kept."""

_ENCODER: Final = msgspec.json.Encoder()
_NULL: Final = msgspec.Raw(b"null")


class _Report(msgspec.Struct):
    """Where an answer says that it is an error: in a field of that name, or, in older vLLM, in its kind."""

    error: msgspec.Raw = _NULL
    object: msgspec.Raw = _NULL


_REPORT: Final = msgspec.json.Decoder(_Report)


def error_body(*, message: str, type: str, code: str, param: str | None = None) -> bytes:  # noqa: A002 The wire's word.
    return _ENCODER.encode({"error": {"message": message, "type": type, "param": param, "code": code}})


def json_body(data: Mapping[str, object]) -> bytes:
    return _ENCODER.encode(data)


def models_body(names: Iterable[str]) -> bytes:
    # Clients want the time of creation; nobody knows it, and the same answer every time can be compared.
    listed = [{"id": name, "object": "model", "created": 0, "owned_by": "headgate"} for name in names]
    return _ENCODER.encode({"object": "list", "data": listed})


def read_error(body: bytes | msgspec.Raw) -> str:
    """An engine's error message, of whatever shape; empty if it gives none."""
    raw = bytes(body)
    try:
        # Parsing a longer body would take more time than its message is worth.
        said: object = msgspec.json.decode(raw) if len(raw) <= ERROR_BYTES_MAX else _beginning(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        said = _beginning(raw)
    message = " ".join(_message(said, levels=4).split())
    return message if len(message) <= MESSAGE_CHARS_MAX else message[: MESSAGE_CHARS_MAX - 1] + "…"


def _beginning(raw: bytes) -> str:
    return raw[: 4 * MESSAGE_CHARS_MAX].decode(errors="replace")


def reported_error(body: bytes | bytearray) -> str | None:
    """What an answer with a good status says has gone wrong, perhaps in no words; None if it is no error.

    An engine that fails after it has sent its status can say so only in the body.
    """
    if b'"error"' not in body:
        return None
    try:
        report = _REPORT.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        # Not ours to judge: the caller sees what the engine sent.
        return None
    if bytes(report.error) == b"null" and bytes(report.object) != b'"error"':
        return None
    return read_error(bytes(body))


def _message(said: object, *, levels: int) -> str:
    """The text under the first of the keys that engines use: error, message, detail, msg."""
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
