"""Scans event streams from engines and decides which events to forward.

This code runs for every read of every stream, so it must be fast. Nearly every read consists of complete events that
need no action. A few byte searches detect this, and the same bytes object is forwarded. If a read differs from an
earlier one only in its text, as tokens usually do, only the text is searched. Otherwise the bytes are split into
events, and only events that contain one of these byte sequences are parsed:

- `[DONE]` as the complete data of an event ends the stream. It is forwarded, and nothing after it is.
- An object with the top-level key `error` is an engine error. Neither it nor anything after it is forwarded. The
  gateway sends its own error event instead.
- An object with the top-level key `prompt_progress` reports how much of the prompt the engine has processed. If the
  gateway requested it but the client did not, the event is dropped and does not count as progress.
- An object with the top-level key `usage` reports the number of tokens. If it has no choices, the engine sent it
  because the gateway requested it, and the event is dropped unless the client requested it too.

The text of a response may contain any of these sequences. In JSON, a quote inside a string is escaped, so `"error"` in
a text appears as `\\"error\\"` and does not match. Other accidental matches, such as a token `error` among logprobs,
are resolved by parsing the top level.

An incomplete event is held until its end has arrived. Forwarded bytes therefore always end between two events, and an
error can be sent as a separate event. The result does not depend on how the stream is split into reads.

/v1/responses streams have different events and their own scanner (`responses_scanner.py`).
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from headgate.model.ticket import Api
from headgate.model.usage import Usage
from headgate.wire.openai_bodies import read_error
from headgate.wire.usage import read_usage

EVENT_BYTES_MAX: Final = 1024 * 1024
"""Maximum size of an event, including its boundary. A larger event ends the stream, to bound memory use."""

EVENT_LINES_MAX: Final = 10_000
"""Maximum number of lines in one event. Real events have three."""
COMMENTS_MAX: Final = 10_000
"""Maximum number of consecutive events without data. An engine that pings once a second takes hours to reach it."""
ASSEMBLED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum size of a non-streaming response that is assembled from a stream."""

# End of a line and a blank line. A carriage return before the first line feed belongs to that line.
_BOUNDARY: Final = re.compile(rb"\n\r?\n")
_BOUNDARY_BYTES_MAX: Final = 3
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_PROGRESS: Final = b'"prompt_progress"'
_TEXT: Final = re.compile(rb'"(?:content|text|reasoning|reasoning_content)": ?"([^"\n]+)"')
_SHAPE_BYTES_MAX: Final = 4096
"""Maximum size of an event whose surroundings of the text are stored."""
_NO_SHAPE: Final = -1
_LINE_FEED: Final = ord("\n")
_QUOTE: Final = ord('"')
_BRACKET: Final = ord("[")
_KEYS: Final = frozenset({b"error", b"usage", b"prompt_progress"})
"""Keys of events that are parsed, without quotes."""
_NULL: Final = msgspec.Raw(b"null")


class _Chunk(msgspec.Struct):
    """Top-level fields of an event. Values are decoded only if needed."""

    choices: msgspec.Raw = _NULL
    usage: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    object: msgspec.Raw = _NULL
    prompt_progress: msgspec.Raw = _NULL


class _ErrorBody(msgspec.Struct):
    error: dict[str, str | None]


_CHUNK: Final = msgspec.json.Decoder(_Chunk)
_ERROR: Final = msgspec.json.Decoder(_ErrorBody)


def error_event(body: bytes, api: Api = Api.CHAT, *, sequence_number: int = 0) -> bytes:
    """Converts an error body to a stream event.

    In /v1/responses streams, each event has a type and a number, and an error's fields are at the top level. The OpenAI
    SDK raises an exception only for an `error` object, so the event contains one as well.
    """
    if api is not Api.RESPONSES:
        return b"data: " + body + b"\n\n"
    error = _ERROR.decode(body).error
    event = error | {"type": "error", "sequence_number": sequence_number, "error": error}
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


