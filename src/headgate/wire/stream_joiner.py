"""Joins the chunks of a stream into the response that the engine would have sent without streaming.

The gateway may request a stream even if the client wants a non-streaming response. This lets the gateway see tokens as
they arrive, and some engines detect a disconnected client only in streams. The chunks are joined into the object that
the client expects. The received bytes are kept: texts are joined inside their quotes, and arrays inside their brackets.
For any other type, the last value is used.

Nearly every event in a response differs from the previous one only in its text. Such an event is not parsed: if all
bytes around the text are the same and the text is valid inside a JSON string, only the text is appended.

Nothing is returned until `[DONE]`, because a partial response is not valid. An error event becomes the error response
that the engine would have sent before its first byte, with the engine's message and status.
"""

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from headgate.model.ticket import Api
from headgate.wire.event_splitter import EventSplitter
from headgate.wire.response_shape import AS_STREAMED, ResponseShape, fill_missing
from headgate.wire.sse import ASSEMBLED_BYTES_MAX

JOINED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum bytes read from one stream: about 250,000 tokens, or 20,000 with twenty log probabilities each."""

EVENT_BYTES_MAX: Final = 128 * 1024
"""Maximum size of an event in a joined stream. Unlike in a relayed stream, each event is parsed in one event loop
iteration. One token with twenty log probabilities takes about 3 KB.
"""
CHOICES_MAX: Final = 2048
TOOL_CALLS_MAX: Final = 1024
"""Maximum number of tool calls in one choice."""
FIELDS_MAX: Final = 64
"""Maximum number of fields in one object. Each field uses many times its size in memory."""
PIECES_MAX: Final = 32 * 1024
"""Maximum number of fields in one response, which is encoded in one event loop iteration."""
_OBJECT_PIECES: Final = 8
"""Number of fields that each choice or tool call counts as."""

_OBJECTS: Final = {Api.CHAT: b'"chat.completion"', Api.COMPLETIONS: b'"text_completion"'}
_CHUNK_FIELDS: Final = frozenset({"choices", "object", "prompt_progress"})
"""Top-level chunk fields that are different or missing in a non-streaming response."""

Fields = dict[str, msgspec.Raw]
Pieces = dict[str, "_Value | None"]
"""Received value of each field. None if it was always null."""

Whole = dict[str, object]
"""Object to encode. It is encoded only once, at the end, because each encoding may copy many megabytes of text."""

_FIELDS: Final = msgspec.json.Decoder(Fields)
_LIST: Final = msgspec.json.Decoder(list[Fields])
_INDEX: Final = msgspec.json.Decoder(int)
_ENCODER: Final = msgspec.json.Encoder()
_ZERO: Final = msgspec.Raw(b"0")
_NULL: Final = msgspec.Raw(b"null")
_EMPTY: Final = (b"null", b'""', b"[]")
_TEXT_STARTS: Final = {Api.CHAT: b'"content":"', Api.COMPLETIONS: b'"text":"'}
_INNER_TEXT: Final = re.compile(rb"""[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+""")
"""Characters allowed inside a JSON string."""

_COMPARED_BYTES_MIN: Final = 32
"""Mean size of events that are compared with the previous one. Shorter ones contain no text, and may be many."""


class BrokenStream(Exception):
    """The stream does not contain a complete response. The message gives the reason."""


class StreamDiffers(Exception):
    """The joined response may differ from the engine's non-streaming response."""


@dataclass(frozen=True, slots=True)
class JoinedBody:
    status: int
    body: bytes


class _Template(NamedTuple):
    """Bytes around the text in the latest event, from `data:` to the end of the event."""

    before: bytes
    after: bytes
    text: "_Value"


class StreamJoiner:
    """Joins the chunks of one stream."""

    __slots__ = (
        "_api",
        "_bytes_left",
        "_choices",
        "_closed",
        "_cutter",
        "_differs",
        "_error",
        "_fields",
        "_problem",
        "_shape",
        "_template",
        "_text_start",
        "_top",
        "events",
    )

    def __init__(
        self,
        api: Api,
        shape: ResponseShape = AS_STREAMED,
        *,
        bytes_max: int = JOINED_BYTES_MAX,
        assembled_bytes_max: int = ASSEMBLED_BYTES_MAX,
    ) -> None:
        """`bytes_max` limits the bytes read from the stream. `assembled_bytes_max` limits the bytes that are kept."""
        self._api = api
        self._shape = shape
        self._differs = False
        self._text_start = _TEXT_STARTS[api]
        self._template: _Template | None = None
        self.events = 0
        """Number of events that added output. Usage, a role without content, and prompt progress are excluded."""
        self._bytes_left = bytes_max
        self._fields = _FieldStore(assembled_bytes_max)
        self._cutter = EventSplitter(event_bytes_max=EVENT_BYTES_MAX)
        self._top: Pieces = {}
        self._choices: dict[int, _Choice] = {}
        self._closed = False
        self._error: JoinedBody | None = None
        self._problem: str | None = "the stream ended before its last event"

    def feed(self, data: bytes) -> bool:
        """Adds received bytes. Returns True when the stream is complete or has failed."""
        if self._closed:
            return True
        self._bytes_left -= len(data)
        if self._bytes_left < 0:
            self._close("the engine's stream is too long to assemble into one response")
            return True
        if data.find(b"\n\n") == len(data) - 2 or self._cutter.held_bytes:
            return self._feed_event(data)
        if data.count(b"\n\n") > len(data) // _COMPARED_BYTES_MIN:
            return self._feed_parsed(data)
        # The data contains several events or parts of events. Each is compared with the previous one separately.
        *whole, rest = data.split(b"\n\n")
        for event in whole:
            if self._feed_event(event + b"\n\n"):
                return True
        return bool(rest) and self._feed_event(rest)

    def _feed_event(self, data: bytes) -> bool:
        if self._template is not None and self._append_text(data, *self._template):
            return self._closed
        self._template = None
        return self._feed_parsed(data)

    def _append_text(self, data: bytes, before: bytes, after: bytes, text: "_Value") -> bool:
        """Adds an event that differs from the latest one only in its text. Returns False for all other events."""
        start, end = len(before), len(data) - len(after)
        if len(data) > EVENT_BYTES_MAX or start > end or not (data.startswith(before) and data.endswith(after)):
            return False
        if _INNER_TEXT.fullmatch(data, start, end) is None:
            return False
        if start < end:
            self.events += 1
            try:
                self._fields.extend(text, data[start:end])
            except BrokenStream as broken:
                self._close(str(broken))
        return True

    def _feed_parsed(self, data: bytes) -> bool:
        is_fresh, events = not self._cutter.held_bytes, self.events
        for payload in self._cutter.split(data):
            self._add_event(payload.strip())
            if self._closed:
                return True
        if self._cutter.overlong:
            self._close("the engine sent an event that is too long")
        elif is_fresh and self.events == events + 1:
            self._template = self._template_of(data)
        return self._closed

    def _template_of(self, data: bytes) -> _Template | None:
        """Returns the template for a single event with one text in one choice, or None for all other events."""
        alone = data.startswith(b"data: {") and data.endswith(b"}\n\n") and data.find(b"\n") == len(data) - 2
        if not alone or data.count(self._text_start) != 1 or data.count(b'"index":') != 1:
            return None
        before, start, rest = data.partition(self._text_start)
        choices = _LIST.decode(_FIELDS.decode(data[len(b"data: ") :])["choices"])
        text = self._choices[_index(choices[0])].text_alone(choices[0], self._api)
        inner = _INNER_TEXT.match(rest)
        if len(choices) > 1 or text is None or inner is None:
            return None
        return _Template(before + start, rest[inner.end() :], text)

    def finish(self) -> JoinedBody:
        """Returns the joined response. Raises `BrokenStream` or `StreamDiffers`."""
        if self._differs:
            raise StreamDiffers
        if self._error is not None:
            return self._error
        if self._problem is not None:
            raise BrokenStream(self._problem)
        shape = self._shape
        choices = [choice.whole(index, self._api, shape) for index, choice in sorted(self._choices.items())]
        top: Whole = {"choices": choices, "object": msgspec.Raw(_OBJECTS[self._api])}
        top = fill_missing(top | _whole(self._top), shape.top)
        shape.complete_usage(top)
        return JoinedBody(200, _ENCODER.encode(top))

    def _close(self, problem: str | None) -> None:
        self._closed, self._problem = True, problem

    def _add_event(self, payload: bytes) -> None:
        if payload == b"[DONE]":
            self._close(None if self._choices else "the stream ended without a response")
            return
        if payload == b"null":
            # With several prompts, llama.cpp starts the stream with null.
            return
        try:
            self._add_chunk(_FIELDS.decode(payload), payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            self._close("the engine sent an invalid event")
        except StreamDiffers:
            self._differs = self._closed = True
        except BrokenStream as broken:
            self._close(str(broken))

    def _add_chunk(self, chunk: Fields, payload: bytes) -> None:
        # Older vLLM puts the error at the top level, with `object` set to `error`.
        if bytes(chunk.get("error", _NULL)) != b"null" or bytes(chunk.get("object", _NULL)) == b'"error"':
            self._error = JoinedBody(_status(chunk), payload)
            self._close(None)
            return
        kept = self._fields
        adds = False
        for choice in _list(chunk.get("choices", _NULL), CHOICES_MAX, "choices"):
            index = _index(choice)
            if (known := self._choices.get(index)) is None:
                _check_number(len(self._choices), CHOICES_MAX, "choices")
                known = self._choices[index] = _Choice(kept, self._shape.differing_fields)
            adds = known.add(choice) or adds
        self.events += adds
        for name, value in chunk.items():
            if name not in _CHUNK_FIELDS:
                kept.keep_last(self._top, name, value)


class _Choice:
    """One choice of the response."""

    __slots__ = ("_calls", "_fields", "_function", "_kept", "_logprobs", "_message", "_unequal")

    def __init__(self, kept: "_FieldStore", unequal: frozenset[str]) -> None:
        kept.count_pieces(_OBJECT_PIECES)
        self._kept = kept
        self._unequal = unequal
        self._fields: Pieces = {"finish_reason": None}
        self._message: Pieces = {"role": _Value(b'"assistant"'), "content": None}
        self._logprobs: Pieces | None = None
        self._calls: dict[int, _ToolCall] = {}
        self._function: Pieces = {}

    def add(self, chunk: Fields) -> bool:
        """Adds the chunk. Returns whether it added output."""
        kept, adds = self._kept, False
        for name, value in chunk.items():
            match name:
                case "index":
                    pass
                case "text":
                    adds = bytes(value) not in _EMPTY or adds
                    kept.append(self._fields, name, value)
                case "delta":
                    adds = self._add_delta(_object(value)) or adds
                case "logprobs":
                    kept.keep_last(self._fields, name, _NULL)
                    if bytes(value) != b"null":
                        adds = True
                        self._logprobs = self._logprobs or {}
                        for each, values in _object(value).items():
                            kept.append(self._logprobs, each, values)
                case _:
                    kept.keep_last(self._fields, name, value)
        return adds

    def text_alone(self, chunk: Fields, api: Api) -> "_Value | None":
        """Returns the text that the chunk extended, or None if the chunk has more than text."""
        text: _Value | None = None
        if bytes(chunk.get("logprobs", _NULL)) != b"null":
            return None
        if api is Api.COMPLETIONS and "delta" not in chunk:
            text = self._fields.get("text")
        elif api is Api.CHAT and "text" not in chunk and list(_object(chunk.get("delta", _NULL))) == ["content"]:
            text = self._message.get("content")
        return text if text is not None and text.raw.startswith(b'"') else None

    def _add_delta(self, delta: Fields) -> bool:
        """Adds the delta. Returns whether it added output. Raises `StreamDiffers`."""
        adds = False
        for name, value in delta.items():
            if name == "role":
                self._kept.keep_last(self._message, name, value)
                continue
            if bytes(value) not in _EMPTY:
                adds = True
                if name in self._unequal:
                    raise StreamDiffers
            match name:
                case "tool_calls":
                    for call in _list(value, TOOL_CALLS_MAX, "tool calls"):
                        self._call(_index(call)).add(call)
                case "function_call":
                    self._kept.add_function(self._function, _object(value))
                case _:
                    self._kept.append(self._message, name, value)
        return adds

    def _call(self, index: int) -> "_ToolCall":
        if (known := self._calls.get(index)) is None:
            _check_number(len(self._calls), TOOL_CALLS_MAX, "tool calls")
            known = self._calls[index] = _ToolCall(self._kept)
        return known

    def whole(self, index: int, api: Api, shape: ResponseShape) -> Whole:
        choice: Whole = {"index": msgspec.Raw(str(index).encode())} | _whole(self._fields)
        if self._logprobs is not None:
            choice["logprobs"] = _whole(self._logprobs)
        fill_missing(choice, shape.choice)
        if api is Api.COMPLETIONS:
            return {"text": ""} | choice
        # If there is no content, llama.cpp sends an empty string, even with tool calls.
        message: Whole = {"content": ""}
        message |= _whole({name: value for name, value in self._message.items() if value is not None})
        if self._calls:
            message["tool_calls"] = [call.whole() for _, call in sorted(self._calls.items())]
        if self._function:
            message["function_call"] = _whole(self._function)
        return choice | {"message": fill_missing(message, shape.message)}


class _ToolCall:
    __slots__ = ("_fields", "_function", "_kept")

    def __init__(self, kept: "_FieldStore") -> None:
        kept.count_pieces(_OBJECT_PIECES)
        self._kept = kept
        self._fields: Pieces = {}
        self._function: Pieces = {}

    def add(self, chunk: Fields) -> None:
        for name, value in chunk.items():
            if name == "function":
                self._kept.add_function(self._function, _object(value))
            elif name != "index":
                self._kept.keep_last(self._fields, name, value)

    def whole(self) -> Whole:
        return _whole(self._fields) | {"function": _whole(self._function)}


# Field values


class _Value:
    """The part of a field received so far. Texts and arrays grow in place, which leaves little work at the end."""

    __slots__ = ("_inner", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        """First received piece."""
        self._inner: bytearray | None = None
        """Content of all pieces, between their quotes or brackets. None if there is only one piece."""

    @property
    def size_bytes(self) -> int:
        return len(self.raw) if self._inner is None else len(self._inner)

    def append(self, raw: bytes) -> None:
        is_text = raw.startswith(b'"')
        if self._inner is None:
            self._inner = bytearray(self.raw[1:-1] if is_text else self.raw[1:-1].strip())
        further = raw[1:-1] if is_text else raw[1:-1].strip()
        if not is_text and self._inner and further:
            self._inner += b","
        self._inner += further

    def extend(self, inner: bytes) -> None:
        """Appends the content of another JSON string to a text."""
        if self._inner is None:
            self._inner = bytearray(self.raw[1:-1])
        self._inner += inner

    def whole(self) -> bytes:
        if self._inner is None:
            return self.raw
        return b"%b%b%b" % (self.raw[:1], self._inner, b'"' if self.raw.startswith(b'"') else b"]")


class _FieldStore:
    """Stores the fields of one response, within the limits."""

    __slots__ = ("_bytes_left", "_pieces")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_left = bytes_max
        self._pieces = 0

    def count_pieces(self, pieces: int) -> None:
        _check_number(self._pieces, PIECES_MAX, "fields")
        self._pieces += pieces

    def keep_last(self, pieces: Pieces, name: str, value: msgspec.Raw) -> None:
        """Keeps the last non-empty value. Some engines repeat the fields of a tool call with empty strings."""
        raw = bytes(value)
        if name not in pieces:
            _check_number(len(pieces), FIELDS_MAX, "fields")
            self.count_pieces(1)
        known = pieces.get(name)
        if raw == b"null" or (raw == b'""' and known):
            pieces.setdefault(name, None)
        else:
            self._count(len(raw) - (known.size_bytes if known else 0))
            pieces[name] = _Value(raw)

    def append(self, pieces: Pieces, name: str, value: msgspec.Raw) -> None:
        raw = bytes(value)
        opening = raw[:1]
        known = pieces.get(name)
        if known is not None and opening in b'"[' and known.raw[:1] == opening:
            self._count(len(raw))
            known.append(raw)
        else:
            self.keep_last(pieces, name, value)

    def extend(self, text: _Value, inner: bytes) -> None:
        self._count(len(inner))
        text.extend(inner)

    def add_function(self, pieces: Pieces, chunk: Fields) -> None:
        for name, value in chunk.items():
            (self.append if name == "arguments" else self.keep_last)(pieces, name, value)

    def _count(self, size: int) -> None:
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise BrokenStream("the engine's response is too long to assemble")


def _check_number(number: int, most: int, things: str) -> None:
    if number >= most:
        raise BrokenStream(f"the engine's response has more than {most} {things}")


def _whole(pieces: Pieces) -> Whole:
    return {name: msgspec.Raw(b"null" if value is None else value.whole()) for name, value in pieces.items()}


# JSON


def _object(value: msgspec.Raw) -> Fields:
    return {} if bytes(value) == b"null" else _FIELDS.decode(value)


def _list(value: msgspec.Raw, most: int, things: str) -> list[Fields]:
    """Decodes a list. Raises `BrokenStream` if it has more than `most` elements."""
    if bytes(value) == b"null":
        return []
    elements = _LIST.decode(value)
    _check_number(len(elements) - 1, most, things)
    return elements


def _index(fields: Fields) -> int:
    return _INDEX.decode(fields.get("index", _ZERO))


def _status(chunk: Fields) -> int:
    """Returns the HTTP status for an error event. Engines put it in `code`."""
    error = chunk.get("error", _NULL)
    fields = _FIELDS.decode(error) if bytes(error).startswith(b"{") else chunk
    try:
        code = _INDEX.decode(fields.get("code", _ZERO))
    except msgspec.DecodeError:
        return 500
    return code if 400 <= code < 600 else 500
