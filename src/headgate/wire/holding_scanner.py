"""Scans event streams that announce a response before its content.

The events of such a stream have names. Those before the first content are held back: they do not count as progress, and
an attempt that fails after its announcement can be retried elsewhere without the client seeing two announcements.
"""

from typing import Final

import msgspec

from headgate.wire.sse import StreamScanner, is_overlong, payload_of

HELD_EVENTS_MAX: Final = 1_000
"""Maximum number of events that are held back. Engines send fewer than ten."""


class HoldingScanner(StreamScanner):
    """Scans one stream with announcements. Each API has a subclass, which decides about events with data."""

    __slots__ = ("_held_bytes", "_held_events", "_last_event")

    def __init__(self, *, event_bytes_max: int, last_event: str) -> None:
        """`last_event` is the name of the event that ends a successful stream."""
        super().__init__(keep_usage_chunk=True, event_bytes_max=event_bytes_max)
        self._last_event = last_event
        self._held_events: list[bytes] = []
        self._held_bytes = 0

    def _forward(self, event: bytes) -> bytes:
        if is_overlong(event, self._event_bytes_max):
            self._end_overlong()
            return b""
        payload = payload_of(event)
        if payload is None:
            return event if self._allows_comment() and self._forwards_comments() else b""
        if payload.strip() == b"[DONE]":
            self._fail(f"the stream ended without {self._last_event}")
            return b""
        return self._forward_data(event, payload)

    def _forward_data(self, event: bytes, payload: bytes) -> bytes:
        """Returns the event, and held ones before it, if they should be forwarded. Otherwise returns empty bytes."""
        raise NotImplementedError

    def _forwards_comments(self) -> bool:
        # A comment must not become the first byte of the response.
        return self.events > 0

    def _hold(self, event: bytes) -> bytes:
        self._held_events.append(event)
        self._held_bytes += len(event)
        if self._held_bytes > self._event_bytes_max or len(self._held_events) > HELD_EVENTS_MAX:
            self._end_overlong()
            self._held_events.clear()
        return b""

    def _release(self, event: bytes) -> bytes:
        """Returns the held events and this one."""
        if not self._held_events:
            return event
        held, self._held_events = self._held_events, []
        return b"".join([*held, event])


def event_name(event: bytes, kind: msgspec.Raw) -> bytes:
    """Returns the type from the event's object, which is what clients use, or the event's name if there is no type."""
    raw = bytes(kind)
    if raw != b"null":
        return raw.strip(b'"')
    for line in event.split(b"\n"):
        if line.startswith(b"event:"):
            return line.removeprefix(b"event:").strip()
    return b""
