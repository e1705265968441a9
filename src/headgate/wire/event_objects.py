"""Decodes the top-level fields of the objects in event streams.

An event that is not valid JSON has no fields. The client receives the engine's bytes unchanged.
"""

from typing import Final

import msgspec

from headgate.model.usage import Usage
from headgate.wire.usage import read_usage

_NULL: Final = msgspec.Raw(b"null")
_INVALID: Final = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class StreamObject(msgspec.Struct):
    """Top-level fields of an event in a chat or completion stream. Values are decoded only if needed."""

    choices: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    object: msgspec.Raw = _NULL
    prompt_progress: msgspec.Raw = _NULL


class ResponsesEvent(msgspec.Struct):
    """Top-level fields of an event in a /v1/responses stream. Values are decoded only if needed."""

    type: msgspec.Raw = _NULL
    response: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    object: msgspec.Raw = _NULL


class _Response(msgspec.Struct):
    usage: msgspec.Raw = _NULL


class _ErrorBody(msgspec.Struct):
    error: dict[str, str | None]


_STREAM_OBJECT: Final = msgspec.json.Decoder(StreamObject)
_RESPONSES_EVENT: Final = msgspec.json.Decoder(ResponsesEvent)
_RESPONSE: Final = msgspec.json.Decoder(_Response)
_ERROR_BODY: Final = msgspec.json.Decoder(_ErrorBody)


def read_stream_object(payload: bytes) -> StreamObject:
    try:
        return _STREAM_OBJECT.decode(payload)
    except _INVALID:
        return StreamObject()


def read_responses_event(payload: bytes) -> ResponsesEvent:
    try:
        return _RESPONSES_EVENT.decode(payload)
    except _INVALID:
        return ResponsesEvent()


def read_response_usage(response: msgspec.Raw) -> Usage | None:
    """Returns the usage in the response object of an event. None if there is none."""
    try:
        return read_usage(_RESPONSE.decode(response).usage)
    except _INVALID:
        return None


def read_error_fields(body: bytes) -> dict[str, str | None]:
    """Returns the fields of an error body of the gateway."""
    return _ERROR_BODY.decode(body).error
