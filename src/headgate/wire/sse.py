"""What is in a stream of events, and what of it is passed on?

This runs for every read of every stream, so it must cost little. Nearly every read is one or more whole events that
hold nothing of interest; that is seen by a few searches for bytes, and the read is passed on as it is, the same object.
Otherwise the bytes are cut into events, and only an event that holds one of the tell-tale byte sequences is parsed:

- `[DONE]` as the whole data of an event ends the stream. It is passed on; nothing after it is.
- An object with the key `error` at its top is an error of the engine. Neither it nor anything after it is passed on:
  the relay says what happened in its own words.
- An object with the key `prompt_progress` at its top says how far the engine has read the prompt. Where it was told to
  report that although the caller did not ask, the event is dropped, and is no progress of the answer.
- An object with the key `usage` at its top says how many tokens were used. If it has no choices the event was sent only
  because we asked for it, and is dropped unless the caller asked too.

The text of an answer may hold any of these sequences. In JSON a quote inside a string is escaped, so `"error"` in an
answer reads `\\"error\\"` and is no candidate; where one is a candidate by chance (a token `error` among logprobs), its
parsed top level decides.

An event is held until its boundary has come, so that what was passed on always ends between two events and an error
can be told in an event of its own. How the stream is cut into reads changes nothing of the outcome.

The streams of /v1/responses have events of other kinds and are followed by a scanner of their own (`responses.py`).
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from headgate.model.ticket import Api
from headgate.model.usage import Usage
from headgate.wire.replies import read_error
from headgate.wire.usage import read_usage

EVENT_BYTES_MAX: Final = 1024 * 1024
"""The longest event, boundary included. A longer one ends the stream: an engine must not fill the memory."""

EVENT_LINES_MAX: Final = 10_000
"""Maximum lines of one event; real events have three."""
COMMENTS_MAX: Final = 10_000
"""Maximum events without data between two with data. An engine that pings once a second reaches it after hours."""
ASSEMBLED_BYTES_MAX: Final = 16 * 1024 * 1024
"""The longest answer that is assembled from a stream for a caller that did not ask for a stream."""

# A blank line after a line; the carriage return before the first line feed belongs to that line.
_BOUNDARY: Final = re.compile(rb"\n\r?\n")
_BOUNDARY_BYTES_MAX: Final = 3
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{')
_PROGRESS: Final = b'"prompt_progress"'
_NULL: Final = msgspec.Raw(b"null")


class _Chunk(msgspec.Struct):
    """The top level of an event's object; no value is looked into before it must be."""

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
    """An error body as an event, as clients expect it in a stream.

    In a stream of /v1/responses each event has a type and a number. There an error's fields stand at the top; the
    official client raises only for an `error` object, so that is kept beside them.
    """
    if api is not Api.RESPONSES:
        return b"data: " + body + b"\n\n"
    error = _ERROR.decode(body).error
    event = error | {"type": "error", "sequence_number": sequence_number, "error": error}
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


