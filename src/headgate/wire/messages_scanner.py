"""Scans /v1/messages event streams of Anthropic's API and decides which events to forward.

Each event has a name and the same `type` in its object:

- `message_start` announces the message. Its usage contains the prompt tokens.
- `content_block_start`, `content_block_delta` and `content_block_stop` contain the response. A delta counts as one
  token.
- `message_delta` contains the usage, at least the output tokens. All counts are totals.
- `message_stop` ends the stream. Nothing after it is forwarded.
- `ping` keeps a connection open. It does not count as progress, so that a stream of pings counts as silent.
- `error`, and any object with a top-level `error`, is an engine error.

All events before the first delta are held back (`holding_scanner.py`).
"""

import re
from typing import Final

import msgspec

from headgate.wire.event_objects import read_message_usage, read_messages_event
from headgate.wire.holding_scanner import HoldingScanner, event_name
from headgate.wire.openai_bodies import whole_error
from headgate.wire.sse import EVENT_BYTES_MAX

_INDEX: Final = rb'"index": ?\d+'
_TEXT: Final = rb'"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"'
_TEXT_DELTA: Final = rb'"delta": ?\{"type": ?"[a-z_]+", ?"(?:text|thinking|partial_json|signature)": ?' + _TEXT + rb"\}"
# The order is that of llama.cpp or that of vLLM. The pattern covers the whole object, because an object may repeat the
# key `type` or contain the key `error` with escaped letters.
_DELTAS: Final = re.compile(
    rb'(?:event: content_block_delta\ndata: \{"type": ?"content_block_delta", ?'
    rb"(?:%b, ?%b|%b, ?%b)\}\n\n)+" % (_INDEX, _TEXT_DELTA, _TEXT_DELTA, _INDEX)
)
_DELTA: Final = b"content_block_delta"
_LEARNED_BYTES_MAX: Final = 4096
"""Maximum size of an event whose surroundings of the text are stored."""
_NULL: Final = msgspec.Raw(b"null")


class MessagesScanner(HoldingScanner):
    """Scans one /v1/messages stream. `events` is the number of forwarded deltas."""

    __slots__ = ("_message",)

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        super().__init__(event_bytes_max=event_bytes_max, last_event="message_stop")
        self._message = _NULL
        """The message in the `message_start` event."""

    def _search(self, data: bytes) -> bytes:
        """Forwards complete deltas without parsing them, once the response has begun."""
        if not self.events or _DELTAS.fullmatch(data) is None:
            return self._split(data)
        events = data.count(b"\n\n")
        if events == 1 and self._shapes_learned <= self.events >> 2 and len(data) <= _LEARNED_BYTES_MAX:
            self._learn_shape(data)
        self.events += events
        return data

    def _forward_data(self, event: bytes, payload: bytes) -> bytes:
        said = read_messages_event(payload)
        kind = event_name(event, said.type)
        if kind == b"error" or bytes(said.error) != b"null":
            self._fail(whole_error(payload))
            return b""
        if kind == b"ping":
            return self._forward_or_hold(event) if self._allows_comment() else b""
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
        return self._forward_or_hold(event)

    def _forward_or_hold(self, event: bytes) -> bytes:
        return event if self.events else self._hold(event)