class StreamScanner:
    """Scans one stream from an engine."""

    __slots__ = (
        "_comments",
        "_comments_max",
        "_drop_progress",
        "_event_bytes_max",
        "_keep_usage_chunk",
        "_shape_bytes",
        "_shape_end",
        "_shape_start",
        "_shapes_learned",
        "_tail",
        "closed",
        "done",
        "error",
        "events",
        "overlong",
        "usage",
    )

    def __init__(
        self,
        *,
        keep_usage_chunk: bool,
        drop_progress: bool = False,
        event_bytes_max: int = EVENT_BYTES_MAX,
        comments_max: int = COMMENTS_MAX,
    ) -> None:
        self.events = 0
        """Number of forwarded events with data, except `[DONE]`."""
        self.done = False
        """Whether the stream has ended successfully."""
        self.error: str | None = None
        """Message of the error event that ended the stream. None if there was no error."""
        self.usage: Usage | None = None
        """Most recent usage reported by the engine."""
        self.overlong = False
        """Whether the stream was ended because an event was too long or there were too many comments."""
        self._comments = 0
        """Number of events without data since the last one with data."""
        self._comments_max = comments_max
        self._keep_usage_chunk = keep_usage_chunk
        self._drop_progress = drop_progress
        self._event_bytes_max = event_bytes_max
        self.closed = False
        self._tail = bytearray()
        self._shape_start = self._shape_end = b""
        """Bytes before and after the text of an earlier event that needed no parsing."""
        self._shape_bytes = _NO_SHAPE
        self._shapes_learned = 0

    def feed(self, data: bytes) -> bytes:
        """Adds received bytes. Returns the bytes to forward."""
        size = len(data)
        if self._tail or self.closed or size > self._event_bytes_max:
            return self._split(data)
        text = data.removeprefix(self._shape_start).removesuffix(self._shape_end)
        # Both ends are those of an event that needed no parsing. They include the quotes around the text, so a sequence
        # that needs parsing is either the whole text in its quotes or contains one of these characters. A search for
        # a number is faster than one for a byte string.
        if (
            len(text) + self._shape_bytes == size
            and _LINE_FEED not in text
            and _QUOTE not in text
            and _BRACKET not in text
            and text not in _KEYS
        ):
            self.events += 1
            return data
        return self._search(data)

    def _search(self, data: bytes) -> bytes:
        events = _uninteresting_events(data)
        if not events or (self._drop_progress and data.find(_PROGRESS) >= 0):
            return self._split(data)
        # The limit keeps the cost low if every event has a different shape.
        if events == 1 and self._shapes_learned <= self.events >> 2 and len(data) <= _SHAPE_BYTES_MAX:
            self._learn_shape(data)
        self.events += events
        return data

    def _learn_shape(self, event: bytes) -> None:
        self._shapes_learned += 1
        text = _TEXT.search(event)
        if text is not None:
            self._shape_start, self._shape_end = event[: text.start(1)], event[text.end(1) :]
            self._shape_bytes = len(self._shape_start) + len(self._shape_end)

    def _split(self, data: bytes) -> bytes:
        if self.closed:
            return b""
        buffer = self._tail
        # A boundary may start in the held bytes, but it does not end there.
        search_from = max(0, len(buffer) - _BOUNDARY_BYTES_MAX + 1)
        buffer += data
        passed: list[bytes] = []
        start = 0
        while not self.closed and (boundary := _BOUNDARY.search(buffer, search_from)):
            event = bytes(buffer[start : boundary.end()])
            start = search_from = boundary.end()
            passed.append(self._forward(event))
        del buffer[:start]
        if not self.closed and len(buffer) >= self._event_bytes_max:
            self.overlong = self.closed = True
        if self.closed:
            buffer.clear()
        return b"".join(passed)

    def _forward(self, event: bytes) -> bytes:
        """Returns the event if it should be forwarded, otherwise empty bytes."""
        if is_overlong(event, self._event_bytes_max):
            self.overlong = self.closed = True
            return b""
        payload = payload_of(event)
        if payload is None:
            return event if self._allows_comment() else b""
        self._comments = 0
        if not _is_candidate(payload) and not (self._drop_progress and _PROGRESS in payload):
            self.events += 1
            return event
        if payload.strip() == b"[DONE]":
            self.done = self.closed = True
            return event
        return event if self._forwards_chunk(payload) else b""

    def _allows_comment(self) -> bool:
        """Counts an event without data and returns whether to forward it. Too many of them end the stream."""
        self._comments += 1
        if self._comments > self._comments_max:
            self.overlong = self.closed = True
        return not self.closed

    def _forwards_chunk(self, payload: bytes) -> bool:
        try:
            chunk = _CHUNK.decode(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            # The event is not valid JSON, so the client receives the engine's bytes unchanged.
            chunk = _Chunk()
        # Older vLLM puts the error at the top level, with `object` set to `error`.
        if bytes(chunk.error) != b"null" or bytes(chunk.object) == b'"error"':
            self._fail(read_error(payload))
            return False
        if self._drop_progress and bytes(chunk.prompt_progress) != b"null":
            return False
        if bytes(chunk.usage).startswith(b"{"):
            self.usage = read_usage(chunk.usage) or self.usage
            if not self._keep_usage_chunk and not _has_elements(chunk.choices):
                return False
        self.events += 1
        return True

    def _fail(self, message: str) -> None:
        self.error = message or "the engine sent no error message"
        self.closed = True


def _uninteresting_events(data: bytes) -> int:
    """Returns the number of events if all are complete, have one `data:` line and do not need parsing.

    Otherwise returns 0.
    """
    if not data.startswith(b"data:") or not data.endswith(b"\n\n"):
        return 0
    events = 1
    if data.find(b"\n") != len(data) - 2:
        # All events are complete one-liners if line feeds occur only in pairs and `data:` follows each pair.
        events = data.count(b"\n\n")
        if data.count(b"\n") != 2 * events or data.count(b"\n\ndata:") != events - 1:
            return 0
    return 0 if _is_candidate(data) else events


def _is_candidate(data: bytes) -> bool:
    # `find` is twice as fast as `in`.
    find = data.find
    if find(b"[DONE]") >= 0 or find(b'"error"') >= 0:
        return True
    at = find(b'"usage"')
    if at < 0:
        return False
    # Some engines put `"usage":null` in every chunk. It needs no parsing, and usually not even the regex.
    alone = data.startswith(b":null", at + 7) and find(b'"usage"', at + 12) < 0
    return not alone and _USAGE.search(data) is not None


def is_overlong(event: bytes, bytes_max: int) -> bool:
    # An event can have too many lines only if it has more bytes than EVENT_LINES_MAX.
    return len(event) > bytes_max or (len(event) > EVENT_LINES_MAX and event.count(b"\n") > EVENT_LINES_MAX)


class EventSplitter:
    """Splits a stream into the data of its events, in linear time for any read size. Buffers at most one event."""

    __slots__ = ("_comments", "_comments_max", "_event_bytes_max", "_tail", "overlong")

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX, comments_max: int = COMMENTS_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._comments_max = comments_max
        self._comments = 0
        self._tail = bytearray()
        self.overlong = False
        """Whether an event was too long or there were too many comments. If so, the rest of the stream is ignored."""

    @property
    def held_bytes(self) -> int:
        return len(self._tail)

    def split(self, data: bytes) -> Iterator[bytes]:
        """Adds received bytes. Yields the data of each event that they complete."""
        buffer = self._tail
        search_from = max(0, len(buffer) - _BOUNDARY_BYTES_MAX + 1)
        buffer += data
        start = 0
        try:
            while not self.overlong and (boundary := _BOUNDARY.search(buffer, search_from)):
                event = bytes(buffer[start : boundary.end()])
                start = search_from = boundary.end()
                if (payload := self._payload(event)) is not None:
                    yield payload
        finally:
            del buffer[:start]
            self.overlong = self.overlong or len(buffer) >= self._event_bytes_max
            if self.overlong:
                buffer.clear()

    def _payload(self, event: bytes) -> bytes | None:
        if is_overlong(event, self._event_bytes_max):
            self.overlong = True
            return None
        payload = payload_of(event)
        self._comments = self._comments + 1 if payload is None else 0
        self.overlong = self._comments > self._comments_max
        return payload


def payload_of(event: bytes) -> bytes | None:
    """Returns an event's data lines, joined, or None if it has none, as in a comment."""
    values = [
        line[5:].removeprefix(b" ").removesuffix(b"\r")
        for line in event.split(b"\n")
        if line.startswith(b"data:") or line.rstrip(b"\r") == b"data"
    ]
    return b"\n".join(values) if values else None


def _has_elements(choices: msgspec.Raw) -> bool:
    raw = bytes(choices)
    return raw.startswith(b"[") and raw[1:].lstrip()[:1] != b"]"