class StreamScanner:
    """Follows one stream of an engine's answer."""

    __slots__ = (
        "_comments",
        "_comments_max",
        "_drop_progress",
        "_event_bytes_max",
        "_keep_usage_chunk",
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
        """Events with data passed on, without comments and [DONE]."""
        self.done = False
        """Whether the stream has come to its good end."""
        self.error: str | None = None
        """The message of the error event that ended the stream."""
        self.usage: Usage | None = None
        """The last usage that the engine told."""
        self.overlong = False
        """Whether an overlong event or too many comments ended the stream."""
        self._comments = 0
        """Events without data since the last one with data."""
        self._comments_max = comments_max
        self._keep_usage_chunk = keep_usage_chunk
        self._drop_progress = drop_progress
        self._event_bytes_max = event_bytes_max
        self.closed = False
        self._tail = bytearray()

    def feed(self, data: bytes) -> bytes:
        """What of these and earlier bytes is to be passed on."""
        if self.closed:
            return b""
        if (
            not self._tail
            and len(data) <= self._event_bytes_max
            and (events := _uninteresting_events(data))
            and not (self._drop_progress and _PROGRESS in data)
        ):
            self.events += events
            return data
        return self._cut(data)

    def _cut(self, data: bytes) -> bytes:
        buffer = self._tail
        # A boundary may have begun in the bytes held, but it did not end there.
        search_from = max(0, len(buffer) - _BOUNDARY_BYTES_MAX + 1)
        buffer += data
        passed: list[bytes] = []
        start = 0
        while not self.closed and (boundary := _BOUNDARY.search(buffer, search_from)):
            event = bytes(buffer[start : boundary.end()])
            start = search_from = boundary.end()
            passed.append(self._pass(event))
        del buffer[:start]
        if not self.closed and len(buffer) >= self._event_bytes_max:
            self.overlong = self.closed = True
        if self.closed:
            buffer.clear()
        return b"".join(passed)

    def _pass(self, event: bytes) -> bytes:
        """What this event lets pass: itself, or nothing."""
        if is_overlong(event, self._event_bytes_max):
            self.overlong = self.closed = True
            return b""
        payload = payload_of(event)
        if payload is None:
            return event if self._takes_comment() else b""
        self._comments = 0
        if not _is_candidate(payload) and not (self._drop_progress and _PROGRESS in payload):
            self.events += 1
            return event
        if payload.strip() == b"[DONE]":
            self.done = self.closed = True
            return event
        return event if self._passes_chunk(payload) else b""

    def _takes_comment(self) -> bool:
        """Whether an event without data may pass; after too many the stream ends."""
        self._comments += 1
        if self._comments > self._comments_max:
            self.overlong = self.closed = True
        return not self.closed

    def _passes_chunk(self, payload: bytes) -> bool:
        try:
            chunk = _CHUNK.decode(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            # Not ours to judge: the caller sees what the engine sent.
            chunk = _Chunk()
        # Older vLLM puts the error at the top level and marks it so.
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
        self.error = message or "the engine gave no message"
        self.closed = True


def _uninteresting_events(data: bytes) -> int:
    """How many events there are, if these are whole events of one `data:` line each and none is a candidate; else 0."""
    if not data.startswith(b"data:") or not data.endswith(b"\n\n"):
        return 0
    events = 1
    if data.find(b"\n") != len(data) - 2:
        # Several are whole and of one line each if every line feed stands in a pair, and `data:` after every pair.
        events = data.count(b"\n\n")
        if data.count(b"\n") != 2 * events or data.count(b"\n\ndata:") != events - 1:
            return 0
    return 0 if _is_candidate(data) else events


def _is_candidate(data: bytes) -> bool:
    # `find` takes half the time of `in`.
    find = data.find
    if find(b"[DONE]") >= 0 or find(b'"error"') >= 0:
        return True
    at = find(b'"usage"')
    if at < 0:
        return False
    # Some engines put `"usage":null` on every chunk; that costs no parse, and where it is alone no regex.
    alone = data.startswith(b":null", at + 7) and find(b'"usage"', at + 12) < 0
    return not alone and _USAGE.search(data) is not None


def is_overlong(event: bytes, bytes_max: int) -> bool:
    # An event with too many lines has more bytes than this.
    return len(event) > bytes_max or (len(event) > EVENT_LINES_MAX and event.count(b"\n") > EVENT_LINES_MAX)


class EventCutter:
    """Splits a stream into the data of its events, in linear time for any sizes of reads. Holds at most one event."""

    __slots__ = ("_comments", "_comments_max", "_event_bytes_max", "_tail", "overlong")

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX, comments_max: int = COMMENTS_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._comments_max = comments_max
        self._comments = 0
        self._tail = bytearray()
        self.overlong = False
        """Whether there was an overlong event or too many comments. The rest of the stream is ignored."""

    @property
    def held_bytes(self) -> int:
        return len(self._tail)

    def cut(self, data: bytes) -> Iterator[bytes]:
        """The data of each event that these and earlier bytes complete."""
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
    """The data of an event, its lines joined; None if it has none, as a comment."""
    values = [
        line[5:].removeprefix(b" ").removesuffix(b"\r")
        for line in event.split(b"\n")
        if line.startswith(b"data:") or line.rstrip(b"\r") == b"data"
    ]
    return b"\n".join(values) if values else None


def _has_elements(choices: msgspec.Raw) -> bool:
    raw = bytes(choices)
    return raw.startswith(b"[") and raw[1:].lstrip()[:1] != b"]"
