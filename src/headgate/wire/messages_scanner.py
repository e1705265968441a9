"""Scans /v1/messages event streams of Anthropic's API and decides which events to forward.

Each event has a name and the same `type` in its object:

- `message_start` announces the message. Its usage contains the prompt tokens.
- `content_block_start`, `content_block_delta` and `content_block_stop` contain the response. A delta counts as one
  token.
- `message_delta` contains the usage, at least the output tokens. All counts are totals.
- `message_stop` ends the stream. Nothing after it is forwarded.
- `ping` keeps a connection open. It does not count as progress, so that a stream of pings counts as silent.
- `error`, and any object with a top-level `error`, is an engine error.

All events before the first delta are held back. An attempt that fails before it can be retried elsewhere without the
client seeing two announcements.
"""

import re
from typing import Final

import msgspec

from headgate.wire.event_objects import MessagesEvent, read_message_usage, read_messages_event
from headgate.wire.openai_bodies import read_error
from headgate.wire.sse import EVENT_BYTES_MAX, StreamScanner, is_overlong, payload_of

_DELTAS: Final = re.compile(rb'(?:event: content_block_delta\ndata: \{"type": ?"content_block_delta"[^\n]*\n\n)+')
_DELTA: Final = b"content_block_delta"
_LEARNED_BYTES_MAX: Final = 4096
"""Maximum size of an event whose surroundings of the text are stored."""
_NULL: Final = msgspec.Raw(b"null")


class MessagesScanner(StreamScanner):
    """Scans one /v1/messages stream. `events` is the number of forwarded deltas."""

    __slots__ = ("_held_bytes", "_held_events", "_message")

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        super().__init__(keep_usage_chunk=True, event_bytes_max=event_bytes_max)
        self._held_events: list[bytes] = []
        self._held_bytes = 0
        self._message = _NULL
        """The message in the `message_start` event."""

    def _search(self, data: bytes) -> bytes:
        """Forwards complete deltas without parsing them, once the response has begun."""
        if not self.events or _DELTAS.fullmatch(data) is None or data.find(b'"error"') >= 0:
            return self._split(data)
        events = data.count(b"\n\n")
        if events == 1 and self._shapes_learned <= self.events >> 2 and len(data) <= _LEARNED_BYTES_MAX:
            self._learn_shape(data)
        self.events += events
        self._comments = 0
        return data

    def _forward(self, event: bytes) -> bytes:
        if is_overlong(event, self._event_bytes_max):
            self.overlong = self.closed = True
            return b""
        payload = payload_of(event)
        if payload is None:
            # A comment must not become the first byte of the response.
            return event if self._allows_comment() and self.events else b""
        if payload.strip() == b"[DONE]":
            self._fail("the stream ended without message_stop")
            return b""
        return self._forward_object(event, payload)

    def _forward_object(self, event: bytes, payload: bytes) -> bytes:
        said = read_messages_event(payload)
        kind = _kind(event, said)
        if kind == b"error" or bytes(said.error) != b"null":
            self._fail(read_error(payload))
            return b""
        if kind == b"ping":
            return self._hold_or_forward(event) if self._allows_comment() else b""
        self._comments = 0
        if kind == _DELTA:
            self.events += 1
            return self._release(event)
        if kind == b"message_stop":
            self.done = self.closed = True
            return self._release(event)
        if kind == b"message_start":
            self._message = said.message
        elif kind == b"message_delta" and bytes(said.usage) != b"null":
            self.usage = read_message_usage(self._message, said.usage) or self.usage
        return self._hold_or_forward(event)

    def _release(self, event: bytes) -> bytes:
        if not self._held_events:
            return event
        held, self._held_events = self._held_events, []
        return b"".join([*held, event])

    def _hold_or_forward(self, event: bytes) -> bytes:
        if self.events:
            return event
        self._held_events.append(event)
        self._held_bytes += len(event)
        if self._held_bytes > self._event_bytes_max:
            self.overlong = self.closed = True
            self._held_events.clear()
        return b""


def _kind(event: bytes, said: MessagesEvent) -> bytes:
    """Returns the type from the event's object, or the event's name if there is no type."""
    if (kind := bytes(said.type)) != b"null":
        return kind.strip(b'"')
    for line in event.split(b"\n"):
        if line.startswith(b"event:"):
            return line.removeprefix(b"event:").strip()
    return b""
