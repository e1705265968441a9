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


class TranscriptEvent(msgspec.Struct):
    """Top-level fields of an event in a stream of a transcript. Values are decoded only if needed."""

    type: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL


class ResponsesEvent(msgspec.Struct):
    """Top-level fields of an event in a /v1/responses stream. Values are decoded only if needed."""

    type: msgspec.Raw = _NULL
    response: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    object: msgspec.Raw = _NULL


class MessagesEvent(msgspec.Struct):
    """Top-level fields of an event in a /v1/messages stream. Values are decoded only if needed."""

    type: msgspec.Raw = _NULL
    message: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL


class _Response(msgspec.Struct):
    usage: msgspec.Raw = _NULL


class _ErrorBody(msgspec.Struct):
    error: dict[str, str | None]


_OBJECT_BYTES_MIN: Final = len(b'{"error":0}')
"""Size of the shortest object with a field that matters. Shorter data is not decoded, because errors are slow."""
_STREAM_OBJECT: Final = msgspec.json.Decoder(StreamObject)
_TRANSCRIPT_EVENT: Final = msgspec.json.Decoder(TranscriptEvent)
_RESPONSES_EVENT: Final = msgspec.json.Decoder(ResponsesEvent)
_MESSAGES_EVENT: Final = msgspec.json.Decoder(MessagesEvent)
_RESPONSE: Final = msgspec.json.Decoder(_Response)
_USAGE_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER: Final = msgspec.json.Encoder()
_ERROR_BODY: Final = msgspec.json.Decoder(_ErrorBody)


def read_stream_object(payload: bytes) -> StreamObject:
    try:
        return _STREAM_OBJECT.decode(payload)
    except _INVALID:
        return StreamObject()


def read_transcript_event(payload: bytes) -> TranscriptEvent:
    try:
        return _TRANSCRIPT_EVENT.decode(payload)
    except _INVALID:
        return TranscriptEvent()


def read_responses_event(payload: bytes) -> ResponsesEvent:
    if not _may_be_object(payload):
        return ResponsesEvent()
    try:
        return _RESPONSES_EVENT.decode(payload)
    except _INVALID:
        return ResponsesEvent()


def read_messages_event(payload: bytes) -> MessagesEvent:
    if not _may_be_object(payload):
        return MessagesEvent()
    try:
        return _MESSAGES_EVENT.decode(payload)
    except _INVALID:
        return MessagesEvent()


def _may_be_object(payload: bytes) -> bool:
    return len(payload) >= _OBJECT_BYTES_MIN and (payload.startswith(b"{") or payload.lstrip().startswith(b"{"))


def read_message_usage(start: msgspec.Raw, end: msgspec.Raw) -> Usage | None:
    """Returns the usage of a message from those in its first event and in its last one, which may be partial.

    The counts in the last event are totals. None if the last event has none.
    """
    try:
        last = _USAGE_FIELDS.decode(end)
        begun = _NULL if bytes(start) == b"null" else _RESPONSE.decode(start).usage
        first = {} if bytes(begun) == b"null" else _USAGE_FIELDS.decode(begun)
    except _INVALID:
        return None
    told = {name: value for name, value in last.items() if bytes(value) != b"null"}
    return read_usage(_ENCODER.encode(first | told))


def read_response_usage(response: msgspec.Raw) -> Usage | None:
    """Returns the usage in the response object of an event. None if there is none."""
    try:
        return read_usage(_RESPONSE.decode(response).usage)
    except _INVALID:
        return None


def read_error_fields(body: bytes) -> dict[str, str | None]:
    """Returns the fields of an error body of the gateway."""
    return _ERROR_BODY.decode(body).error
