"""What would an answer have been, had it not been streamed?

An engine that notices only in streams that nobody waits any more is asked for a stream, and its chunks are joined here
into the object that the caller expects. Values stay the bytes that they came as: texts are joined between their quotes
and arrays between their brackets, and of anything else the last word counts.

Nothing comes out before `[DONE]`, since half an answer is none. An error event becomes the answer that the engine would
have given had it failed before its first byte: its own words, under the status that it names.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from headgate.model.ticket import Api
from headgate.wire.sse import payload_of

JOINED_BYTES_MAX: Final = 64 * 1024 * 1024
"""As much is read of one stream, which is more than is kept of it: about a quarter of a million tokens, or twenty
thousand with twenty log probabilities each."""

_BOUNDARY: Final = re.compile(rb"\n\r?\n")
_BOUNDARY_BYTES_MAX: Final = 3

_OBJECTS: Final = {Api.CHAT: b'"chat.completion"', Api.COMPLETIONS: b'"text_completion"'}
_OF_CHUNKS: Final = frozenset({"choices", "object", "prompt_progress"})
"""Top-level fields that a whole answer has otherwise, or not at all."""

Fields = dict[str, msgspec.Raw]
Pieces = dict[str, list[bytes]]
"""What has come of each field; nothing, if it was only ever null."""

_FIELDS: Final = msgspec.json.Decoder(Fields)
_LIST: Final = msgspec.json.Decoder(list[Fields])
_INDEX: Final = msgspec.json.Decoder(int)
_ENCODER: Final = msgspec.json.Encoder()
_ZERO: Final = msgspec.Raw(b"0")
_NULL: Final = msgspec.Raw(b"null")


class BrokenStream(Exception):
    """The stream holds no whole answer. The message says why."""


@dataclass(frozen=True, slots=True)
class Joined:
    status: int
    body: bytes


class Joiner:
    """Follows one stream and holds what it says."""

    __slots__ = ("_api", "_bytes_left", "_choices", "_closed", "_error", "_problem", "_tail", "_top")

    def __init__(self, api: Api, *, bytes_max: int = JOINED_BYTES_MAX) -> None:
        self._api = api
        self._bytes_left = bytes_max
        self._tail = bytearray()
        self._top: Pieces = {}
        self._choices: dict[int, _Choice] = {}
        self._closed = False
        self._error: Joined | None = None
        self._problem: str | None = "the stream ended before its last event"

    def take(self, data: bytes) -> bool:
        """True when nothing further matters."""
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self._close("the engine sent a longer answer than can be joined")
        buffer = self._tail
        # A boundary may have begun in the bytes held, but it did not end there.
        search_from = max(0, len(buffer) - _BOUNDARY_BYTES_MAX + 1)
        buffer += data
        start = 0
        while not self._closed and (boundary := _BOUNDARY.search(buffer, search_from)):
            payload = payload_of(bytes(buffer[start : boundary.end()]))
            start = search_from = boundary.end()
            if payload is not None:
                self._take_event(payload.strip())
        del buffer[:start]
        if self._closed:
            buffer.clear()
        return self._closed

    def conclude(self) -> Joined:
        """The answer that the stream held. Raises `BrokenStream`."""
        if self._error is not None:
            return self._error
        if self._problem is not None:
            raise BrokenStream(self._problem)
        choices = [choice.whole(index, self._api) for index, choice in sorted(self._choices.items())]
        top = {"choices": _array(choices), "object": msgspec.Raw(_OBJECTS[self._api])}
        return Joined(200, _ENCODER.encode(top | _whole(self._top)))

    def _close(self, problem: str | None) -> None:
        self._closed, self._problem = True, problem

    def _take_event(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._close(None if self._choices else "the stream ended without an answer")
            return
        if payload == b"null":
            # llama.cpp begins so where there are several prompts.
            return
        try:
            self._take_chunk(_FIELDS.decode(payload), payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            self._close("the engine sent an event that is no part of an answer")

    def _take_chunk(self, chunk: Fields, payload: bytes) -> None:
        # Older vLLM puts the error at the top level and marks it so.
        if bytes(chunk.get("error", _NULL)) != b"null" or bytes(chunk.get("object", _NULL)) == b'"error"':
            self._error = Joined(_status(chunk), payload)
            self._close(None)
            return
        for choice in _list(chunk.get("choices", _NULL)):
            self._choices.setdefault(_index(choice), _Choice()).take(choice)
        for name, value in chunk.items():
            if name not in _OF_CHUNKS:
                _keep(self._top, name, value)


class _Choice:
    """One of the answers to one request."""

    __slots__ = ("_calls", "_fields", "_function", "_logprobs", "_message")

    def __init__(self) -> None:
        self._fields: Pieces = {"finish_reason": []}
        self._message: Pieces = {"role": [b'"assistant"'], "content": []}
        self._logprobs: Pieces | None = None
        self._calls: dict[int, _ToolCall] = {}
        self._function: Pieces = {}

    def take(self, chunk: Fields) -> None:
        for name, value in chunk.items():
            match name:
                case "index":
                    pass
                case "text":
                    _append(self._fields, name, value)
                case "delta":
                    self._take_delta(_object(value))
                case "logprobs":
                    _keep(self._fields, name, _NULL)
                    if bytes(value) != b"null":
                        self._logprobs = self._logprobs or {}
                        for each, values in _object(value).items():
                            _append(self._logprobs, each, values)
                case _:
                    _keep(self._fields, name, value)

    def _take_delta(self, delta: Fields) -> None:
        for name, value in delta.items():
            match name:
                case "role":
                    _keep(self._message, name, value)
                case "tool_calls":
                    for call in _list(value):
                        self._calls.setdefault(_index(call), _ToolCall()).take(call)
                case "function_call":
                    _take_function(self._function, _object(value))
                case _:
                    _append(self._message, name, value)

    def whole(self, index: int, api: Api) -> msgspec.Raw:
        choice = {"index": msgspec.Raw(str(index).encode())} | _whole(self._fields)
        if self._logprobs is not None:
            choice["logprobs"] = _raw(_whole(self._logprobs))
        if api is Api.COMPLETIONS:
            return _raw({"text": msgspec.Raw(b'""')} | choice)
        message = {name: value for name, value in _whole(self._message).items() if bytes(value) != b"null"}
        # Where there is nothing to say llama.cpp says so with an empty text, beside tool calls too.
        message = {"content": msgspec.Raw(b'""')} | message
        if self._calls:
            message["tool_calls"] = _array(call.whole() for _, call in sorted(self._calls.items()))
        if self._function:
            message["function_call"] = _raw(_whole(self._function))
        return _raw(choice | {"message": _raw(message)})


class _ToolCall:
    __slots__ = ("_fields", "_function")

    def __init__(self) -> None:
        self._fields: Pieces = {}
        self._function: Pieces = {}

    def take(self, chunk: Fields) -> None:
        for name, value in chunk.items():
            if name == "function":
                _take_function(self._function, _object(value))
            elif name != "index":
                _keep(self._fields, name, value)

    def whole(self) -> msgspec.Raw:
        return _raw(_whole(self._fields) | {"function": _raw(_whole(self._function))})


def _take_function(function: Pieces, chunk: Fields) -> None:
    for name, value in chunk.items():
        (_append if name == "arguments" else _keep)(function, name, value)


# Pieces


def _keep(pieces: Pieces, name: str, value: msgspec.Raw) -> None:
    """The last word counts, unless it is none: some engines repeat the fields of a tool call with empty texts."""
    raw = bytes(value)
    if raw == b"null" or (raw == b'""' and pieces.get(name)):
        pieces.setdefault(name, [])
    else:
        pieces[name] = [raw]


def _append(pieces: Pieces, name: str, value: msgspec.Raw) -> None:
    raw = bytes(value)
    opening = raw[:1]
    known = pieces.get(name)
    if known and opening in b'"[' and known[0][:1] == opening:
        known.append(raw)
    else:
        _keep(pieces, name, value)


def _whole(pieces: Pieces) -> Fields:
    return {name: msgspec.Raw(_joined(each)) for name, each in pieces.items()}


def _joined(pieces: list[bytes]) -> bytes:
    match len(pieces):
        case 0:
            return b"null"
        case 1:
            return pieces[0]
        case _ if pieces[0].startswith(b'"'):
            return b'"' + b"".join(piece[1:-1] for piece in pieces) + b'"'
        case _:
            inner = (piece[1:-1].strip() for piece in pieces)
            return b"[" + b",".join(each for each in inner if each) + b"]"


# JSON


def _object(value: msgspec.Raw) -> Fields:
    return {} if bytes(value) == b"null" else _FIELDS.decode(value)


def _list(value: msgspec.Raw) -> list[Fields]:
    return [] if bytes(value) == b"null" else _LIST.decode(value)


def _index(fields: Fields) -> int:
    return _INDEX.decode(fields.get("index", _ZERO))


def _status(chunk: Fields) -> int:
    """What an error would have been answered with; engines name it in its code."""
    error = chunk.get("error", _NULL)
    fields = _FIELDS.decode(error) if bytes(error).startswith(b"{") else chunk
    try:
        code = _INDEX.decode(fields.get("code", _ZERO))
    except msgspec.DecodeError:
        return 500
    return code if 400 <= code < 600 else 500


def _raw(fields: Fields) -> msgspec.Raw:
    return msgspec.Raw(_ENCODER.encode(fields))


def _array(values: Iterable[msgspec.Raw]) -> msgspec.Raw:
    return msgspec.Raw(_ENCODER.encode(list(values)))
