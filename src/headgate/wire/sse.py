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

/v1/responses and /v1/messages streams have different events and their own scanners (`holding_scanner.py`,
`responses_scanner.py`, `messages_scanner.py`).
"""

import re
from itertools import islice
from typing import Final

import msgspec

from headgate.model.ticket import Api
from headgate.model.usage import Usage
from headgate.wire.chunk_sizes import CHUNKS, END_OF_CHUNK, READ_BYTES_MAX
from headgate.wire.event_objects import read_error_fields, read_stream_object
from headgate.wire.openai_bodies import whole_error
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
BOUNDARY: Final = re.compile(rb"\n\r?\n")
BOUNDARY_BYTES_MAX: Final = 3
WITHOUT_DATA: Final = re.compile(rb"(?:(?!data)[^\n]*+\n\r?\n)++")
"""Events of one line that is not data, such as comments. They are counted together, because they may be tiny."""
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


def error_event(body: bytes, api: Api = Api.CHAT, *, sequence_number: int = 0) -> bytes:
    """Converts an error body to a stream event.

    In /v1/responses streams, each event has a type and a number, and an error's fields are at the top level. The OpenAI
    SDK raises an exception only for an `error` object, so the event contains one as well. In /v1/messages streams, the
    event has a name, and the body already contains its type.
    """
    if api is Api.MESSAGES:
        return b"event: error\ndata: " + body + b"\n\n"
    if api is not Api.RESPONSES:
        return b"data: " + body + b"\n\n"
    error = read_error_fields(body)
    event = error | {"type": "error", "sequence_number": sequence_number, "error": error}
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


class StreamScanner:
    """Scans one stream from an engine."""

    __slots__ = (
        "_chunk_bytes",
        "_chunk_end",
        "_chunk_start",
        "_comments",
        "_comments_counted_at",
        "_comments_max",
        "_drop_progress",
        "_event_bytes_max",
        "_holds_bytes",
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
        """Whole message of the error event that ended the stream. None if there was no error."""
        self.usage: Usage | None = None
        """Most recent usage reported by the engine."""
        self.overlong = False
        """Whether the stream was ended because an event was too long or there were too many comments."""
        self._comments = 0
        """Number of events without data since the last one with data."""
        self._comments_counted_at: int = 0
        """Value of `events` when the last comment was counted. Forwarding an event does not reset `_comments`, because
        it happens much more often.
        """
        self._comments_max = comments_max
        self._keep_usage_chunk = keep_usage_chunk
        self._drop_progress = drop_progress
        self._event_bytes_max = event_bytes_max
        self.closed = False
        self._tail = bytearray()
        self._holds_bytes = False
        """Whether the start of an event is held until its end has arrived."""
        self._shape_start = self._shape_end = b""
        """Bytes before and after the text of an earlier event that needed no parsing."""
        self._shape_bytes = _NO_SHAPE
        self._shapes_learned = 0
        self._chunk_start = self._chunk_end = b""
        """Bytes before and after the text in an HTTP chunk of `_chunk_bytes` that contains such an event."""
        self._chunk_bytes = 0

    def passes_chunk(self, chunk: bytes) -> bool:
        """Returns whether the HTTP chunk is an event that differs from an earlier one only in its text.

        Such an event is counted and can be forwarded in its chunk. For all others, call `feed` with the chunk's data.
        """
        size = len(chunk)
        if size != self._chunk_bytes:
            self._expect_chunk(size)
        start, end = self._chunk_start, self._chunk_end
        if not start or self._holds_bytes or self.closed or not (chunk.startswith(start) and chunk.endswith(end)):
            return False
        text = chunk[len(start) : size - len(end)]
        if _needs_search(text):
            return False
        self.events += 1
        return True

    def _expect_chunk(self, size: int) -> None:
        """Determines the bytes around the text in a chunk of this size, with its size line and end."""
        self._chunk_bytes = size
        self._chunk_start = b""
        if self._shape_bytes != _NO_SHAPE and size <= min(READ_BYTES_MAX, self._event_bytes_max):
            size_line, event_bytes = CHUNKS[size]
            if event_bytes > self._shape_bytes:
                self._chunk_start = size_line + self._shape_start
                self._chunk_end = self._shape_end + END_OF_CHUNK

    def feed(self, data: bytes) -> bytes:
        """Adds received bytes. Returns the bytes to forward."""
        size = len(data)
        if self._holds_bytes or self.closed or size > self._event_bytes_max:
            return self._split(data)
        text = data.removeprefix(self._shape_start).removesuffix(self._shape_end)
        if len(text) + self._shape_bytes == size and not _needs_search(text):
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
            self._chunk_bytes = 0

    def _split(self, data: bytes) -> bytes:
        if self.closed:
            return b""
        buffer = self._tail
        # A boundary may start in the held bytes, but it does not end there.
        search_from = max(0, len(buffer) - BOUNDARY_BYTES_MAX + 1)
        buffer += data
        passed: list[bytes] = []
        start = 0
        while not self.closed and (boundary := BOUNDARY.search(buffer, search_from)):
            end = boundary.end()
            comments = WITHOUT_DATA.match(buffer, start, start + self._event_bytes_max)
            counted = start if comments is None else self._count_comments(start, comments.end())
            if counted > start:
                end = counted
                if self._forwards_comments():
                    passed.append(bytes(buffer[start:end]))
            else:
                passed.append(self._forward(bytes(buffer[start:end])))
            start = search_from = end
        del buffer[:start]
        if not self.closed and len(buffer) >= self._event_bytes_max:
            self._end_overlong()
        if self.closed:
            buffer.clear()
        self._holds_bytes = bool(buffer)
        return b"".join(passed)

    def _forward(self, event: bytes) -> bytes:
        """Returns the event if it should be forwarded, otherwise empty bytes."""
        if is_overlong(event, self._event_bytes_max):
            self._end_overlong()
            return b""
        payload = payload_of(event)
        if payload is None:
            return event if self._allows_comment() and self._forwards_comments() else b""
        self._comments = 0
        if not self._needs_parsing(payload):
            self.events += 1
            return event
        if payload.strip() == b"[DONE]":
            self.done = self.closed = True
            return event
        return event if self._forwards_chunk(payload) else b""

    def _forwards_comments(self) -> bool:
        """Returns whether the client may receive events without data."""
        return True

    def _needs_parsing(self, payload: bytes) -> bool:
        return _is_candidate(payload) or (self._drop_progress and _PROGRESS in payload)

    def _allows_comment(self) -> bool:
        """Counts an event without data and returns whether it is allowed. Too many of them end the stream."""
        if not self._comments_left():
            self._end_overlong()
        self._comments += 1
        return not self.closed

    def _count_comments(self, start: int, end: int) -> int:
        """Counts events without data, except those above the limit. Returns the end of the last one counted."""
        left = self._comments_left()
        count = len(BOUNDARY.findall(self._tail, start, end))
        if count > left:
            count, last = left, start
            for boundary in islice(BOUNDARY.finditer(self._tail, start, end), left):
                last = boundary.end()
            end = last
        self._comments += count
        return end

    def _comments_left(self) -> int:
        if self.events != self._comments_counted_at:
            self._comments_counted_at = self.events
            self._comments = 0
        return self._comments_max - self._comments

    def _end_overlong(self) -> None:
        self.overlong = self.closed = True

    def _forwards_chunk(self, payload: bytes) -> bool:
        chunk = read_stream_object(payload)
        # Older vLLM puts the error at the top level, with `object` set to `error`.
        if bytes(chunk.error) != b"null" or bytes(chunk.object) == b'"error"':
            self._fail(whole_error(payload))
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


def _needs_search(text: bytes) -> bool:
    """Returns whether the text of an event whose other bytes are known may be a sequence that needs parsing.

    The known bytes include the quotes around the text, so such a sequence is either the whole text in its quotes or
    contains one of these characters. A search for a number is faster than one for a byte string.
    """
    if _LINE_FEED in text or _QUOTE in text or _BRACKET in text:
        return True
    # Only these lengths occur among the keys. Comparing two numbers is faster than hashing the text.
    return len(text) in (5, 15) and text in _KEYS


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
