"""What is in a stream of /v1/responses, and what of it is passed on?

Its events have names and types, and most of what `sse.py` says of streams holds here too. The differences:

- `response.completed` or `response.incomplete` ends it well, and usage is told there. What comes after, be it `[DONE]`,
  is not passed on; and `[DONE]` without such an end is an error.
- `response.failed`, an event of the type `error`, and any object with an `error` at its top are errors of the engine.
- Engines announce a response (`response.created`, `response.in_progress`) before they have computed anything. Such
  events are held back until the first one that says more. So what reaches the caller first is known not to be followed
  by an error at once, nothing counts as progress that is none, and an attempt which failed after its announcement can
  still be made elsewhere, without the caller seeing two.
"""

import re
from typing import Final

import msgspec

from headgate.model.ticket import Api
from headgate.model.usage import Usage
from headgate.wire.replies import read_error
from headgate.wire.sse import StreamScanner, is_overlong, payload_of
from headgate.wire.usage import read_usage

RESPONSES_EVENT_BYTES_MAX: Final = 8 * 1024 * 1024
"""The longest event, and the most that is held back. The last event repeats the instructions and the whole answer."""

_WHOLE_EVENTS: Final = re.compile(rb"(?:(?:event:[^\n]*\n)?data:[^\n]*\n\n)+")
_ANNOUNCING: Final = frozenset({b"response.created", b"response.in_progress", b"response.queued"})
_ENDING: Final = frozenset({b"response.completed", b"response.incomplete"})
_FAILING: Final = frozenset({b"response.failed", b"error"})
_NULL: Final = msgspec.Raw(b"null")


class _Event(msgspec.Struct):
    """The top level of an event's object; no value is looked into before it must be."""

    type: msgspec.Raw = _NULL
    response: msgspec.Raw = _NULL
    error: msgspec.Raw = _NULL
    object: msgspec.Raw = _NULL


class _Response(msgspec.Struct):
    usage: msgspec.Raw = _NULL


_EVENT: Final = msgspec.json.Decoder(_Event)
_RESPONSE: Final = msgspec.json.Decoder(_Response)


def scanner_for(api: Api, *, keep_usage_chunk: bool, drop_progress: bool = False) -> StreamScanner:
    if api is Api.RESPONSES:
        return ResponsesScanner()
    return StreamScanner(keep_usage_chunk=keep_usage_chunk, drop_progress=drop_progress)


class ResponsesScanner(StreamScanner):
    """Follows one stream of /v1/responses. `events` counts what was held back once it has been passed on."""

    __slots__ = ("_held", "_held_bytes")

    def __init__(self, *, event_bytes_max: int = RESPONSES_EVENT_BYTES_MAX) -> None:
        super().__init__(keep_usage_chunk=True, event_bytes_max=event_bytes_max)
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, data: bytes) -> bytes:
        if self.closed:
            return b""
        if (
            self.events
            and not self._tail
            and len(data) <= self._event_bytes_max
            and _WHOLE_EVENTS.fullmatch(data)
            and not _is_candidate(data)
        ):
            self.events += data.count(b"\n\n")
            return data
        return self._cut(data)

    def _pass(self, event: bytes) -> bytes:
        if is_overlong(event, self._event_bytes_max):
            self.overlong = self.closed = True
            return b""
        payload = payload_of(event)
        if payload is None:
            # A comment before the first event would be the first byte, and is no answer.
            return event if self._takes_comment() and self.events else b""
        self._comments = 0
        if self.events and not _is_candidate(event):
            self.events += 1
            return event
        if payload.strip() == b"[DONE]":
            self._fail("the stream ended without response.completed")
            return b""
        return self._pass_object(event, payload)

    def _pass_object(self, event: bytes, payload: bytes) -> bytes:
        try:
            said = _EVENT.decode(payload)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            # Not ours to judge: the caller sees what the engine sent.
            said = _Event()
        name = _name(event, said)
        if name in _FAILING or bytes(said.error) != b"null" or bytes(said.object) == b'"error"':
            self._fail(_failure(said, payload))
            return b""
        if name in _ANNOUNCING and not self.events:
            return self._hold(event)
        if name in _ENDING:
            self.usage = _usage(said)
            self.done = self.closed = True
        held, self._held = self._held, []
        self.events += len(held) + 1
        return b"".join([*held, event])

    def _hold(self, event: bytes) -> bytes:
        self._held.append(event)
        self._held_bytes += len(event)
        if self._held_bytes > self._event_bytes_max:
            self.overlong = self.closed = True
            self._held.clear()
        return b""


def _is_candidate(data: bytes) -> bool:
    return (
        b'"error"' in data
        or b"response.completed" in data
        or b"response.incomplete" in data
        or b"response.failed" in data
        or b"event: error" in data
        or b"event:error" in data
        or b"[DONE]" in data
    )


def _name(event: bytes, said: _Event) -> bytes:
    """The type by which clients tell events apart; the event's name only where its object has none."""
    if (kind := bytes(said.type)) != b"null":
        return kind.strip(b'"')
    for line in event.split(b"\n"):
        if line.startswith(b"event:"):
            return line.removeprefix(b"event:").strip()
    return b""


def _failure(said: _Event, payload: bytes) -> str:
    inside = read_error(said.response) if bytes(said.response).startswith(b"{") else ""
    return inside or read_error(payload)


def _usage(said: _Event) -> Usage | None:
    try:
        return read_usage(_RESPONSE.decode(said.response).usage)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
